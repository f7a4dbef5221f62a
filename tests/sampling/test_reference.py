"""The fast sampler against a slow obvious one, "as published": every position, the whole vocabulary, float64, one row at a
time in plain Python. Both are driven by the same uniform numbers and must agree token for token after every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stand_ins import Mixing, Scored, puzzles, tiny_dit

from prism.noise import Noise, Purpose
from prism.sampling.draw import Draw
from prism.sampling.loop import sample
from prism.sampling.order import Margin, Order, RandomOrder
from prism.sampling.policies import ReMDMCap
from prism.sampling.policy import Pair, Policy
from prism.sampling.remask import Every, Fixed, LowQuality
from prism.sampling.unmask import Counted
from prism.state import State, start

Row = NDArray[np.int64]
Array = NDArray[np.float64]


class Slow:
    """One sequence, from the published descriptions: MDLM, PRISM (Algorithm 3), ReMDM (Eq. 5 and 6)."""

    def __init__(self, model: Scored | Mixing, tokens: Row, noise: Noise, nucleus: float) -> None:
        self.model, self.noise, self.nucleus = model, noise, nucleus
        self.mask = model.facts.mask_id
        self.x = tokens.copy()
        self.editable = [i for i in range(len(tokens)) if tokens[i] == self.mask]

    def look(self) -> tuple[Array, Array]:
        """(probabilities at all positions, quality at all positions) of one forward pass over this row alone."""
        with torch.no_grad():
            prediction = self.model.predict(torch.from_numpy(self.x)[None])
            everywhere = torch.ones(1, len(self.x), dtype=torch.bool)
            logits = prediction.logits(everywhere).double().numpy().copy()
            quality = prediction.quality[0].double().numpy()
        logits[:, self.mask] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True), quality

    def numbers(self, purpose: Purpose, step: int) -> Array:
        return self.noise.at(step).uniform(purpose, len(self.x))[0].numpy()

    def tokens(self, f: Array, step: int) -> list[int]:
        """A draft at every position: the nucleus by sorting, then the inverse of the cumulative distribution over what is kept,
        in the order of the vocabulary."""
        drafts = []
        for p, u in zip(f, self.numbers(Purpose.TOKEN, step), strict=True):
            order = list(range(len(p))) if self.nucleus == 1 else sorted(range(len(p)), key=lambda v: -p[v])
            kept, total = [], 0.0
            for v in order:
                total += p[v]
                if not kept or total <= self.nucleus or self.nucleus == 1:
                    kept.append(v)
            kept.sort()
            threshold = u * sum(p[v] for v in kept)
            cumulative, drawn = 0.0, kept[-1]
            for v in kept:
                cumulative += p[v]
                if cumulative > threshold:
                    drawn = v
                    break
            drafts.append(drawn)
        return drafts

    def counted(self, steps: int, by_margin: bool, k: int, doubt: float | None = None) -> Iterator[Row]:
        """PRISM with fixed K (K = 0: plain masked diffusion with fixed counts), or with all that are doubtful, stopping when no
        mask is left."""
        length = len(self.editable)
        for step in range(steps):
            f, g = self.look()
            masked = [i for i in self.editable if self.x[i] == self.mask]
            clean = [i for i in self.editable if self.x[i] != self.mask]
            target = math.ceil(length * (step + 1) / steps - 1e-9)
            count = min(k, length - target) if k < len(clean) < length - k else 0
            remask = sorted(clean, key=lambda i: g[i])[:count]
            if doubt is not None:
                remask = sorted((i for i in clean if g[i] < doubt), key=lambda i: g[i])[: length - target]
                count = len(remask)
            if by_margin:
                ranked = sorted(masked, key=lambda i: np.sort(f[i])[-2] - np.sort(f[i])[-1])
            else:
                ranked = sorted(masked, key=lambda i: self.numbers(Purpose.ORDER, step)[i])
            drafts = self.tokens(f, step)
            for i in ranked[: target - len(clean) + count]:
                self.x[i] = drafts[i]
            for i in remask:
                self.x[i] = self.mask
            yield self.x.copy()
            if not (self.x[self.editable] == self.mask).any():
                return

    def remdm_cap(self, steps: int, eta: float) -> Iterator[Row]:
        """Each position on its own; the last step goes to s = 0."""
        for step in range(steps):
            f, _ = self.look()
            alpha_t, alpha_s = step / steps, (step + 1) / steps
            sigma = min(eta, 1.0, (1 - alpha_s) / alpha_t if alpha_t > 0 else 1.0)
            rate = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
            commit, back = self.numbers(Purpose.ORDER, step), self.numbers(Purpose.REMASK, step)
            drafts = self.tokens(f, step)
            after = self.x.copy()
            for i in self.editable:
                if self.x[i] == self.mask:
                    after[i] = drafts[i] if commit[i] < rate or step == steps - 1 else self.mask
                else:
                    after[i] = self.mask if back[i] < sigma else self.x[i]
            self.x = after
            yield after.copy()


def padded(state: State) -> State:
    """The same rows behind one another's lengths: three columns of rubbish that no one may look at."""
    rubbish = torch.randint(0, 5, (len(state.tokens), 3), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((len(state.tokens),), state.tokens.shape[1])
    return start(torch.cat([state.tokens, rubbish], dim=1), state.mask_id, lengths=lengths)


def compare(model: Scored | Mixing, policy: Policy, slow: str, steps: int, nucleus: float, **options: float) -> int:
    tokens = puzzles(10, 0, (1, 2, 3, 4, 5)).tokens
    tokens[0, 4] = 2  # to a network with rotary positions all masks of an empty row look the same, and margins tie
    given = start(tokens, 0)
    noise, length = Noise.rows(11, 6), given.tokens.shape[1]
    fast = list(sample(model, padded(given), policy, steps=steps, noise=noise, draw=Draw(nucleus=nucleus)))
    remasks = 0
    for row in range(6):
        if given.frozen[row].all():
            continue
        reference = Slow(model, given.tokens[row].numpy(), Noise.rows(11, 1, first=row), nucleus)
        states = list(getattr(reference, slow)(steps, **options))
        for step, after in zip(fast, states, strict=False):
            assert step.after.tokens[row, :length].tolist() == after.tolist()
        assert fast[-1].after.tokens[row, :length].tolist() == states[-1].tolist()
        assert int(fast[-1].forwards[row]) == len(states)
        remasks += int(fast[-1].remasks[row])
    return remasks


MODELS = {"dit": tiny_dit, "mixing": Mixing}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nucleus", [1.0, 0.8])
@pytest.mark.parametrize("order", [RandomOrder(), Margin()], ids=lambda order: type(order).__name__)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_counted(model: str, order: Order, k: int, nucleus: float) -> None:
    policy = Pair(Counted(order), LowQuality(Fixed(k)))
    for steps in (4, 10) if model == "mixing" else (6,):
        remasks = compare(MODELS[model](), policy, "counted", steps, nucleus, by_margin=isinstance(order, Margin), k=k)
        assert (remasks > 0) == (k > 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("order", [RandomOrder(), Margin()], ids=lambda order: type(order).__name__)
@pytest.mark.parametrize("doubt", [0.3, 0.6])
def test_doubting(model: str, order: Order, doubt: float) -> None:
    policy = Pair(Counted(order), LowQuality(Every(), doubt=doubt))
    by_margin = isinstance(order, Margin)
    compare(MODELS[model](), policy, "counted", 6, 0.8, by_margin=by_margin, k=0, doubt=doubt)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nucleus", [1.0, 0.8])
@pytest.mark.parametrize("eta", [0.04, 0.5])
def test_remdm_cap(model: str, nucleus: float, eta: float) -> None:
    assert compare(MODELS[model](), ReMDMCap(eta=eta), "remdm_cap", 8, nucleus, eta=eta) > 0
