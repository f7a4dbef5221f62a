"""`generate`, prepared for many batches of one shape: on a GPU the whole step, forward pass and decision, is recorded, and the
host does nothing but say "again". With a cache there are two recordings, of a step that computes everything and of one that
computes a part, and the host says which."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import TypeVar, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from prism.noise import Noise
from prism.recording import record
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, Keeping, Plan, Progress, Sample, Windowed, turn
from prism.sampling.policy import Policy
from prism.schedule import Schedule
from prism.state import Hidden, Mask, Prediction, State, Tokens

_ROOM = 4  # times the even pace
_PATIENCE = 16  # steps between questions whether there is room
Work = TypeVar("Work", bound=Callable[..., None])


@dataclass(frozen=True)
class _Running:
    """Everything a step reads and writes, always in the same memory."""

    progress: Progress
    plan: Plan
    noise: Noise


class Prepared:
    """A sampler to be called again and again: `prepared(state, noise)` is `generate(model, state, policy, noise=noise, …)`.

    A batch of another shape is prepared for anew, which costs four steps. `compiled` makes one compiled piece of the step
    first: fewer and larger kernels, for a minute of compiling. With a cache, which large models have, it is the decision alone
    that is compiled, and the model however it is (`model.compile`).

    On a GPU, and in a compiled piece, nothing waits for the device inside a run. So how many tokens a step writes cannot be
    asked; there is room for several times the even pace, and a run that needs more, which is found out some steps late, begins
    again with more room. `waits` says whether to ask after all; if left out, that is in plain steps on a CPU.
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
        if not self.serves(model):
            raise ValueError(
                f"This {type(model).__name__} computes more at one step and less at another, which cannot be prepared; use "
                "generate, or a cache that keeps what follows the block too."
            )
        self.model, self.policy, self.steps, self.draw = model, policy, steps, draw or Draw()
        self.schedule, self.block, self.compiled, self.waits = schedule or policy.schedule, block, compiled, waits
        self.room = 0
        self.width = 0
        """With a cache: positions a step computes of a row, unless it computes all."""
        self._running: _Running | None = None
        self._again: Callable[[], None] = lambda: None
        self._anew: Callable[[], None] = lambda: None
        """With a cache: the step that computes everything, where `_again` computes a part."""
        self._said = torch.zeros(2, dtype=torch.bool)
        """With a cache, after a step: whether what is kept is outdated, and whether the run is over."""

    @staticmethod
    def serves(model: Denoiser) -> bool:
        """Whether every step of the model, or of each of its two kinds, is the same work; else `generate` has to do."""
        return not isinstance(model, Windowed) or (isinstance(model, Keeping) and model.steady)

    def __call__(self, state: State, noise: Noise) -> Sample:
        asked = self._ready(state, noise)
        while not bool((done := self._to_its_end(asked)).had_room):
            self._make_room(asked)
        results = (done.state.tokens, done.state.confidence, done.forwards, done.remasks, done.flipflops)
        return Sample(*(tensor.clone() for tensor in results))

    def each(self, state: State, noise: Noise) -> Iterator[Progress]:
        """Where the run stands after every step, for those who end it when they have seen enough: to be read before the next
        one overwrites it. Whoever looks waits for the device."""
        asked, told = self._ready(state, noise), 0
        while True:
            for taken, done in enumerate(self._run(asked), start=1):
                if not bool(done.had_room):
                    break
                if taken > told:  # a run that begins again with more room comes by where it has been
                    told = taken
                    yield done
            else:
                return
            self._make_room(asked)

    def _ready(self, state: State, noise: Noise) -> _Running:
        plan = Plan.of(state, self.policy, self.steps, self.schedule, self.block)
        asked = _Running(Progress.before(state), plan, noise)
        width = self._width(asked)
        if self._running is None or _shapes(self._running) != _shapes(asked) or width > self.width:
            self.width = width
            expected = _ROOM * -(-int(plan.lengths.sum()) // self.steps)
            # counts may be random: four standard deviations more
            self.room = expected + 4 * math.isqrt(expected) + len(plan.lengths)
            self._prepare(asked)
        return asked

    def _width(self, asked: _Running) -> int:
        if not isinstance(self.model, Keeping):
            return 0
        state = asked.progress.state
        return min(self.model.width(asked.plan.blocks(~state.frozen), self.policy.reopens), state.tokens.shape[1])

    def _make_room(self, asked: _Running) -> None:
        self.room *= 4
        self._prepare(asked)

    def _to_its_end(self, asked: _Running) -> Progress:
        in_vain = _Lagging()
        for taken, done in enumerate(self._run(asked)):
            if taken % _PATIENCE == 0 and in_vain(~done.had_room):
                break
        assert self._running is not None
        return self._running.progress

    def _run(self, asked: _Running) -> Iterator[Progress]:
        """All steps, after each of them where the run stands."""
        assert self._running is not None
        _write(self._running, asked)
        plan, running = asked.plan, self._running
        longest = plan.longest - int(asked.progress.state.step.min()) if bool(plan.lengths.any()) else 0
        if isinstance(self.model, Keeping):
            yield from self._run_keeping(self.model.refresh, plan, longest)
            return
        over = _Lagging()
        for _ in range(longest):
            self._again()
            yield running.progress
            if plan.may_end_early and over(running.plan.finished(running.progress.state)):
                break

    def _run_keeping(self, refresh: int | None, plan: Plan, longest: int) -> Iterator[Progress]:
        """The host asks after every step which one comes next: a few microseconds of milliseconds."""
        assert self._running is not None
        outdated, age = True, 0
        for _ in range(longest):
            if outdated or age == refresh:
                self._anew()
                age = 0
            else:
                self._again()
            age += 1
            yield self._running.progress
            outdated, over = self._said.tolist()
            if over and plan.may_end_early:
                break

    def _prepare(self, asked: _Running) -> None:
        self._running = _copied(asked)
        on_gpu = asked.noise.keys.is_cuda
        waits = not (on_gpu or self.compiled) if self.waits is None else self.waits
        room = None if waits else self.room
        if isinstance(self.model, Keeping):
            self._prepare_keeping(self.model, asked, room)
            return

        def again() -> None:
            running = self._running
            assert running is not None
            parts = (running.plan, running.noise, self.draw, running.progress)
            _, done = turn(self.model, self.policy, *parts, room=room)
            _write(running.progress, done)

        work = torch.compile(_of_its_own(again), fullgraph=True, dynamic=False) if self.compiled else again
        self._again = _recorded(work) if on_gpu else work

    def _prepare_keeping(self, model: Keeping, asked: _Running, room: int | None) -> None:
        running, width = self._running, self.width
        assert running is not None
        self._said = torch.zeros(2, dtype=torch.bool, device=asked.noise.keys.device)

        def decide(hidden: Hidden) -> None:
            plan = running.plan
            given = _Given(model, hidden)
            made, done = turn(given, self.policy, plan, running.noise, self.draw, running.progress, room=room)
            was, now = made.before, replace(done.state, window=plan.window(done.state))
            outdated = model.is_outdated(was.tokens, was.editable, now.tokens, now.editable)
            self._said.copy_(torch.stack([outdated, plan.finished(now)]))
            _write(running.progress, done)

        decision = torch.compile(_of_its_own(decide), fullgraph=True, dynamic=False) if self.compiled else decide

        @torch.no_grad()
        def anew() -> None:
            state = running.progress.state
            window = running.plan.window(state) & ~state.frozen
            decision(model.everything(state.tokens, state.attend, window, width).hidden)

        @torch.no_grad()
        def again() -> None:
            state = running.progress.state
            decision(model.part(state.tokens, state.attend).hidden)

        self._anew, self._again = anew, again
        if asked.noise.keys.is_cuda:
            # In this order: what the first one keeps stays where its recording put it, and the second one reads it there.
            self._anew = _recorded(anew)
            _write(running, asked)
            self._anew()
            self._again = _recorded(again)


class _Given:
    """A model that has computed its hidden states already."""

    def __init__(self, model: Keeping, hidden: Hidden) -> None:
        self.model, self.hidden, self.forwards = model, hidden, model.forwards

    def predict(self, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        return self.model.prediction(self.hidden, tokens, attend)


class _Lagging:
    """Whether something was true the time before last: what the host may know while the device is kept busy."""

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


def _of_its_own(work: Work) -> Work:
    """torch.compile remembers what it compiled by code object and gives up after eight; every sampler gets one of its own."""
    assert isinstance(work, FunctionType)
    own = FunctionType(work.__code__.replace(), work.__globals__, work.__name__, work.__defaults__, work.__closure__)
    return cast("Work", own)


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
