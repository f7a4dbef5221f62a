"""`generate`, prepared for many batches of one shape: on a GPU the whole step, forward pass and decision, is recorded, and the
host does nothing but say "again"."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from prism.noise import Noise
from prism.recording import record
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, Plan, Progress, Sample, Windowed, turn
from prism.sampling.policy import Policy
from prism.schedule import Schedule
from prism.state import State

_ROOM = 4  # times the even pace


@dataclass(frozen=True)
class _Running:
    """Everything a step reads and writes, always in the same memory."""

    progress: Progress
    plan: Plan
    noise: Noise


class Prepared:
    """A sampler to be called again and again: `prepared(state, noise)` is `generate(model, state, policy, noise=noise, …)`.

    A batch of another shape is prepared for anew, which costs four steps. `compiled` makes one compiled piece of the step
    first: fewer and larger kernels, for a minute of compiling.

    On a GPU, and in a compiled piece, nothing waits for the device inside a run. So how many tokens a step writes cannot be
    asked; there is room for several times the even pace, and a run that needed more, which only its end tells, is done again
    with more room. `waits` says whether to ask after all; if left out, that is in plain steps on a CPU.
    """

    def __init__(
        self,
        model: Denoiser,
        policy: Policy,
        *,
        steps: int,
        draw: Draw | None = None,
        schedule: Schedule | None = None,
        block: int | None = None,
        compiled: bool = False,
        waits: bool | None = None,
    ) -> None:
        if isinstance(model, Windowed):
            raise ValueError(
                f"A {type(model).__name__} decides at every step what to compute, which cannot be prepared; use generate."
            )
        self.model, self.policy, self.steps, self.draw = model, policy, steps, draw or Draw()
        self.schedule, self.block, self.compiled, self.waits = schedule or policy.schedule, block, compiled, waits
        self.room = 0
        self._running: _Running | None = None
        self._again: Callable[[], None] = lambda: None

    def __call__(self, state: State, noise: Noise) -> Sample:
        plan = Plan.of(state, self.policy, self.steps, self.schedule, self.block)
        asked = _Running(Progress.before(state), plan, noise)
        if self._running is None or _shapes(self._running) != _shapes(asked):
            self.room = _ROOM * -(-int(plan.lengths.sum()) // self.steps) + len(plan.lengths)
            self._prepare(asked)
        done = self._run(asked)
        while not bool(done.had_room):
            self.room *= 4
            self._prepare(asked)
            done = self._run(asked)
        results = (done.state.tokens, done.state.confidence, done.forwards, done.remasks, done.flipflops)
        return Sample(*(tensor.clone() for tensor in results))

    def _run(self, asked: _Running) -> Progress:
        assert self._running is not None
        _write(self._running, asked)
        running, over = self._running, _Lagging()
        for _ in range(asked.plan.longest if bool(asked.plan.lengths.any()) else 0):
            self._again()
            if asked.plan.may_end_early and over(running.plan.finished(running.progress.state)):
                break
        return self._running.progress

    def _prepare(self, asked: _Running) -> None:
        self._running = _copied(asked)
        on_gpu = asked.noise.keys.is_cuda
        waits = not (on_gpu or self.compiled) if self.waits is None else self.waits
        room = None if waits else self.room

        def again() -> None:
            running = self._running
            assert running is not None
            parts = (running.plan, running.noise, self.draw, running.progress)
            _, done = turn(self.model, self.policy, *parts, room=room)
            _write(running.progress, done)

        work = torch.compile(_of_its_own(again), fullgraph=True, dynamic=False) if self.compiled else again
        self._again = _recorded(work) if on_gpu else work


class _Lagging:
    """Whether something was true two steps ago: what the host may know while the device is kept busy."""

    def __init__(self) -> None:
        self.asked: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def __call__(self, now: Bool[Tensor, ""]) -> bool:
        if not now.is_cuda:
            return bool(now)
        answer, arrived = torch.empty_like(now, device="cpu", pin_memory=True), torch.cuda.Event()
        answer.copy_(now, non_blocking=True)
        arrived.record()
        self.asked.append((arrived, answer))
        if len(self.asked) <= 2:
            return False
        arrived, answer = self.asked.popleft()
        arrived.synchronize()
        return bool(answer)


def _recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Autocast keeps the weights it casts until its block ends, and a recording may be replayed after that: it casts anew."""
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return record(work)
    finally:
        torch.set_autocast_cache_enabled(caching)


def _of_its_own(work: Callable[[], None]) -> Callable[[], None]:
    """torch.compile remembers what it compiled by code object and gives up after eight; every sampler gets one of its own."""
    assert isinstance(work, FunctionType)
    own = FunctionType(work.__code__.replace(), work.__globals__, work.__name__, work.__defaults__, work.__closure__)
    return cast("Callable[[], None]", own)


def _tensors(thing: object) -> Iterator[Tensor]:
    """The tensors of a dataclass and of the dataclasses it holds, in order."""
    for field in fields(thing):  # type: ignore[arg-type]
        value = getattr(thing, field.name)
        if isinstance(value, Tensor):
            yield value
        elif is_dataclass(value):
            yield from _tensors(value)


def _shapes(running: _Running) -> list[torch.Size]:
    return [tensor.shape for tensor in _tensors(running)]


def _write(into: object, source: object) -> None:
    for old, new in zip(_tensors(into), _tensors(source), strict=True):
        old.copy_(new)


def _copied(running: _Running) -> _Running:
    """The same in memory of its own."""

    def copy(thing: object) -> object:
        parts = {field.name: getattr(thing, field.name) for field in fields(thing)}  # type: ignore[arg-type]
        own = {
            name: part.clone() if isinstance(part, Tensor) else copy(part) if is_dataclass(part) else part
            for name, part in parts.items()
        }
        return replace(thing, **own)  # type: ignore[type-var]

    copied = copy(running)
    assert isinstance(copied, _Running)
    return copied
