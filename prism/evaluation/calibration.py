"""Does the head know? Quality against what it estimates: the model's own likelihood of a token when it is hidden,
f^i(x^i | x ⊕ m_i), and, where there is one, the truth (PRISM, Section 4.4 and Appendix D.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import PrismModel
from prism.models.backbone import Backbone, Facts
from prism.noise import Noise, Purpose
from prism.sampling.loop import Denoiser
from prism.sampling.policy import lowest
from prism.state import Mask, Prediction, Scores, State, Step, Tokens, start


@dataclass(frozen=True)
class Judgements:
    """Committed tokens met during sampling, and what was thought of them."""

    quality: Float[np.ndarray, " n"]
    likelihood: Float[np.ndarray, " n"]
    """f^i(x^i | x ⊕ m_i), queried with one more forward pass per token."""
    own: Float[np.ndarray, " n"]
    """f^i(x^i | x), the model's own probability of the token it sees there: P2-self's score."""
    confidence: Float[np.ndarray, " n"]
    """The probability it had when it was committed: ReMDM-conf's score."""
    entropy: Float[np.ndarray, " n"]
    """Of f^i(· | x), in nats: how many other tokens would do there."""
    right: Bool[np.ndarray, " n"]
    """Whether the token is that of the reference; False everywhere without one."""
    filled: Float[np.ndarray, " n"]
    """The committed fraction of the sequence at that moment."""
    step: Int[np.ndarray, " n"]

    def summary(self) -> dict[str, Any]:
        """Quality against the likelihood it estimates, in all and in each fifth of the way from all masks to none, some of
        which a short run may never have been in."""
        by_time = [(low / 5 <= self.filled) & (self.filled < (low + 1) / 5 + (low == 4)) for low in range(5)]
        parts = ("quality", "entropy", "likelihood")
        return {
            "tokens": len(self.quality),
            "against_likelihood": reliability(self.quality, self.likelihood).summary(),
            "by_fifth_filled": [reliability(self.quality[part], self.likelihood[part]).summary() for part in by_time],
            "scatter": {part: np.round(getattr(self, part)[:2000], 4).tolist() for part in parts},
        }


class Witness:
    """Watches sampling (`generate(…, watch=witness)`) and questions the model about some of the tokens it sees.

    At every `every`-th step, `per_row` random committed tokens of each row are hidden one at a time.
    """

    def __init__(
        self,
        model: Denoiser,
        *,
        truth: Callable[[State], Tokens] | None = None,
        per_row: int = 1,
        every: int = 1,
        seed: int = 0,
    ) -> None:
        self.model, self.truth = model, truth
        self.per_row, self.every, self.seed = per_row, every, seed
        self._seen: list[Judgements] = []
        self._steps = 0

    @torch.no_grad()
    def __call__(self, step: Step) -> None:
        self._steps += 1
        if (self._steps - 1) % self.every == 0:
            self._question(step)

    def _question(self, step: Step) -> None:
        state, quality = step.before, step.prediction.quality
        noise = Noise.rows(self.seed, len(state.tokens), device=state.tokens.device).at(self._steps)
        scores = noise.uniform(Purpose.REMASK, state.tokens.shape[1])
        chosen = lowest(scores, state.committed, torch.full_like(state.step, self.per_row))
        if not bool(chosen.any()):
            return
        row = chosen.nonzero()[:, 0]
        filled = state.committed.sum(1) / state.editable.sum(1).clamp_min(1)
        log_f = step.prediction.log_probabilities(chosen)
        truth = None if self.truth is None else self.truth(state)
        right = torch.zeros_like(chosen) if truth is None else truth == state.tokens
        self._seen.append(
            Judgements(
                quality=_numpy(quality[chosen]),
                likelihood=_numpy(hidden_likelihood(self.model, state, chosen)),
                own=_numpy(log_f.gather(1, state.tokens[chosen][:, None])[:, 0].exp()),
                confidence=_numpy(state.confidence[chosen]),
                entropy=_numpy(torch.special.entr(log_f.exp()).sum(1)),
                right=right[chosen].cpu().numpy(),
                filled=_numpy(filled[row]),
                step=state.step[row].cpu().numpy(),
            )
        )

    def judgements(self) -> Judgements:
        if not self._seen:
            raise ValueError("No committed token was met; watch a run with more than one step.")
        parts = [field.name for field in fields(Judgements)]
        return Judgements(*(np.concatenate([getattr(seen, part) for seen in self._seen]) for part in parts))


def hidden_likelihood(model: Denoiser, state: State, chosen: Mask, batch: int = 4096) -> Float[Tensor, " n"]:
    """f^i(x^i | x ⊕ m_i) at the chosen positions, in row-major order: every one hidden in a copy of its own."""
    out = []
    for places in chosen.nonzero().split(batch):
        row, column = places.unbind(1)
        tokens = state.tokens[row]
        own = tokens.gather(1, column[:, None])
        hidden = tokens.scatter(1, column[:, None], state.mask_id)
        here = torch.zeros_like(hidden, dtype=torch.bool).scatter(1, column[:, None], True)
        attend = None if state.attend is None else state.attend[row]
        out.append(model.predict(hidden, attend).log_probabilities(here).gather(1, own)[:, 0].exp())
    return torch.cat(out) if out else torch.zeros(0, device=state.tokens.device)


class Asked(nn.Module):
    """A model whose quality is what a head learns to tell: f^i(x^i | x ⊕ m_i) itself, asked with a forward pass a token. Far
    too slow to use, it shows how much a better head could gain.

    A prediction counts as one forward pass and one for each of a row's `length` tokens, though only committed ones are asked
    about, and of those only the ones the loop looks at.
    """

    def __init__(self, model: Backbone | PrismModel, length: int, batch: int = 512) -> None:
        super().__init__()
        self.model, self.forwards, self.batch = model, 1 + length, batch
        self._window: Mask | None = None

    @property
    def facts(self) -> Facts:
        return self.model.facts

    def predict(self, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        return self._predict(tokens, attend, torch.ones_like(tokens, dtype=torch.bool))

    def predict_window(self, tokens: Tokens, attend: Mask | None, window: Mask) -> Prediction:
        before, self._window = self._window, window
        is_known = before is not None and before.shape == window.shape and not bool((window & ~before).any())
        return self._predict(tokens, attend, window) if is_known else self.predict(tokens, attend)

    def _predict(self, tokens: Tokens, attend: Mask | None, where: Mask) -> Prediction:
        state = replace(start(tokens, self.facts.mask_id), attend=attend)
        chosen = where & (tokens != state.mask_id)

        def quality_logits() -> Scores:
            likelihood = hidden_likelihood(self.model, state, chosen, self.batch).double()
            logits = likelihood.logit(1e-9)  # a certain token stays a number
            return torch.zeros(tokens.shape, device=tokens.device).masked_scatter(chosen, logits.float())

        return self.model.predict(tokens, attend).judged_by(quality_logits)


@dataclass(frozen=True)
class Reliability:
    """Tokens binned by predicted quality."""

    predicted: Float[np.ndarray, " k"]
    """Mean quality of each bin."""
    observed: Float[np.ndarray, " k"]
    """Mean of what it should have been."""
    count: Int[np.ndarray, " k"]

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between the two, weighed by how many tokens it concerns."""
        return float((self.count * np.abs(self.predicted - self.observed)).sum() / max(1, self.count.sum()))

    def summary(self) -> dict[str, Any]:
        """What a results file holds."""
        curve = {"predicted": self.predicted, "observed": self.observed, "count": self.count}
        return {**{name: values.tolist() for name, values in curve.items()}, "ece": self.error}


def reliability(predicted: Float[np.ndarray, " n"], observed: np.ndarray, bins: int = 20) -> Reliability:
    """Equal bins over 0..1; empty ones are left out."""
    place = np.clip((predicted * bins).astype(int), 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values.astype(float), minlength=bins) for values in (predicted, observed)]
    held = count > 0
    return Reliability(sums[0][held] / count[held], sums[1][held] / count[held], count[held])


def auroc(scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> float:
    """The probability that a positive example scores above a negative one, ties counting half; NaN without both kinds."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # mean rank of every tie, from 1
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@torch.no_grad()
def detection(model: Any, held_out: Batch, loss: PrismLoss) -> dict[str, Any]:
    """True texts with some tokens drawn anew, as in training: whose score points at those that came out different?"""
    noise = Noise.rows(99, len(held_out.tokens), device=held_out.tokens.device)
    y, chosen = loss.drawn(model, held_out, model.facts.mask_id, noise)
    second = model.predict(y)
    right = (y == held_out.tokens)[chosen].cpu().numpy()
    own = second.log_probabilities(chosen).gather(1, y[chosen][:, None])[:, 0].exp()
    hidden = hidden_likelihood(model, start(y, model.facts.mask_id), chosen, batch=1024)
    scores = {"quality": second.quality[chosen], "own": own, "likelihood": hidden}
    return {
        "tokens": len(right),
        "right": float(right.mean()),
        "auroc": {name: auroc(_numpy(score), right) for name, score in scores.items()},
        "against_truth": reliability(_numpy(scores["quality"]), right).summary(),
    }


def _numpy(values: Scores | Float[Tensor, " n"]) -> np.ndarray:
    return values.detach().double().cpu().numpy()
