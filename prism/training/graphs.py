"""A training step's forward and backward pass, recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from prism.losses.masking import Batch
from prism.noise import Noise
from prism.recording import record
from prism.state import SMALL_VOCABULARY
from prism.training.objective import Objective


def can_be_recorded(vocabulary: int, device: torch.device) -> bool:
    """With a large vocabulary the loss asks the device how many tokens are masked, and the device is busy enough anyway."""
    return device.type == "cuda" and vocabulary <= SMALL_VOCABULARY


class Recorded:
    """The objective and its backward pass. Called like the objective; afterwards the gradients are there."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.weights = [weight for weight in objective.parameters() if weight.requires_grad]
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        if self.replay is None:
            self.inputs = [tensor.clone() for tensor in _tensors(batch, noise)]
            tokens, *others, keys = self.inputs
            maskable = others.pop(0) if batch.maskable is not None else None
            attend = others.pop(0) if batch.attend is not None else None
            self.batch, self.noise = Batch(tokens, maskable, attend), replace(noise, keys=keys)
            self.replay = record(self._work)
            self.gradients = [weight.grad for weight in self.weights]
        torch._foreach_copy_(self.inputs, _tensors(batch, noise))
        self.replay()
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight.grad = gradient  # the optimiser lets go of it after every step
        return self.total, self.parts

    def _work(self) -> None:
        for weight in self.weights:
            weight.grad = None
        self.total, self.parts = self.objective.learn(self.batch, self.noise, self._backward)

    def _backward(self, total: Float[Tensor, ""]) -> None:
        """Gradients of an earlier turn are added in one operation, and not weight by weight."""
        learn = (*self.weights, *self.objective.settled)
        before = [(weight, weight.grad) for weight in learn if weight.grad is not None]
        for weight, _ in before:
            weight.grad = None
        total.backward()
        both = [(gradient, weight.grad) for weight, gradient in before if weight.grad is not None]
        if both:
            torch._foreach_add_(*map(list, zip(*both, strict=True)))
        for weight, gradient in before:
            weight.grad = gradient


def _tensors(batch: Batch, noise: Noise) -> list[Tensor]:
    return [part for part in (batch.tokens, batch.maskable, batch.attend, noise.keys) if part is not None]
