"""Text from a model: prompts in, completions out, written left to right in blocks by the one loop.

Steps are counted over the generated tokens alone. (The authors of PRISM count the prompt too: at N = 256 a prompt of 200 tokens
out of 1024 leaves their sampler 208 forward passes. Ours takes 256.)

Prompts of unequal length stand in one batch with padding on the *right*: attention is bidirectional, so nothing asks for it on
the left, and on the right every token keeps the position and the random numbers it has alone: a prompt gives the same
completion in any batch.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from prism.data.writing import Messages, Writing
from prism.models.backbone import Facts
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, Plan, Windowed, sample
from prism.sampling.policy import Policy
from prism.sampling.prepared import Prepared
from prism.schedule import Schedule
from prism.state import Counts, Mask, Prediction, State, Step, Tokens, start


@runtime_checkable
class Model(Denoiser, Protocol):
    """A denoiser that knows its mask: a backbone, a model with a head, either of them with a cache."""

    @property
    def facts(self) -> Facts: ...


class End(Enum):
    """Why a text is over."""

    EOS = "it holds an end-of-text token"
    STOP = "it holds a stop string"
    LENGTH = "every token there was room for is written"


@dataclass(frozen=True)
class Eos:
    """What tokens that end a text do (`Writing.ends`)."""

    stops: bool = True
    """Whether a text is over with the block that holds the first of them, and cut there. Else it is written to its full length,
    and they are tokens like others."""
    least: int = 0
    """None of them is drawn among the first so many generated tokens."""

    def __post_init__(self) -> None:
        if self.least < 0:
            raise ValueError(f"least={self.least}: the number of tokens before the text may end must be 0 or more.")


@dataclass(frozen=True)
class Written:
    """What became of one prompt."""

    prompt: list[int]
    tokens: list[int]
    """The generated tokens, up to and with what ended the text; in a prompt with masks, what they were replaced by."""
    sequence: list[int]
    """Both together."""
    text: str
    """What follows the prompt, without special tokens and the stop string; the whole text where the prompt had masks."""
    end: End
    forwards: int
    """Forward passes this text took part in until it was over."""
    remasks: int
    """Tokens taken back meanwhile."""
    seconds: float
    """Until it was over; those of a batch are written at the same time."""


@dataclass(frozen=True)
class Progress:
    """A step of the loop on some of the texts, and what came of it."""

    numbers: tuple[int, ...]
    """Which prompt each row of the step belongs to. One whose text is over may stay a while, and no longer matters."""
    step: Step | None
    """None where steps are recorded, of which nothing can be seen but the end."""
    over: dict[int, Written]
    """The texts that are over with this step, by the number of their prompt."""


@dataclass(frozen=True)
class Writer:
    """A model, a tokenizer and a policy, ready to write. Texts come back in the order of their prompts.

    **Main arguments.** A prompt is followed by `new_tokens` tokens, in `steps` forward passes (one for each token if left out),
    shared equally among the blocks of `block` tokens. A prompt that holds mask tokens is filled in instead and nothing is added
    to it. What is given is never changed.

    **Other arguments.** A text is over with the block in which it comes to its end (`eos`) or to one of the strings of `stop`,
    which is cut off. Once half of a batch is over the rest goes on without it. Pass a `Cached` model to compute less. On a GPU
    a small batch spends more time on saying what to compute than on computing: `recorded` steps are said once (`Prepared`), for
    each shape of a batch anew; those of a model that cannot be prepared are taken one by one all the same.
    """

    model: Model
    writing: Writing
    policy: Policy
    new_tokens: int
    steps: int | None = None
    block: int | None = None
    draw: Draw = field(default_factory=Draw)
    schedule: Schedule | None = None
    eos: Eos = field(default_factory=Eos)
    stop: tuple[str, ...] = ()
    batch: int = 16
    """Texts written at once; without a cache the result does not depend on it. With one, and a policy that sets its own pace,
    it does: a block that begins in one text renews what is kept of all."""
    recorded: bool = False
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        if self.new_tokens < 0:
            raise ValueError(f"new_tokens={self.new_tokens} must be 0 (only fill in masks) or more.")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: at least 1 text at once.")
        if isinstance(self.stop, str):
            raise ValueError(f"stop={self.stop!r}: expected a tuple of strings; write stop=({self.stop!r},).")
        if "" in self.stop:
            raise ValueError("An empty stop string would end every text at once; leave it out.")
        if self.eos.least and not self.writing.ends:
            raise ValueError(f"least={self.eos.least}: this tokenizer names no token that ends a text; leave it out.")

    def write(self, texts: Sequence[str], noise: Noise | None = None) -> list[Written]:
        """Completions of plain texts."""
        return self([self.writing.prompt(text) for text in texts], noise)

    def chat(self, conversations: Sequence[Messages], noise: Noise | None = None) -> list[Written]:
        """Answers to conversations, in the tokenizer's chat template."""
        return self([self.writing.chat(messages) for messages in conversations], noise)

    def __call__(self, prompts: Sequence[list[int]], noise: Noise | None = None) -> list[Written]:
        """Completions of prompts given as tokens; `noise` has a row for each."""
        found = dict(self.each(prompts, noise))
        return [found[number] for number in range(len(prompts))]

    def each(self, prompts: Sequence[list[int]], noise: Noise | None = None) -> Iterator[tuple[int, Written]]:
        """The number of each prompt and its completion, as soon as it is over."""
        for progress in self.steps_of(prompts, noise):
            yield from progress.over.items()

    def steps_of(self, prompts: Sequence[list[int]], noise: Noise | None = None) -> Iterator[Progress]:
        """Every step of the loop, for whoever shows texts while they are written: a terminal, a page, a stream."""
        noise = noise or Noise.rows(0, len(prompts), device=self.device)
        if len(noise.keys) != len(prompts):
            raise ValueError(f"The noise is for {len(noise.keys)} rows and there are {len(prompts)} prompts.")
        if self.stop and any(self.model.facts.mask_id in prompt for prompt in prompts):
            raise ValueError(f"stop={self.stop}: a prompt with masks is filled in wherever it ends; leave it out.")
        for numbers in self._batches(prompts):
            texts = [self._text(number, prompts[number]) for number in numbers]
            yield from self._write(texts, Noise(noise.keys[torch.tensor(numbers, device=noise.keys.device)]))

    def _text(self, number: int, prompt: list[int]) -> _Text:
        mask = self.model.facts.mask_id
        if mask in prompt:
            return _Text(number, prompt, prompt, prompt.count(mask))
        if self.new_tokens == 0:
            raise ValueError("The prompt leaves nothing to generate: it has no masks, and new_tokens is 0.")
        return _Text(number, prompt, prompt + [mask] * self.new_tokens, self.new_tokens)

    def _batches(self, prompts: Sequence[list[int]]) -> Iterator[list[int]]:
        """Which prompts are written together: those with equally many tokens to generate, and of similar length."""
        mask = self.model.facts.mask_id
        free = [prompt.count(mask) or self.new_tokens for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda number: (free[number], len(prompts[number])))
        for _, alike in groupby(order, key=free.__getitem__):
            numbers = list(alike)
            yield from (numbers[first : first + self.batch] for first in range(0, len(numbers), self.batch))

    def _write(self, texts: list[_Text], noise: Noise) -> Iterator[Progress]:
        clock, state = time.perf_counter(), self._start(texts)
        steps = self.steps if self.steps is not None else int((~state.frozen).sum(1).max())
        schedule = self.schedule or self.policy.schedule
        while texts:
            plan = Plan.of(state, self.policy, steps, schedule, self.block)
            model = _Barring.of(self.model, state, self.writing.ends, self.eos.least)
            going, numbers = list(range(len(texts))), tuple(text.number for text in texts)
            for step, after, passes, taken_back in self._steps(model, state, steps, noise):
                over: dict[int, Written] = {}
                settled = plan.settled(after.step) & ~state.frozen
                counts = settled.sum(1).tolist()
                for place in [place for place in going if counts[place] > texts[place].settled]:
                    text = texts[place]
                    text.settled = counts[place]
                    found = self._over(text, after.tokens[place], settled[place])
                    if found is not None:
                        going.remove(place)
                        forwards, remasks = int(passes[place]), int(taken_back[place])
                        spent = text.forwards + forwards, text.remasks + remasks, time.perf_counter() - clock
                        over[text.number] = Written(text.prompt, *found, *spent)
                yield Progress(numbers, step, over)
                if 2 * len(going) <= len(texts):
                    break
            for place in going:
                texts[place].forwards += int(passes[place])
                texts[place].remasks += int(taken_back[place])
            rest = torch.tensor(going, dtype=torch.long, device=state.tokens.device)
            texts, state, noise = [texts[place] for place in going], after.rows(rest), Noise(noise.keys[rest])

    def _steps(
        self, model: Denoiser, state: State, steps: int, noise: Noise
    ) -> Iterator[tuple[Step | None, State, Counts, Counts]]:
        """Every step that can be seen, where the texts stand after it, their forward passes and what was taken back."""
        settings: dict[str, Any] = {
            "steps": steps,
            "draw": self.draw,
            "schedule": self.schedule or self.policy.schedule,
            "block": self.block,
        }
        if self.recorded and Prepared.serves(model):
            for done in Prepared(model, self.policy, **settings).each(state, noise):
                yield None, done.state, done.forwards, done.remasks
            return
        for step in sample(model, state, self.policy, noise=noise, **settings):
            yield step, step.after, step.forwards, step.remasks

    def _start(self, texts: list[_Text]) -> State:
        facts, longest = self.model.facts, max(len(text.canvas) for text in texts)
        pad = 0 if facts.pad_id is None else facts.pad_id
        rows = [text.canvas + [pad] * (longest - len(text.canvas)) for text in texts]
        lengths = torch.tensor([len(text.canvas) for text in texts], device=self.device)
        padded = None if int(lengths.min()) == longest else lengths
        return start(torch.tensor(rows, device=self.device), facts.mask_id, lengths=padded)

    def _over(
        self, text: _Text, row: Int[Tensor, " l"], settled: Bool[Tensor, " l"]
    ) -> tuple[list[int], list[int], str, End] | None:
        """The generated tokens, all tokens, the text and why it is over; None while there is more to come."""
        tokens, complete = row[settled].tolist(), text.settled == text.free
        if len(text.canvas) == len(text.prompt):  # nothing follows the prompt: its masks were filled
            whole = row[: len(text.canvas)].tolist()
            return (tokens, whole, self.writing.continuation([], whole), End.LENGTH) if complete else None
        ends = [count for count, token in enumerate(tokens, start=1) if token in self.writing.ends]
        if ends and self.eos.stops:
            tokens = tokens[: ends[0]]

        def first_stop(count: int) -> int | None:
            found = self.writing.continuation(text.prompt, tokens[:count])
            return min((found.index(stop) for stop in self.stop if stop in found), default=None)

        written = self.writing.continuation(text.prompt, tokens)
        if (cut := first_stop(len(tokens))) is not None:
            count = bisect_left(range(len(tokens)), True, key=lambda count: first_stop(count) is not None)
            return tokens[:count], text.prompt + tokens[:count], written[:cut], End.STOP
        if ends and self.eos.stops:
            return tokens, text.prompt + tokens, written, End.EOS
        return (tokens, text.prompt + tokens, written, End.LENGTH) if complete else None


@dataclass
class _Text:
    """One text on its way."""

    number: int
    prompt: list[int]
    canvas: list[int]
    """The prompt and the masks to be filled."""
    free: int
    """How many masks."""
    settled: int = 0
    """Generated tokens that will not change any more."""
    forwards: int = 0
    remasks: int = 0
    """Of the runs before the present one."""


class _Barring:
    """A model that gives some tokens no chance at some positions."""

    def __init__(self, model: Model, ids: Int[Tensor, " f"], where: Mask) -> None:
        self.model, self.ids, self.where = model, ids, where
        self.forwards = model.forwards

    @staticmethod
    def of(model: Model, state: State, ends: tuple[int, ...], least: int) -> Denoiser:
        """`model`, with the first `least` generated tokens of every row none of `ends`."""
        if least == 0:
            return model
        free = ~state.frozen
        return _Barring(model, torch.tensor(ends, device=free.device), free & (free.long().cumsum(1) <= least))

    def predict(self, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        return self.model.predict(tokens, attend).without(self.ids, self.where)

    def predict_window(self, tokens: Tokens, attend: Mask | None, window: Mask) -> Prediction:
        if not isinstance(self.model, Windowed):
            return self.predict(tokens, attend)
        return self.model.predict_window(tokens, attend, window).without(self.ids, self.where)
