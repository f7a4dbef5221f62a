"""The contract a pretrained masked diffusion model has to meet. Models are made to obey it by one thin adapter each; the
sampler and the losses never learn which model they drive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.state import Hidden, Mask, Prediction, Tokens


class Field(Enum):
    """Where the prediction of token i is read."""

    SAME = 0
    """At position i (MDLM, LLaDA, BERT)."""
    SHIFTED = 1
    """At position i - 1, as the causal model it was made from does (Dream, DiffuCoder)."""


@dataclass(frozen=True)
class Facts:
    """What no hub config states in full and every sampler must know."""

    mask_id: int
    vocab_size: int
    """Width of the logits, the mask included if it has a row."""
    hidden_size: int
    field: Field = Field.SAME
    pad_id: int | None = None
    """Token written into padding, which is never attended to; None where any token will do."""
    suppressed: tuple[int, ...] = ()
    """Ids that must never be drawn beside the mask (rows of a padded vocabulary the tokenizer does not know)."""

    def __post_init__(self) -> None:
        if not self.mask_id >= 0:
            raise ValueError(f"mask_id={self.mask_id} must be 0 or more.")
        if self.pad_id is not None and not 0 <= self.pad_id < self.vocab_size:
            raise ValueError(f"pad_id={self.pad_id} is outside the vocabulary 0..{self.vocab_size - 1}.")


class Cache:
    """What a forward pass leaves behind for the next: every layer's keys and values, turned to their positions already, and the
    last hidden states. With `positions`, the same until all are computed again, only those are computed anew, against what is
    kept of all others."""

    def __init__(self) -> None:
        self.positions: Int[Tensor, "b w"] | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._hidden: Hidden | None = None

    def layer(
        self, number: int, keys: Float[Tensor, "b g w s"], values: Float[Tensor, "b g w s"]
    ) -> tuple[Float[Tensor, "b g l s"], Float[Tensor, "b g l s"]]:
        """All keys and values of a layer, the given ones in their places."""
        if self.positions is None:
            self._layers[number] = keys, values
        else:
            index = self.positions[:, None, :, None]
            for kept, new in zip(self._layers[number], (keys, values), strict=True):
                kept.scatter_(2, index.expand_as(new), new)
        return self._layers[number]

    def hidden(self, new: Float[Tensor, "b w d"]) -> Hidden:
        """The hidden states of all positions, the given ones in their places; what was handed out before does not change."""
        if self.positions is None or self._hidden is None:
            self._hidden = new
            return new
        return self._hidden.scatter(1, self.positions[..., None].expand_as(new), new)


class Backbone(nn.Module, ABC):
    """A masked diffusion model without an opinion of its own tokens. It sets `facts` once it is an `nn.Module`."""

    forwards: int = 1
    forbidden: Int[Tensor, " f"]
    """Ids no policy may draw: the mask (where the logits have a row for it) and what the model suppresses."""
    packed_from: str | None = None
    """The fingerprint of the weights these were packed from, if they were (`in_four_bits`): it can no longer be taken."""

    @property
    def facts(self) -> Facts:
        return self._facts

    @facts.setter
    def facts(self, facts: Facts) -> None:
        self._facts = facts
        ids = [facts.mask_id] if facts.mask_id < facts.vocab_size else []
        # kept where the weights are: sent to a GPU at every step, it would make the host wait
        found = torch.tensor([*ids, *facts.suppressed], dtype=torch.long, device="cpu")
        self.register_buffer("forbidden", found, persistent=False)

    @abstractmethod
    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        """What the output projection sees at every position. `attend` is False on padding."""

    @abstractmethod
    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """The output projection: raw logits."""

    def projection(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of `unembed` where it is a linear layer and nothing else."""
        return None

    def predict(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Prediction:
        return self.prediction(self(tokens, attend, cache), tokens, attend)

    def prediction(self, hidden: Hidden, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        """What the hidden states of a forward pass over `tokens` amount to."""
        return prediction_of(self, hidden)

    @contextmanager
    def settled(self) -> Iterator[list[Tensor]]:
        """Inside, weights that are made of others are made once and not at every forward pass: the given ones, which gather the
        gradients of any number of backward passes; at the end these travel on, to what they are made of."""
        yield []

    def matrices(self) -> dict[Tensor, int]:
        """The weights `Muon` may train, each with the number of matrices stacked in it: the linear layers of the blocks."""
        lists = [module for module in self.modules() if isinstance(module, nn.ModuleList)]
        layers = [layer for blocks in lists for layer in blocks.modules() if isinstance(layer, nn.Linear)]
        return dict.fromkeys((layer.weight for layer in layers), 1)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def prediction_of(backbone: Backbone, hidden: Hidden, field: Field | None = None) -> Prediction:
    """The lazy prediction over hidden states of `backbone`, without a quality; `field` is theirs, if not its own."""
    return Prediction(
        hidden,
        backbone.unembed,
        projection=backbone.projection(),
        vocabulary=backbone.facts.vocab_size,
        shift=(field or backbone.facts.field).value,
        forbidden=backbone.forbidden if len(backbone.forbidden) else None,
    )


def log_odds(backbone: Backbone, states: Float[Tensor, "b m d"], tokens: Int[Tensor, "b m"]) -> Float[Tensor, "b m"]:
    """log p/(1 - p) of each token, where p is what the vocabulary of `backbone` reads from the state at its own position; at a
    mask, which is no token, as low as it can be."""
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    reading = prediction_of(backbone, states, Field.SAME).read(everywhere, tokens.numel())
    log_p = reading.of(tokens).view(tokens.shape).clamp(-60.0, -1e-5)
    return log_p - (-torch.expm1(log_p)).log()
