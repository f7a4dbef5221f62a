"""How likely a model finds a given text: a lower bound, estimated by masking it in part (LLaDA, Nie et al. 2025, Eq. 6).

    log p(x | prompt) >= E_n E_S [ L/n · Σ_{i ∈ S} log f^i(x^i | prompt, x without S) ],    n ~ Unif{1, …, L}, S of size n

The two are equal only for a model whose predictions agree on one joint distribution. The prompt is never masked. The n of a
text's samples are spread evenly (one random offset for all of them), which keeps the estimate unbiased and its spread small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from prism.noise import Noise, Purpose
from prism.sampling.policy import lowest
from prism.writer import Model


@dataclass(frozen=True)
class Passage:
    """A text to be judged, and what is given before it."""

    prompt: list[int]
    tokens: list[int]


@torch.no_grad()
def likelihood_bounds(
    model: Model,
    passages: Sequence[Passage],
    *,
    samples: int,
    seed: int = 0,
    batch: int = 16,
    device: torch.device | str = "cpu",
) -> list[float]:
    """The bound on log p(tokens | prompt) of every passage, in nats, from `samples` forward passes each. A passage of one token
    needs one and is exact: there is nothing to choose."""
    if samples < 1:
        raise ValueError(f"samples={samples}: estimate from at least 1.")
    totals = [0.0] * len(passages)
    noise = Noise.rows(seed, len(passages), device=device)
    for part in _batches(passages, samples, batch):
        owners = torch.tensor([number for number, _ in part], device=device)
        taken = torch.tensor([sample for _, sample in part], device=device)
        of = [samples_of(passages[number], samples) for number, _ in part]
        sequences = [passages[number].prompt + passages[number].tokens for number, _ in part]
        longest, pad = max(map(len, sequences)), model.facts.pad_id or 0
        tokens = torch.tensor([row + [pad] * (longest - len(row)) for row in sequences], device=device)
        place = torch.arange(longest, device=device)
        begin = torch.tensor([len(passages[number].prompt) for number, _ in part], device=device)[:, None]
        end = torch.tensor([len(row) for row in sequences], device=device)[:, None]
        judged = (place >= begin) & (place < end)
        length = judged.sum(1)
        mine = Noise(noise.keys[owners])
        offset = mine.at(0).uniform(Purpose.LEVEL, 1)[:, 0]
        count = 1 + (length * (taken + offset) / torch.tensor(of, device=device)).long().clamp_max(length - 1)
        masked = lowest(mine.at(taken).uniform(Purpose.MASKING, longest), judged, count)
        attend = None if bool((end == longest).all()) else place < end
        reading = model.predict(tokens.masked_fill(masked, model.facts.mask_id), attend).read(masked)
        logs = reading.spread(reading.of(tokens).double(), fill=0.0).sum(1) * length / count
        for (number, _), share, total in zip(part, of, logs.tolist(), strict=True):
            totals[number] += total / share
    return totals


def samples_of(passage: Passage, samples: int) -> int:
    return 1 if len(passage.tokens) == 1 else samples


def _batches(passages: Sequence[Passage], samples: int, batch: int) -> Iterator[list[tuple[int, int]]]:
    """(passage, sample) of everything to be computed, those of similar length together."""
    order = sorted(range(len(passages)), key=lambda number: len(passages[number].prompt + passages[number].tokens))
    jobs = [
        (number, sample)
        for number in order
        if passages[number].tokens
        for sample in range(samples_of(passages[number], samples))
    ]
    return (jobs[first : first + batch] for first in range(0, len(jobs), batch))
