"""The only loop: a generator of `Step`s that command line, evaluation, traces, server and page all consume.

Rows are independent. Each has its own seed, its own number of masks, its own blocks and its own place in time; a row of a
batch takes the steps it would take alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.policy import Law, Moment, Policy
from prism.schedule import Budget, Schedule
from prism.state import Counts, Hidden, Mask, Prediction, State, Step, Tokens

MOST_STEPS = 1_000_000  # a timetable is laid out for every step; nothing needs more than a step per token


@runtime_checkable
class Denoiser(Protocol):
    """Anything that turns tokens into a `Prediction`: a backbone, a backbone with a head, an oracle."""

    forwards: int
    """Forward passes one prediction costs."""

    def predict(self, tokens: Tokens, attend: Mask | None = None) -> Prediction: ...


@runtime_checkable
class Windowed(Denoiser, Protocol):
    """A model that may save itself work where the loop will not look."""

    def predict_window(self, tokens: Tokens, attend: Mask | None, window: Mask) -> Prediction:
        """A prediction that need only be right at the positions of `window`, and everywhere when that has new ones."""


@runtime_checkable
class Keeping(Windowed, Protocol):
    """A model that keeps what it computed of everything and computes a part anew: its two ways apart, for those who have to
    know beforehand which one will be taken."""

    refresh: int | None
    """After so many steps everything is computed, if not before."""

    steady: bool
    """Whether the parts of all blocks of one size are equally large."""

    def width(self, windows: Iterable[Mask], more: int) -> int:
        """Positions of a row that a part computes, at the most, for any of these windows and `more` positions elsewhere."""

    def everything(self, tokens: Tokens, attend: Mask | None, window: Mask, width: int) -> Prediction: ...

    def part(self, tokens: Tokens, attend: Mask | None) -> Prediction:
        """Anew at `width` positions, those of the window that everything was computed for among them."""

    def prediction(self, hidden: Hidden, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        """What the hidden states of either amount to."""

    def is_outdated(self, before: Tokens, was: Mask, tokens: Tokens, window: Mask) -> Bool[Tensor, ""]:
        """Whether everything must be computed for `tokens` and `window` once `before` and the window `was` have been seen."""


def sample(
    model: Denoiser,
    state: State,
    policy: Policy,
    *,
    steps: int,
    noise: Noise | None = None,
    draw: Draw | None = None,
    schedule: Schedule | None = None,
    block: int | None = None,
) -> Iterator[Step]:
    """Generate what is masked in `state` in `steps` forward passes, yielding every step.

    **Main arguments.** `model` predicts, `policy` decides, `steps` is the number of forward passes a row takes (counted over
    its generated tokens only; policies that set their own pace stop earlier, DFM's corrector takes more). `noise` makes the
    run reproducible: `Noise.rows(seed, count)`.

    **Other arguments.** `draw` says how tokens are drawn (default: exactly from the model's distribution). `schedule`
    defaults to the one the method was published with. `block` writes the free positions left to right in blocks of that
    size, the steps being shared equally among a row's blocks (the first ones take what does not divide).

    A state that has taken steps goes on from there: the `after` of any step, or some of its rows, continues its run.
    """
    noise = noise or Noise.rows(0, state.tokens.shape[0], device=state.tokens.device)
    if len(noise.keys) != len(state.tokens):
        raise ValueError(
            f"The noise is for {len(noise.keys)} rows and the batch has {len(state.tokens)}; "
            f"use Noise.rows(seed, {len(state.tokens)})."
        )
    plan = Plan.of(state, policy, steps, schedule or policy.schedule, block)
    progress = Progress.before(state)
    for _ in range(plan.longest - int(state.step.min()) if bool(plan.lengths.any()) else 0):
        step, progress = turn(model, policy, plan, noise, draw or Draw(), progress)
        yield step
        if plan.may_end_early and bool(plan.finished(progress.state)):
            break


@dataclass(frozen=True)
class Progress:
    """Where a run stands between two steps."""

    state: State
    forwards: Counts
    remasks: Counts
    flipflops: Counts
    erased: Tokens
    """The token last taken back at each position; -1 where none was, or another has been written since."""
    had_room: Bool[Tensor, ""]
    """Whether no step wrote more tokens than it was given room for."""

    @staticmethod
    def before(state: State) -> Progress:
        zero = torch.zeros_like(state.step)
        yes = torch.ones((), dtype=torch.bool, device=zero.device)
        return Progress(state, zero, zero, zero, torch.full_like(state.tokens, -1), yes)


@torch.no_grad()  # here and not around the generator: a suspended generator must not leave its caller in this mode
def turn(
    model: Denoiser,
    policy: Policy,
    plan: Plan,
    noise: Noise,
    draw: Draw,
    progress: Progress,
    room: int | None = None,
) -> tuple[Step, Progress]:
    """One turn of the loop. With `room`, at most that many tokens can be written, and nothing waits for the device."""
    state = replace(progress.state, window=plan.window(progress.state))
    if isinstance(model, Windowed):
        prediction = model.predict_window(state.tokens, state.attend, state.editable)
    else:
        prediction = model.predict(state.tokens, state.attend)
    now = Moment(
        state,
        prediction,
        plan.budget(state),
        noise.at(state.step),
        draw,
        None if room is None else plan.widest,
        plan.settled(state.step) & ~state.frozen if policy.reopens else None,
    )
    edit = policy.decide(now)
    after = state.after(edit, edit.draft or now.draft(edit.write, room))
    had_room = progress.had_room
    if room is not None and edit.draft is None and not prediction.is_small:
        had_room = had_room & (edit.write.sum() <= room)
    after = replace(after, step=plan.next(after))
    done = Progress(
        state=after,
        forwards=progress.forwards + model.forwards * state.editable.any(1),
        remasks=progress.remasks + edit.remask.sum(1),
        flipflops=progress.flipflops + (edit.write & (after.tokens == progress.erased)).sum(1),
        erased=torch.where(edit.remask, state.tokens, torch.where(edit.write, -1, progress.erased)),
        had_room=had_room,
    )
    return Step(state, after, edit, prediction, done.forwards, done.remasks, done.flipflops), done


@dataclass(frozen=True)
class Plan:
    """Which block a row writes at each of its steps, and from which time to which.

    Rows with the same number of blocks share a timetable: `row` tells which one is whose. Everything the loop looks up
    afterwards stands on the device.
    """

    block_of: Int[Tensor, "b l"]
    lengths: Counts
    row: Counts
    block: Int[Tensor, "k n"]
    step: Int[Tensor, "k n"]
    steps: Int[Tensor, "k n"]
    end: Int[Tensor, "k n"]
    """The step at which the next block begins."""
    t: Float[Tensor, "k n"]
    s: Float[Tensor, "k n"]
    widest: int
    """Editable positions, of all rows together, at the most."""
    schedule: Schedule
    rests_when_full: bool
    may_end_early: bool

    @staticmethod
    def of(state: State, policy: Policy, steps: int, schedule: Schedule, block: int | None) -> Plan:
        if not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"steps={steps}: sampling takes at least 1 step and at most {MOST_STEPS:,}.")
        if block is not None and block < 1:
            raise ValueError(f"block={block}: a block holds at least 1 position; leave it out to write all at once.")
        free = ~state.frozen
        lengths = free.sum(1)
        size = block or max(1, free.shape[1])
        blocks = (lengths + size - 1) // size
        kinds = blocks.unique()
        if int(kinds.max()) > steps:
            raise ValueError(
                f"steps={steps} is less than one step for each of the {int(kinds.max())} blocks of {size} positions; "
                "take more steps or larger blocks."
            )
        tables = [_timetable(policy, steps, int(kind)) for kind in kinds]
        longest = max(1, *(len(table) for table in tables))  # 1 where no row has anything to generate
        idle = (-1, 0, 1, longest, 1.0, 0.0)
        rows = zip(*(zip(*(table + [idle] * (longest - len(table))), strict=True) for table in tables), strict=True)
        kinds_of_column = [torch.long] * 4 + [torch.float64] * 2
        numbers = [
            torch.tensor(list(column), dtype=dtype, device=free.device)
            for column, dtype in zip(rows, kinds_of_column, strict=True)
        ]
        return Plan(
            block_of=(free.long().cumsum(1) - 1) // size,
            lengths=lengths,
            row=torch.searchsorted(kinds, blocks),
            block=numbers[0],
            step=numbers[1],
            steps=numbers[2],
            end=numbers[3],
            t=numbers[4],
            s=numbers[5],
            widest=free.shape[0] * min(size + policy.reopens, free.shape[1]),
            schedule=schedule,
            rests_when_full=policy.rests_when_full,
            may_end_early=policy.rests_when_full
            and (policy.law is Law.FREE or block is not None or steps > int(lengths.max())),
        )

    @property
    def longest(self) -> int:
        return self.block.shape[1]

    def _now(self, table: Tensor, step: Counts) -> Tensor:
        return table[self.row, step.clamp_max(self.longest - 1)]

    def _over(self, step: Counts) -> Tensor:
        return (step >= self.longest) | (self._now(self.block, step) < 0)

    def window(self, state: State) -> Mask:
        """The block being written, and what was taken back of earlier ones, until it is written again."""
        now = self._now(self.block, state.step)[:, None]
        reopened = (self.block_of < now) & (state.tokens == state.mask_id)
        return ((self.block_of == now) | reopened) & ~self._over(state.step)[:, None]

    def budget(self, state: State) -> Budget:
        t, s = self._now(self.t, state.step), self._now(self.s, state.step)
        return Budget(
            t=t,
            s=s,
            alpha_t=self.schedule.alpha(t),
            alpha_s=self.schedule.alpha(s),
            step=self._now(self.step, state.step),
            steps=self._now(self.steps, state.step),
            length=state.editable.sum(1),
        )

    def next(self, after: State) -> Counts:
        """The next step, or the next block's first one where no masks are left in this one, or reopened by it."""
        if not self.rests_when_full:
            return after.step + 1
        masked = replace(after, window=self.window(after)).masked
        return torch.where(masked.any(1), after.step + 1, self._now(self.end, after.step))

    def blocks(self, free: Mask) -> Iterator[Mask]:
        """What there is to write, block by block, each row its own."""
        return (free & (self.block_of == block) for block in range(int(self.block_of.max()) + 1))

    def settled(self, step: Counts) -> Mask:
        """Positions of the blocks that rows at these steps have finished: they will not touch them again, unless the policy
        takes up earlier blocks."""
        return (self.block_of < self._now(self.block, step)[:, None]) | self._over(step)[:, None]

    def finished(self, state: State) -> Bool[Tensor, ""]:
        return self._over(state.step).all()


def _timetable(policy: Policy, steps: int, blocks: int) -> list[tuple[int, int, int, int, float, float]]:
    """(block, step in the block, steps of the block, step at which the next block begins, t, s), step by step."""
    table: list[tuple[int, int, int, int, float, float]] = []
    for block in range(blocks):
        times = policy.times(steps // blocks + (block < steps % blocks)).tolist()
        count, end = len(times) - 1, len(table) + len(times) - 1
        table += [(block, step, count, end, times[step], times[step + 1]) for step in range(count)]
    return table


@dataclass(frozen=True)
class Sample:
    """What a run came to."""

    tokens: Tokens
    confidence: Float[Tensor, "b l"]
    forwards: Counts
    remasks: Counts
    flipflops: Counts


def generate(
    model: Denoiser,
    state: State,
    policy: Policy,
    *,
    steps: int,
    noise: Noise | None = None,
    draw: Draw | None = None,
    schedule: Schedule | None = None,
    block: int | None = None,
    watch: Callable[[Step], object] | None = None,
) -> Sample:
    """`sample` to its end; `watch` sees every step."""
    zero = torch.zeros_like(state.step)
    result = Sample(state.tokens, state.confidence, zero, zero, zero)
    for step in sample(model, state, policy, steps=steps, noise=noise, draw=draw, schedule=schedule, block=block):
        if watch is not None:
            watch(step)
        result = Sample(step.after.tokens, step.after.confidence, step.forwards, step.remasks, step.flipflops)
    return result
