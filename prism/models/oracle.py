"""A world small enough to enumerate: the exact stand-in for a perfectly trained model, on which theorems are tests.

The joint distribution p(x) over V^L sequences is a table. It gives the exact unmasking posterior p(x^i = · | z), the exact
quality g*^i(y) = p(x^i = y^i | y ⊕ m_i) of Proposition 1, and the exact average over hidden sets S that Proposition 2 says
the PRISM loss with k > 1 learns. Token ids 0 … V-1 are clean, V is the mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import comb

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.models.backbone import Backbone, Cache, Facts, prediction_of
from prism.state import Hidden, Mask, Prediction, Scores, Tokens

SetRule = Callable[[Int[Tensor, " l"], tuple[int, ...]], float]
"""The probability that a set S of masked positions is chosen, given z."""


class Oracle(Backbone):
    """`joint[x_1, …, x_L]`: the probability of every sequence, all of them positive.

    Hidden states are the log-posteriors themselves. A committed position shows the posterior it would have if it were masked,
    which is what a model tuned with the likelihood loss converges to.
    """

    def __init__(self, joint: Float[Tensor, "..."]) -> None:
        super().__init__()
        if not bool((joint > 0).all()):
            raise ValueError("Every sequence of an oracle needs a positive probability; add a little to each entry.")
        self.length, self.size = joint.dim(), joint.shape[0]
        probabilities = (joint.double() / joint.double().sum()).flatten()
        worlds = torch.tensor(list(itertools.product(range(self.size), repeat=self.length)))
        self.register_buffer("log_joint", probabilities.log())
        self.register_buffer("worlds", worlds)
        self.log_joint: Tensor
        self.worlds: Tensor
        self.facts = Facts(mask_id=self.size, vocab_size=self.size + 1, hidden_size=self.size + 1)

    @staticmethod
    def random(size: int, length: int, *, seed: int = 0, sharpness: float = 2.0) -> Oracle:
        """A random joint: exp(sharpness · normal), so that tokens depend on each other."""
        generator = torch.Generator().manual_seed(seed)
        shape = (size,) * length
        return Oracle((sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)).exp())

    @property
    def device(self) -> torch.device:
        return self.log_joint.device

    def draw(self, uniforms: Float[Tensor, " b"]) -> Tokens:
        """Exact samples of p(x), one per uniform number."""
        cumulative = self.log_joint.exp().cumsum(0)
        index = torch.searchsorted(cumulative, uniforms.double() * cumulative[-1], right=True)
        return self.worlds[index.clamp_max(len(self.worlds) - 1)]

    def log_evidence(self, tokens: Tokens) -> Float[Tensor, " b"]:
        """log Σ p(x) over the sequences x that agree with the clean tokens."""
        return self._weights(tokens, torch.zeros_like(tokens, dtype=torch.bool)).logsumexp(-1)

    def _weights(self, tokens: Tokens, hide: Mask) -> Float[Tensor, "b w"]:
        """log p(x) for every world, -inf where it contradicts a clean token outside `hide`."""
        shown = (tokens != self.facts.mask_id) & ~hide
        conflict = (shown[:, None, :] & (tokens[:, None, :] != self.worlds[None])).any(-1)
        return self.log_joint.expand(len(tokens), -1).masked_fill(conflict, -torch.inf)

    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        out = torch.full((*tokens.shape, self.size + 1), -torch.inf, dtype=torch.float64, device=tokens.device)
        for i in range(tokens.shape[1]):  # with position i hidden, whatever stands there
            hide = torch.zeros_like(tokens, dtype=torch.bool)
            hide[:, i] = True
            weights = self._weights(tokens, hide)
            for v in range(self.size):
                out[:, i, v] = weights.masked_fill(self.worlds[:, i] != v, -torch.inf).logsumexp(-1)
        return out - out.logsumexp(-1, keepdim=True)

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return hidden

    def quality(self, tokens: Tokens) -> Scores:
        """g*^i(y) = p(x^i = y^i | y ⊕ m_i) at committed positions, 1 at masks."""
        chosen = self(tokens).exp().gather(-1, tokens.clamp_max(self.size - 1)[..., None])[..., 0]
        return torch.where(tokens == self.facts.mask_id, 1.0, chosen)

    def predict(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Prediction:
        prediction = prediction_of(self, self(tokens))
        return prediction.judged_by(lambda: torch.logit(self.quality(tokens), eps=1e-12))

    def averaged_quality(self, tokens: Tokens, k: int, drawn_from: Backbone, rule: SetRule) -> Scores:
        """Proposition 2: E_{S ~ Π(· | y, i)}[p(x^i = y^i | y ⊕ m_S)] for n ~ Unif{0 … L} masks and |S| = min(k, n).

        Π(S | y, i) ∝ p(z)·P(S | z)·Π_{j ∈ S} f^j(y^j | z)/|S| with z = y ⊕ m_S and i ∈ S; the factor 1/|S| is the weight a
        supervised token has in the loss, which differs between rows when some have fewer than k masks.
        """
        out = torch.ones(tokens.shape, dtype=torch.float64)
        for row, y in enumerate(tokens):
            clean = [j for j in range(self.length) if y[j] != self.facts.mask_id]
            already_masked = self.length - len(clean)
            total, right = torch.zeros(self.length, dtype=torch.float64), torch.zeros(self.length, dtype=torch.float64)
            for size in range(1, min(k, len(clean)) + 1):
                if size < k and already_masked > 0:
                    continue  # with fewer than k masks in z, all of them are drawn and none is left in y
                for chosen in itertools.combinations(clean, size):
                    z = y.clone()
                    z[list(chosen)] = self.facts.mask_id
                    weight = rule(z, chosen) / size
                    if weight == 0:
                        continue
                    masks = already_masked + size
                    weight *= float(self.log_evidence(z[None]).exp()) / ((self.length + 1) * comb(self.length, masks))
                    drawn = drawn_from(z[None])[0].log_softmax(-1).exp()
                    posterior = self(z[None])[0].exp()
                    weight *= float(torch.stack([drawn[j, y[j]] for j in chosen]).prod())
                    for i in chosen:
                        total[i] += weight
                        right[i] += weight * float(posterior[i, y[i]])
            out[row] = torch.where(total > 0, right / total.clamp_min(1e-300), 1.0)
        return out


def any_set(k: int, mask_id: int) -> SetRule:
    """S uniformly random among the sets of min(k, n) masks."""

    def rule(z: Int[Tensor, " l"], chosen: tuple[int, ...]) -> float:
        n = int((z == mask_id).sum())
        return 1 / comb(n, min(k, n)) if len(chosen) == min(k, n) else 0.0

    return rule


class Perturbed(Backbone):
    """An imperfect model of the oracle's world: its log-posteriors plus fixed noise that depends on the context.

    Something for y to be drawn from that is wrong everywhere: PRISM's minimiser must not depend on it.
    """

    def __init__(self, oracle: Oracle, *, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.oracle, self.facts = oracle, oracle.facts
        contexts = (oracle.size + 1) ** oracle.length
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(contexts, oracle.length, oracle.size + 1, generator=generator, dtype=torch.float64)
        self.register_buffer("noise", scale * noise)
        self.noise: Tensor

    @property
    def device(self) -> torch.device:
        return self.noise.device

    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        return self.oracle(tokens) + self.noise[context_index(tokens, self.oracle.size + 1)]

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return hidden


def context_index(tokens: Tokens, base: int) -> Int[Tensor, " b"]:
    """Every sequence over `base` symbols, the mask included, as one number."""
    powers = base ** torch.arange(tokens.shape[1] - 1, -1, -1, device=tokens.device)
    return (tokens * powers).sum(1)
