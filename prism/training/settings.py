"""How to train: one dataclass, and the shapes a learning rate may take."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum


class Rate(ABC):
    """The learning rate after warm-up, as a share of its full height."""

    @abstractmethod
    def share(self, progress: float) -> float:
        """At `progress` of the way from the end of the warm-up (0) to the end of the run (1)."""


@dataclass(frozen=True)
class Constant(Rate):
    def share(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine(Rate):
    """Half a cosine wave from 1 down to `floor`."""

    floor: float = 0.0

    def share(self, progress: float) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class CosineCycles(Rate):
    """`cycles` whole waves, down and smoothly up again: what PRISM's LLaDA run used with 5."""

    cycles: float = 5.0

    def share(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(2 * math.pi * self.cycles * progress))


class Precision(Enum):
    FP32 = "everything in float32"
    BF16 = "weights in float32, matrix products in bfloat16 (autocast)"


@dataclass(frozen=True)
class Optimisation:
    """How to train. The defaults are MDLM's."""

    steps: int
    batch: int = 512
    """Rows per optimiser step, over all processes."""
    accumulate: int = 1
    """Micro-batches each process splits its share of a step into."""
    lr: float = 3e-4
    backbone_lr: float | None = None
    """`lr` where left out, as for the next two."""
    lora_lr: float | None = None
    head_lr: float | None = None
    muon_lr: float | None = None
    """Train the matrices of the backbone's blocks with `Muon` at this rate; None leaves everything to AdamW."""
    weight_decay: float = 0.0
    """Of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = 1.0
    """Largest norm of the gradient."""
    warmup: int = 0
    """Steps over which the learning rate rises linearly."""
    rate: Rate = field(default_factory=Constant)
    ema: float | None = 0.9999
    """Decay of the running average of all trained weights, backbone and head together; None keeps none."""
    precision: Precision = Precision.FP32
    compile: bool = False
    recompute: bool = False
    """Compute the backbone's blocks anew in the backward pass instead of keeping what they computed: a third more time for a
    fraction of the memory."""
    seed: int = 0
    log_every: int = 50
    evaluate_every: int = 1000
    checkpoint_every: int = 1000
    keep: int = 2
    """Checkpoints left on disk."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "log_every", "evaluate_every", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("lr", "backbone_lr", "lora_lr", "head_lr", "muon_lr", "clip"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema} must lie in [0, 1); leave it None for no average.")
        if not 0 <= self.warmup <= self.steps:
            raise ValueError(f"warmup={self.warmup} must lie in 0..steps={self.steps}.")

    def lr_share(self, step: int) -> float:
        """The share of its full height that every learning rate has at `step`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.rate.share((step - self.warmup) / max(1, self.steps - self.warmup))

    def lr_of(self, group: str) -> float:
        own = {"backbone": self.backbone_lr, "lora": self.lora_lr, "head": self.head_lr, "muon": self.muon_lr}[group]
        return self.lr if own is None else own

    def due(self, done: int, every: int) -> bool:
        """Whether something done `every` so many steps is due after `done` of them; at the end everything is."""
        return done % every == 0 or done == self.steps


FREE = ("accumulate", "compile", "recompute", "log_every", "evaluate_every", "checkpoint_every", "keep")
"""Settings a resumed run may change: they say how it runs, not where it goes."""
