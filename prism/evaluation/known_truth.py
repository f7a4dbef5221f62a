"""Text whose true distribution is known: a causal model is the data (World A).

A masked diffusion model trained on the causal model's samples is asked for samples of its own, and the causal model tells how
likely they are. The truth's own samples have its entropy; what a sampler's lie above it is the *excess*, in nats a token. A
sampler can also lie below, by writing only what is most likely: then its unigram entropy falls with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from prism.evaluation.record import Stopwatch
from prism.evaluation.samples import Make, Written, sampled
from prism.evaluation.text import TextRun
from prism.models.causal import Causal
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser
from prism.sampling.policy import Policy
from prism.sampling.prepared import Prepared
from prism.schedule import Schedule
from prism.state import State, start


def evaluate_known_truth(
    model: Denoiser,
    truth: Causal,
    policy: Policy,
    *,
    steps: int,
    samples: int,
    length: int,
    seed: int = 0,
    draw: Draw | None = None,
    schedule: Schedule | None = None,
    block: int | None = None,
    batch: int = 64,
    done: Callable[[int], object] | None = None,
) -> TextRun:
    """`samples` sequences of `length` tokens, the first one given, judged by the truth. The last batch may be smaller."""
    clock, device = Stopwatch(), truth.llama.device
    prepared = Prepared(model, policy, steps=steps, draw=draw, schedule=schedule, block=block)
    found: list[tuple[np.ndarray, ...]] = []
    for first in range(0, samples, batch):
        count = min(batch, samples - first)
        result = prepared(blank(truth, count, length, device), Noise.rows(seed, count, first=first, device=device))
        nll = -truth.log_likelihood(result.tokens).mean(1).double()
        parts = (result.tokens, nll, result.forwards, result.remasks, result.flipflops)
        found.append(tuple(part.cpu().numpy() for part in parts))
        if done is not None:
            done(first + count)
    tokens, likelihood, forwards, remasks, flipflops = (np.concatenate(part) for part in zip(*found, strict=True))
    return TextRun(tokens, likelihood, forwards, remasks, flipflops, clock.seconds)


def own_samples(
    truth: Causal,
    *,
    samples: int,
    length: int,
    seed: int,
    batch: int = 64,
    done: Callable[[int], object] | None = None,
) -> TextRun:
    """What the truth itself writes: the figures every sampler is held against."""
    clock, device = Stopwatch(), truth.llama.device
    noises = (
        Noise.rows(seed, batch, first=first, device=device) for first in range(0, -(-samples // batch) * batch, batch)
    )
    pages = []
    for number, page in enumerate(truth.writing(noises, length, Draw()), 1):
        pages.append(page)
        if done is not None:
            done(min(number * batch, samples))
    tokens = torch.cat([page for page, _ in pages])[:samples].cpu().numpy()
    nll = -torch.cat([logs.mean(1) for _, logs in pages])[:samples].double().cpu().numpy()
    none = np.zeros(samples, dtype=np.int64)
    return TextRun(tokens, nll, none, none, none, clock.seconds)


def weighed(prepared: Prepared, truth: Causal, text: Callable[[list[int]], str], *, length: int, seed: int) -> Make:
    """Samples as `evaluate_known_truth` makes them, each with its likelihood under the truth."""
    device = truth.llama.device

    def make(first: int, last: int) -> list[Written]:
        rows = sampled(prepared, lambda count: blank(truth, count, length, device), text, seed, first, last)
        tokens = torch.tensor([row.tokens for row in rows], device=device)
        nll = -truth.log_likelihood(tokens).mean(1).double()
        return [replace(row, nll=value) for row, value in zip(rows, nll.tolist(), strict=True)]

    return make


def own_texts(truth: Causal, text: Callable[[list[int]], str], *, length: int, seed: int, batch: int) -> Make:
    """What the truth itself writes; `batch` at a time, though fewer may be asked for."""
    wanted: deque[Noise] = deque()
    pages = truth.writing(iter(wanted.popleft, None), length, Draw())  # one for all, lest it be recorded anew each time

    def make(first: int, last: int) -> list[Written]:
        clock = Stopwatch()
        wanted.append(Noise.rows(seed, batch, first=first, device=truth.llama.device))
        tokens, logs = (part[: last - first] for part in next(pages))
        found, share = zip(tokens.tolist(), (-logs.mean(1).double()).tolist(), strict=True), clock.seconds
        return [
            Written(first + place, text(row), row, 0, 0, 0, share / (last - first), nll)
            for place, (row, nll) in enumerate(found)
        ]

    return make


def run_of(rows: Sequence[Written]) -> TextRun:
    """Samples whose likelihood is known."""
    columns = zip(*((row.tokens, row.nll, row.forwards, row.remasks, row.flipflops) for row in rows), strict=True)
    tokens, nll, forwards, remasks, flipflops = map(np.array, columns)
    return TextRun(tokens, nll, forwards, remasks, flipflops, sum(row.seconds for row in rows))


def blank(truth: Causal, count: int, length: int, device: torch.device) -> State:
    """The start token, and masks; the mask is the id behind the truth's vocabulary."""
    mask = truth.llama.config.vocab_size
    tokens = torch.full((count, length), mask, device=device)
    tokens[:, 0] = truth.start
    return start(tokens, mask)
