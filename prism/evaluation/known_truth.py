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
from prism.sampling.prepared import Prepared
from prism.state import State, start


def weighed(prepared: Prepared, truth: Causal, text: Callable[[list[int]], str], *, length: int, seed: int) -> Make:
    """Samples of `length` tokens, the first one given, each with its likelihood under the truth."""
    device = truth.llama.device

    def make(first: int, last: int) -> list[Written]:
        rows = sampled(prepared, lambda count: blank(truth, count, length, device), text, seed, first, last)
        tokens = torch.tensor([row.tokens for row in rows], device=device)
        nll = -truth.log_likelihood(tokens).mean(1).double()
        return [replace(row, nll=value) for row, value in zip(rows, nll.tolist(), strict=True)]

    return make


def own_texts(truth: Causal, text: Callable[[list[int]], str], *, length: int, seed: int, batch: int) -> Make:
    """What the truth itself writes, the figures every sampler is held against; `batch` at a time, though fewer may be asked
    for."""
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
