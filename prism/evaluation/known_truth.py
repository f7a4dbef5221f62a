"""Text whose true distribution is known: a causal model is the data (World A).

A masked diffusion model trained on the causal model's samples is asked for samples of its own, and the causal model tells how
likely they are. The truth's own samples have its entropy; what a sampler's lie above it is the *excess*, in nats a token. A
sampler can also lie below, by writing only what is most likely: then its unigram entropy falls with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from prism.evaluation.record import Stopwatch
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


def blank(truth: Causal, count: int, length: int, device: torch.device) -> State:
    """The start token, and masks; the mask is the id behind the truth's vocabulary."""
    mask = truth.llama.config.vocab_size
    tokens = torch.full((count, length), mask, device=device)
    tokens[:, 0] = truth.start
    return start(tokens, mask)
