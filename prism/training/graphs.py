"""A step recorded once as a CUDA graph and replayed: a small model spends most of its time launching kernels one by one."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.losses.masking import Batch
from prism.noise import Noise
from prism.state import SMALL_VOCABULARY

WARM_UP = 3  # rounds in which kernels are compiled and chosen, before the recording


def can_be_recorded(vocabulary: int, device: torch.device) -> bool:
    """Only what never asks the device for a number: with a large vocabulary the loss must know how many tokens are masked."""
    return device.type == "cuda" and vocabulary <= SMALL_VOCABULARY


class Recorded:
    """The objective and its backward pass. Called like the objective; afterwards the gradients are there."""

    def __init__(self, objective: nn.Module) -> None:
        self.objective = objective
        self.weights = [weight for weight in objective.parameters() if weight.requires_grad]
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        if self.graph is None:
            self._record(batch, noise)
        assert self.graph is not None
        for kept, given in zip(_tensors(self.batch, self.noise), _tensors(batch, noise), strict=True):
            kept.copy_(given)
        self.graph.replay()
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight.grad = gradient  # the optimiser lets go of it after every step
        return self.total, self.parts

    def _record(self, batch: Batch, noise: Noise) -> None:
        tokens, maskable, attend = (
            None if part is None else part.clone() for part in (batch.tokens, batch.maskable, batch.attend)
        )
        assert tokens is not None
        self.batch, self.noise = Batch(tokens, maskable, attend), replace(noise, keys=noise.keys.clone())
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self._forget()
                self.objective(self.batch, self.noise)[0].backward()
        torch.cuda.current_stream().wait_stream(aside)
        self._forget()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            total, self.parts = self.objective(self.batch, self.noise)
            total.backward()
        self.total = total.detach()
        self.gradients = [weight.grad for weight in self.weights]

    def _forget(self) -> None:
        for weight in self.weights:
            weight.grad = None


def _tensors(batch: Batch, noise: Noise) -> list[Tensor]:
    return [part for part in (batch.tokens, batch.maskable, batch.attend, noise.keys) if part is not None]
