"""Training as a user writes it down: names and numbers that become objects here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from prism.losses.denoising import DenoisingLoss, Loss, PerMask, PerTime, Weighting
from prism.losses.masking import Batch, ByCount, ByProbability, Masking
from prism.losses.prism import Likelihood, PrismLoss, Quality, Target
from prism.models.attach import Lora, PrismModel
from prism.models.backbone import Backbone
from prism.models.heads import BlockConfig, FinalLayerConfig, HeadConfig, ProjectionConfig
from prism.noise import Noise
from prism.recipes.sampling import ORDERS, pick
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser
from prism.training import Constant, Cosine, CosineCycles, Optimisation, Precision, Rate

MASKINGS: dict[str, Masking] = {"probability": ByProbability(floor=1e-3), "count": ByCount()}
WEIGHTINGS: dict[str, Weighting] = {"mask": PerMask(), "time": PerTime()}
TARGETS: dict[str, Target] = {"quality": Quality(), "likelihood": Likelihood()}
PRECISIONS: dict[str, Precision] = {"fp32": Precision.FP32, "bf16": Precision.BF16}


def held_out_loss(
    loss: Callable[[Denoiser, Batch, int, Noise], Loss], held_out: Batch
) -> Callable[[Backbone | PrismModel, int], dict[str, float]]:
    """An evaluation for `train`: the loss and its parts on sequences kept apart, under the same masks every time."""

    def measure(model: Backbone | PrismModel, step: int) -> dict[str, float]:
        batch = held_out.to(model.device)
        noise = Noise.rows(12345, len(batch.tokens), device=model.device)
        measured = loss(model, batch, model.facts.mask_id, noise)
        return {"loss": float(measured.total), **{name: float(part) for name, part in measured.parts.items()}}

    return measure


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train: the fields of `Optimisation`, with names where that holds objects."""

    steps: int = 1000
    """Optimiser steps."""
    batch: int = 256
    """Sequences per step, over all processes."""
    accumulate: int = 1
    """Micro-batches a process splits its share into."""
    lr: float = 3e-4
    """Learning rate."""
    backbone_lr: float | None = None
    """Another one for the backbone."""
    lora_lr: float | None = None
    """Another one for LoRA."""
    head_lr: float | None = None
    """Another one for the quality head."""
    muon_lr: float | None = None
    """Train the matrices of the backbone's blocks with Muon at this learning rate (0.003 is a good first try)."""
    weight_decay: float = 0.0
    """Of AdamW."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    warmup: int = 0
    """Steps over which the learning rate rises."""
    rate: str = "constant"
    """The learning rate afterwards: constant, cosine (down to 0) or cycles (a cosine wave, up and down)."""
    cycles: float = 5.0
    """How many waves of rate=cycles."""
    ema: float | None = 0.9999
    """Decay of the running average of the weights, which is what is saved; null keeps none."""
    precision: str = "fp32"
    """fp32, or bf16 for matrix products in bfloat16."""
    compile: bool = False
    """torch.compile the backbone."""
    recompute: bool = False
    """Less memory for a third more time: the backward pass computes the backbone's blocks anew."""
    seed: int = 0
    """The same seed gives the same run."""
    log_every: int = 50
    """Steps between lines of log.jsonl."""
    evaluate_every: int = 500
    """Steps between evaluations on held-out sequences."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints left on disk."""

    def build_optimisation(self) -> Optimisation:
        rates: dict[str, Rate] = {"constant": Constant(), "cosine": Cosine(), "cycles": CosineCycles(self.cycles)}
        named = {"rate": pick(self.rate, rates, "rate"), "precision": pick(self.precision, PRECISIONS, "precision")}
        shared = {f.name: getattr(self, f.name) for f in fields(Optimisation) if hasattr(self, f.name)}
        return Optimisation(**(shared | named))


@dataclass(frozen=True, kw_only=True)
class MaskingOptions:
    """How clean sequences are masked and their cross-entropies added up."""

    masking: str = "probability"
    """probability: a time t, then every token with probability t; count: a number n, then n tokens. Equal in distribution."""
    weighting: str = "mask"
    """mask: 1/n over a row's masks (PRISM, Eq. 1); time: 1/t (MDLM's bound)."""

    def build_denoising(self) -> DenoisingLoss:
        return DenoisingLoss(pick(self.masking, MASKINGS, "masking"), pick(self.weighting, WEIGHTINGS, "weighting"))


@dataclass(frozen=True, kw_only=True)
class LossOptions(MaskingOptions):
    """The PRISM loss."""

    k: int = 4
    """Tokens drawn at once to make y from z."""
    ys: int = 1
    """Several y from one forward pass of z (n_y)."""
    regulariser: float = 5.0
    """λ, the weight of the masked-diffusion loss."""
    choose: str = "random"
    """The rule for the k: random, probability (the most confident), or any order of prism sample."""
    temperature: float = 1.0
    """Of the draws of y."""
    nucleus: float = 1.0
    """Draw y among the most likely tokens that hold this much probability."""
    target: str = "quality"
    """quality: a scalar head learns p(token | rest); likelihood: the vocabulary head learns the whole distribution."""

    def build_loss(self) -> PrismLoss:
        return PrismLoss(
            k=self.k,
            ys=self.ys,
            regulariser=self.regulariser,
            order=pick(self.choose, ORDERS, "rule for S (--choose)"),
            draw=Draw(self.temperature, nucleus=self.nucleus),
            masking=pick(self.masking, MASKINGS, "masking"),
            weighting=pick(self.weighting, WEIGHTINGS, "weighting"),
            target=pick(self.target, TARGETS, "target"),
        )


@dataclass(frozen=True, kw_only=True)
class AttachmentOptions:
    """What is attached to the backbone, and what of it learns."""

    head: str = "final-layer"
    """final-layer (the paper's for Sudoku), block (OpenWebText), projection (LLaDA), or none with --target likelihood."""
    head_heads: int = 8
    """Attention heads of --head block."""
    tune_backbone: bool = True
    """Train the backbone too; with `false`, or with LoRA, it stays as it is."""
    lora_rank: int | None = None
    """Adapt the frozen backbone with LoRA of this rank instead of training it."""
    lora_alpha: float | None = None
    """LoRA's scale; the rank if left out."""
    lora_dropout: float = 0.0
    """Dropout before LoRA."""
    lora_targets: tuple[str, ...] = ("attn_qkv",)
    """Names of the layers to adapt."""

    def build_head(self, hidden_size: int) -> HeadConfig | None:
        heads: dict[str, HeadConfig | None] = {
            "final-layer": FinalLayerConfig(hidden_size),
            "block": BlockConfig(hidden_size, heads=self.head_heads),
            "projection": ProjectionConfig(hidden_size),
            "none": None,
        }
        return pick(self.head, heads, "head")

    def build_lora(self) -> Lora | None:
        if self.lora_rank is None:
            return None
        alpha = float(self.lora_rank) if self.lora_alpha is None else self.lora_alpha
        return Lora(self.lora_rank, alpha, self.lora_targets, self.lora_dropout)
