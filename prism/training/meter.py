"""What a run tells of itself while it goes on, and what stops it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from prism.training.folder import RunFolder
from prism.training.sharding import local, whole

if TYPE_CHECKING:
    import accelerate
    import rich.progress


class TrainingError(RuntimeError):
    """A run that cannot go on."""


@dataclass(frozen=True)
class Share:
    """Which rows of the run are this process's."""

    batch: int
    accumulate: int
    processes: int
    process: int

    def __post_init__(self) -> None:
        if self.batch % (self.processes * self.accumulate):
            raise ValueError(
                f"batch={self.batch} must be a multiple of {self.processes} processes · accumulate={self.accumulate}."
            )

    def rows(self, step: int, micro: int) -> range:
        size = self.batch // (self.processes * self.accumulate)
        first = step * self.batch + (self.process * self.accumulate + micro) * size
        return range(first, first + size)


class Meter:
    """Losses and gradient norms since they were last read. They stay on the device, so that the host need not wait for it."""

    def __init__(self, accelerator: accelerate.Accelerator, share: Share, run: RunFolder, step: int) -> None:
        self.accelerator, self.share, self.run = accelerator, share, run
        self._restart(step)

    def _restart(self, step: int) -> None:
        self.first = step
        self.names: list[str] = []
        self.losses: list[Float[Tensor, " f"]] = []
        self.norms: list[Float[Tensor, ""]] = []
        self.clock = time.perf_counter()

    def add(self, total: Float[Tensor, ""], parts: Mapping[str, Float[Tensor, ""]]) -> None:
        self.names = ["loss", *parts]
        self.losses.append(torch.stack([total.detach(), *parts.values()]).float())

    def add_norm(self, norm: Float[Tensor, ""]) -> None:
        self.norms.append(whole(norm))

    def read(self) -> dict[str, float]:
        """Means over the rows of all processes since the last call, and the pace."""
        losses, norms = self.check()
        figures = dict(zip(self.names, losses.double().mean((0, 1, 2)).tolist(), strict=True))
        figures["gradient_norm"] = float(norms.double().mean())
        figures["rows_per_second"] = len(norms) * self.share.batch / (time.perf_counter() - self.clock)
        self._restart(self.first + len(norms))
        return figures

    def check(self) -> tuple[Float[Tensor, "p n a f"], Float[Tensor, " n"]]:
        """All that was not yet read, of every process, if all of it is finite."""
        if not self.norms:
            return torch.empty(self.share.processes, 0, self.share.accumulate, len(self.names)), torch.empty(0)
        losses = self.accelerator.gather(torch.stack(self.losses)).cpu()
        losses = losses.view(self.share.processes, -1, self.share.accumulate, len(self.names))
        norms = torch.stack(self.norms).cpu()
        bad = ~losses[..., 0].isfinite()
        bad_steps = bad.any(2).any(0) | ~norms.isfinite()
        if bool(bad_steps.any()):
            step = int(bad_steps.int().argmax())
            process, micro = divmod(int(bad[:, step].flatten().int().argmax()), self.share.accumulate)
            rows = replace(self.share, process=process).rows(self.first + step, micro)
            raise TrainingError(
                f"Step {self.first + step + 1}: the loss is {losses[process, step, micro, 0]:g} and the gradient's norm "
                f"{norms[step]:g}, met on rows {rows.start} to {rows.stop - 1}, which are examples.batch({rows}, …); "
                f"{self.run.advice()}"
            )
        return losses, norms

    def check_weights(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Finite gradients do not quite promise finite weights."""
        finite = torch.stack([local(weight.detach()).isfinite().all() for weight in weights.values()])
        if not bool(self.accelerator.gather(finite).all()):
            raise TrainingError(f"Step {step}: some weights are no longer finite; {self.run.advice()}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that is not training."""
        before = time.perf_counter()
        yield
        self.clock += time.perf_counter() - before


def progress_bar(steps: int, begin: int, *, shown: bool) -> rich.progress.Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        disable=not shown,
    )
    bar.add_task("training", total=steps, completed=begin, figures="")
    return bar


def show(bar: rich.progress.Progress, figures: Mapping[str, float]) -> None:
    """On the bar, which shows none before the first are there."""
    bar.update(bar.task_ids[0], figures=f"loss {figures['loss']:.4f} · {figures['rows_per_second']:,.0f} rows/s ·")
