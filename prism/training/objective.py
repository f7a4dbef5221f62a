"""What a training step differentiates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.losses.loss import TrainingLoss
from prism.losses.masking import Batch
from prism.noise import Noise
from prism.training.ema import Ema
from prism.training.settings import Precision


class Objective(nn.Module):
    """Model and loss as one module: all the forward passes of a loss are one forward pass to DDP and FSDP."""

    def __init__(self, model: Any, loss: TrainingLoss, precision: Precision) -> None:
        super().__init__()
        self.model, self.loss, self.precision = model, loss, precision
        self.settled: list[Tensor] = []
        """While it learns: what gathers gradients beside the parameters (`Backbone.settled`)."""

    def forward(self, batch: Batch, noise: Noise) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        with self._autocast(batch.tokens.device):
            loss = self.loss(self.model, batch, self.model.facts.mask_id, noise)
        return loss.total, loss.parts

    def learn(
        self, batch: Batch, noise: Noise, backward: Callable[[Float[Tensor, ""]], object]
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """The same and the way back, after every turn of the loss: memory for one of them is enough."""
        turns = self.loss.turns(self.model, batch, self.model.facts.mask_id, noise)
        total, parts = torch.zeros((), device=batch.tokens.device), dict[str, Float[Tensor, ""]]()
        with ExitStack() as stack:
            with self._autocast(batch.tokens.device):
                self.settled = stack.enter_context(self.model.settled())
            while True:
                with self._autocast(batch.tokens.device):
                    turn = next(turns, None)
                if turn is None:
                    return total, parts
                if turn.total.requires_grad:  # the MDM loss of a frozen backbone is told, and nothing learns from it
                    backward(turn.total)
                total, parts = total + turn.total.detach(), parts | turn.parts

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision is Precision.BF16)

    @contextmanager
    def evaluating(self, ema: Ema | None, shared: Any) -> Iterator[None]:
        """The model as it will be used: averaged weights, no dropout; whole where it was sharded, and not compiled, since
        evaluation brings shapes of its own."""
        learning = self.model.training
        self.model.eval()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            if ema is not None:
                stack.enter_context(ema.applied())
            if hasattr(shared, "unshard"):
                shared.unshard()
                stack.callback(shared.reshard)
            stack.enter_context(self._autocast(self.model.device))
            yield
        self.model.train(learning)
