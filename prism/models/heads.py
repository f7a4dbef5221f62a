"""Quality heads: hidden states in, one logit per position out, σ(logit) ≈ p(x^i = y^i | y ⊕ m_i) (PRISM, Section 3.2).

A head knows the hidden size and nothing else of its backbone, so any head fits any backbone. The paper's three start at quality
1/2; two are made of MDLM's layers and have the paper's parameter counts, their adaLN driven by a constant, as it is in the
paper, where the time conditioning is off.

The fourth is ours. A scalar that learns right from wrong need not tell a thousandth from a millionth, and the least likely
tokens of all are those to take back. A vocabulary can tell them apart since pretraining. So the odds head has hidden states of
its own, the backbone's vocabulary reads them, and the log-odds it gives the token that stands there are the quality, up to a
score that is learned beside them. It starts at the backbone's own probability of its token, P2-self's score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from prism.models.dit import DiTBlock, FinalLayer, Places, Rotary, check_heads, gathered, zero_init
from prism.state import Hidden, Mask, Tokens


class Verdict(NamedTuple):
    """What a head says of tokens, which it cannot see itself."""

    score: Float[Tensor, "b m"]
    states: Float[Tensor, "b m d"] | None = None
    """Hidden states of its own: the log-odds of each token, read from them through the backbone's vocabulary, are added."""


class QualityHead(nn.Module, ABC):
    looks_around: bool = True
    """Whether the quality of a token depends on other hidden states than its own."""
    reads_vocabulary: bool = False
    """Whether it has hidden states of its own for the backbone's vocabulary."""

    @abstractmethod
    def forward(self, hidden: Hidden, attend: Mask | None = None, places: Places | None = None) -> Verdict:
        """Of all positions or at a few `places` of every row."""


@dataclass(frozen=True)
class Calibration:
    """What makes a probability of a head's logits: scale · logit + shift + slope · (the share of the sequence that is masked).

    All tokens of a sequence share the last two, and the first is positive: who stands below whom in it stays as it was.
    """

    scale: float
    shift: float
    slope: float

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale={self.scale} must be above 0, or the best tokens would become the worst.")

    def __call__(self, logits: Float[Tensor, "*n"], masked: Float[Tensor, "*m"]) -> Float[Tensor, "*n"]:
        """Logits of sequences of which that share is masked."""
        return self.scale * logits + (self.shift + self.slope * masked)


def masked_share(tokens: Tokens, mask_id: int, attend: Mask | None = None) -> Float[Tensor, "b 1"]:
    """Of every sequence, its padding not counted."""
    length = tokens.shape[1] if attend is None else attend.sum(1, keepdim=True).clamp_min(1)
    return (tokens == mask_id).sum(1, keepdim=True) / length


@dataclass(frozen=True)
class HeadConfig(ABC):
    """A head as data: what `prism_config.json` stores and `build` turns into a module."""

    hidden_size: int

    @abstractmethod
    def build(self) -> QualityHead: ...


@dataclass(frozen=True)
class FinalLayerConfig(HeadConfig):
    """Norm, adaLN, linear: the paper's Sudoku head, 133,121 parameters at hidden size 512."""

    cond_size: int = 128

    def build(self) -> QualityHead:
        return FinalLayerHead(self)


@dataclass(frozen=True)
class BlockConfig(HeadConfig):
    """One transformer block before the final layer: the paper's OpenWebText head, 7,877,377 parameters at 768."""

    heads: int = 12
    cond_size: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_heads(self.hidden_size, self.heads)

    def build(self) -> QualityHead:
        return BlockHead(self)


@dataclass(frozen=True)
class OddsConfig(BlockConfig):
    """One transformer block, read through the backbone's vocabulary. It does not need the backbone to learn."""

    def build(self) -> QualityHead:
        return OddsHead(self)


@dataclass(frozen=True)
class ProjectionConfig(HeadConfig):
    """LayerNorm, Linear, GELU, Linear: the paper's LLaDA head, 16,793,601 parameters at 4096."""

    def build(self) -> QualityHead:
        return ProjectionHead(self)


ALL_HEADS: tuple[type[HeadConfig], ...] = (FinalLayerConfig, BlockConfig, ProjectionConfig, OddsConfig)


class FinalLayerHead(QualityHead):
    looks_around = False

    def __init__(self, config: FinalLayerConfig) -> None:
        super().__init__()
        self.config = config
        self.output_layer = FinalLayer(config.hidden_size, 1, config.cond_size)
        self.register_buffer("condition", _constant(config.cond_size), persistent=False)
        self.condition: Tensor

    def forward(self, hidden: Hidden, attend: Mask | None = None, places: Places | None = None) -> Verdict:
        hidden = hidden if places is None else gathered(hidden, places)
        return Verdict(self.output_layer.linear(self.output_layer.features(hidden, self.condition))[..., 0])


class BlockHead(QualityHead):
    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.block = DiTBlock(config.hidden_size, config.heads, config.cond_size, config.dropout)
        self.rotary = Rotary(config.hidden_size // config.heads)
        self.output_layer = FinalLayer(config.hidden_size, 1, config.cond_size)
        self.register_buffer("condition", _constant(config.cond_size), persistent=False)
        self.condition: Tensor

    def forward(self, hidden: Hidden, attend: Mask | None = None, places: Places | None = None) -> Verdict:
        given = hidden, self.condition, self.rotary(hidden.shape[1]), attend
        mixed = self.block(*given) if places is None else self.block.at(places, *given)
        score = self.output_layer.linear(self.output_layer.features(mixed, self.condition))[..., 0]
        return Verdict(score, mixed if self.reads_vocabulary else None)


class OddsHead(BlockHead):
    reads_vocabulary = True


class ProjectionHead(QualityHead):
    looks_around = False

    def __init__(self, config: ProjectionConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.LayerNorm(config.hidden_size)
        self.project = nn.Linear(config.hidden_size, config.hidden_size)
        self.score = zero_init(nn.Linear(config.hidden_size, 1))

    def forward(self, hidden: Hidden, attend: Mask | None = None, places: Places | None = None) -> Verdict:
        hidden = hidden if places is None else gathered(hidden, places)
        return Verdict(self.score(F.gelu(self.project(self.norm(hidden))))[..., 0])


def _constant(size: int) -> Tensor:
    """A fixed condition of length 1: the modulation it drives is a learned constant, as in the paper."""
    return torch.full((1, size), size**-0.5)
