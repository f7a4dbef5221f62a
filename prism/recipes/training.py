"""Training as a user writes it down: names and numbers that become objects here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from prism.data.conversations import Conversation, Padding, TooLong, conversations
from prism.data.text import dataset_rows, holds_json_lines, json_lines
from prism.losses.denoising import DenoisingLoss, PerMask, PerTime, Weighting
from prism.losses.loss import TrainingLoss
from prism.losses.masking import Batch, ByCount, ByProbability, Masking
from prism.losses.prism import Likelihood, PrismLoss, Quality, Target
from prism.models.attach import Lora, PrismModel
from prism.models.backbone import Backbone
from prism.models.heads import BlockConfig, FinalLayerConfig, HeadConfig, OddsConfig, ProjectionConfig
from prism.noise import Noise
from prism.recipes.sampling import ORDERS, pick
from prism.sampling.draw import Draw
from prism.training import Constant, Cosine, CosineCycles, Optimisation, Precision, Rate

MASKINGS: dict[str, Masking] = {"probability": ByProbability(floor=1e-3), "count": ByCount()}
WEIGHTINGS: dict[str, Weighting] = {"mask": PerMask(), "time": PerTime()}
TARGETS: dict[str, Target] = {"quality": Quality(), "likelihood": Likelihood()}
PRECISIONS: dict[str, Precision] = {"fp32": Precision.FP32, "bf16": Precision.BF16}
PADDINGS: dict[str, Padding] = {"eos": Padding.LEARNED, "unseen": Padding.UNSEEN}
TOO_LONG: dict[str, TooLong] = {"drop": TooLong.DROP, "truncate": TooLong.TRUNCATE}
RECIPES: dict[str, Path] = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
"""The settings of published runs, as config files."""


def held_out_loss(
    loss: TrainingLoss, held_out: Batch, at_once: int | None = None
) -> Callable[[Backbone | PrismModel, int], dict[str, float]]:
    """An evaluation for `train`: the loss and its parts on sequences kept apart, under the same masks every time; all of them
    together, or `at_once` so many where a model has no room for more."""

    def measure(model: Backbone | PrismModel, step: int) -> dict[str, float]:
        sums: dict[str, float] = {}
        count = len(held_out.tokens)
        for first in range(0, count, at_once or count):
            batch = held_out.rows(first, first + (at_once or count)).to(model.device)
            noise = Noise.rows(12345, len(batch.tokens), first=first, device=model.device)
            measured = loss(model, batch, model.facts.mask_id, noise)
            for name, part in {"loss": measured.total, **measured.parts}.items():
                sums[name] = sums.get(name, 0.0) + float(part) * len(batch.tokens) / count
        return sums

    return measure


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train: the fields of `Optimisation`, with names where that holds objects."""

    steps: int = 1000
    """Optimiser steps."""
    batch: int = 256
    """Sequences per step, over all processes."""
    accumulate: int = 1
    """Number of micro-batches into which each process splits its share of --batch."""
    lr: float = 3e-4
    """Learning rate."""
    backbone_lr: float | None = None
    """Learning rate of the backbone, if different."""
    muon_lr: float | None = None
    """Train the matrices of the backbone's blocks with Muon at this learning rate (0.003 is a good first try)."""
    weight_decay: float = 0.0
    """Weight decay of AdamW."""
    clip: float = 1.0
    """Maximum norm of the gradient."""
    warmup: float = 0.0
    """Steps over which the learning rate rises; a number below 1 is a fraction of --steps."""
    rate: str = "constant"
    """The learning rate afterwards: constant, cosine (down to 0) or cycles (a cosine wave, up and down)."""
    cycles: float = 5.0
    """Number of waves with --rate cycles."""
    ema: float | None = 0.9999
    """Decay of the moving average of the weights, which is what is saved; null turns it off."""
    precision: str = "fp32"
    """fp32, or bf16 for matrix products in bfloat16."""
    compile: bool = False
    """torch.compile the backbone."""
    recompute: bool = False
    """Save memory for a third more time: the backward pass recomputes the backbone's blocks."""
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
        named: dict[str, Any] = {
            "rate": pick(self.rate, rates, "rate"),
            "precision": pick(self.precision, PRECISIONS, "precision"),
        }
        named["warmup"] = self._warmup()
        shared = {f.name: getattr(self, f.name) for f in fields(Optimisation) if hasattr(self, f.name)}
        return Optimisation(**(shared | named))

    def _warmup(self) -> int:
        steps = self.warmup if self.warmup >= 1 or self.warmup < 0 else round(self.warmup * self.steps)
        if steps != int(steps):
            raise ValueError(f"--warmup {self.warmup}: give whole steps, or a share of them below 1.")
        return int(steps)


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
    rounds: int = 1
    """Write y in up to this many rounds of k tokens, each seeing the earlier ones, as in sampling; a forward pass each."""
    ys: int = 1
    """Number of y drawn from one forward pass of z (n_y)."""
    regulariser: float = 5.0
    """λ, the weight of the masked-diffusion loss."""
    choose: str = "random"
    """How the k masks are chosen: random, probability (the most confident), or any --order of prism sample. Unless random,
    tuning ends with calibrating quality for tokens at all positions."""
    temperature: float = 1.0
    """Temperature of the draws of y."""
    nucleus: float = 1.0
    """Draw y from the most likely tokens that together hold this much probability (top-p)."""
    target: str = "quality"
    """quality: a scalar head learns p(token | rest); likelihood: the vocabulary head learns the whole distribution."""

    def build_loss(self) -> PrismLoss:
        return PrismLoss(
            k=self.k,
            rounds=self.rounds,
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
    """final-layer (the paper's for Sudoku), block (OpenWebText), projection (LLaDA), odds (a block read through the backbone's
    vocabulary; ours, for --tune_backbone false --regulariser 0), or none with --target likelihood."""
    head_heads: int = 8
    """Attention heads of --head block and odds."""
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
    lora_lr: float | None = None
    """Learning rate of LoRA, if different."""
    head_lr: float | None = None
    """Learning rate of the quality head, if different."""
    base: str = "auto"
    """How the backbone's weights are kept: auto (float32 if they learn, else as they are stored), float32, bfloat16, or 4bit
    (NF4; frozen, on an NVIDIA GPU, with bitsandbytes). What learns beside a frozen backbone is always float32."""

    @property
    def backbone_learns(self) -> bool:
        return self.tune_backbone and self.lora_rank is None

    @property
    def in_four_bits(self) -> bool:
        return self.base == "4bit"

    def base_dtype(self) -> torch.dtype | None:
        kept = {"float32": torch.float32, "bfloat16": torch.bfloat16, "4bit": torch.bfloat16}
        found = pick(self.base, {"auto": torch.float32 if self.backbone_learns else None, **kept}, "base")
        if self.backbone_learns and found != torch.float32:
            raise ValueError(
                f"--base {self.base}: a backbone that learns is kept in float32, or small steps would be rounded away; "
                "use --base auto, or freeze it with --tune_backbone false or --lora_rank."
            )
        return found

    def build_head(self, hidden_size: int) -> HeadConfig | None:
        heads: dict[str, Callable[[], HeadConfig | None]] = {
            "final-layer": lambda: FinalLayerConfig(hidden_size),
            "block": lambda: BlockConfig(hidden_size, heads=self.head_heads),
            "projection": lambda: ProjectionConfig(hidden_size),
            "odds": lambda: OddsConfig(hidden_size, heads=self.head_heads),
            "none": lambda: None,
        }
        return pick(self.head, heads, "head")()

    def build_lora(self) -> Lora | None:
        if self.lora_rank is None:
            return None
        alpha = float(self.lora_rank) if self.lora_alpha is None else self.lora_alpha
        return Lora(self.lora_rank, alpha, self.lora_targets, self.lora_dropout)


@dataclass(frozen=True, kw_only=True)
class ConversationOptions:
    """Conversations to learn from, and how they become rows."""

    dataset: str | None = None
    """Instead of --data, a dataset of conversations of the Hugging Face hub, or a folder in one of its layouts (needs the extra
    `text`)."""
    dataset_config: str | None = None
    """Its configuration, where it has several."""
    dataset_split: str = "train"
    """Which of its splits to read; what is held out is drawn from it."""
    prompt_field: str = "prompt"
    """Conversations: where a row without messages keeps its prompt."""
    completion_field: str = "completion"
    """Conversations: where such a row keeps its completion."""
    padding: str = "eos"
    """What fills rows after the answer. eos: end-of-text tokens, seen and learned like any other (LLaDA's); unseen: nothing."""
    too_long: str = "drop"
    """Conversations longer than --length: drop them, or truncate their answer."""

    def check_dataset(self, data: str | None) -> None:
        """Whether there is one thing to learn from, `data` being the other that was named, and nothing is said of a second."""
        if self.dataset is not None and data is not None:
            raise ValueError(
                f"--data {data} and --dataset {self.dataset} are two things to learn from; give one of them."
            )
        if self.dataset is None and (self.dataset_config is not None or self.dataset_split != "train"):
            raise ValueError(
                "--dataset_config and --dataset_split are of a --dataset; name that too, or leave them out."
            )

    def holds_conversations(self, data: str) -> bool:
        return self.dataset is not None or holds_json_lines(Path(data))

    def build_padding(self) -> Padding:
        return pick(self.padding, PADDINGS, "padding")

    def build_too_long(self) -> TooLong:
        return pick(self.too_long, TOO_LONG, "way with long conversations (--too_long)")

    def read_conversations(self, data: str) -> Iterator[Conversation]:
        if self.dataset is not None:
            rows = dataset_rows(self.dataset, self.dataset_config, self.dataset_split)
        elif not Path(data).is_file():
            raise ValueError(f"{data}: no such file; expected JSON lines of conversations.")
        else:
            rows = json_lines(Path(data))
        return conversations(rows, prompt=self.prompt_field, completion=self.completion_field)
