"""Muon (Jordan et al. 2024): momentum whose every singular value is set to about 1, for the matrices of a transformer.

    M ← μ·M + (1 - μ)·G,   W ← W - lr · 0.2·√max(rows, columns) · orthogonal((1 - μ)·G + μ·M)

0.2·√max(…) gives an update the root mean square that AdamW's has (Liu et al. 2025), so that its learning rates carry over.
Matrices of one shape go through the iteration together: a transformer has many matrices and few shapes. (torch.optim.Muon takes
them one at a time, and only in bfloat16.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

MOMENTUM = 0.95
ITERATION = (3.4445, -4.7750, 2.0315)
"""a, b, c of X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ: five rounds bring singular values in (0, 1] to about 0.7–1.2."""


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices: Mapping[Tensor, int], **group: Any) -> None:
        """`matrices` says how many matrices each weight stacks, along its rows: 3 for queries, keys and values in one."""
        super().__init__([{"params": list(matrices), **group}], {"lr": 0.0})
        self.stacked = dict(matrices)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[torch.Size, int], list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    alike.setdefault((weight.shape, self.stacked[weight]), []).append(weight)
            for (shape, stacked), weights in alike.items():
                matrices = self._momentum(weights).view(-1, shape[0] // stacked, shape[1])
                update = orthogonal(matrices).mul_(0.2 * math.sqrt(max(matrices.shape[1:]))).to(weights[0].dtype)
                torch._foreach_add_(weights, list(update.view(-1, *shape).unbind()), alpha=-group["lr"])

    def _momentum(self, weights: list[Tensor]) -> Float[Tensor, "n r c"]:
        """Nesterov's: the gradient and its running average, mixed once more."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        averages = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - MOMENTUM)
        return torch.stack(gradients).lerp(torch.stack(averages), MOMENTUM)


def orthogonal(matrices: Float[Tensor, "n r c"], rounds: int = 5) -> Float[Tensor, "n r c"]:
    """U·Vᵀ of every matrix U·S·Vᵀ, roughly, by matrix products alone; in bfloat16 on a GPU."""
    a, b, c = ITERATION
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if x.shape[1] > x.shape[2] else x  # x·xᵀ the small way round
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if matrices.shape[1] > matrices.shape[2] else x).to(matrices.dtype)
