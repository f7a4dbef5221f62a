"""Models, states and recordings the tests of sampling and losses share."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prism.evaluation.mauve import Clustering
from prism.models.backbone import Backbone, Facts
from prism.models.causal import Causal
from prism.models.dit import DiT, DiTConfig
from prism.models.llama import Llama, LlamaConfig
from prism.models.oracle import Oracle, context_index
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, sample
from prism.sampling.policies import METHODS, Settings
from prism.sampling.policy import Moment, Policy
from prism.schedule import Budget, Linear, Schedule, even_times
from prism.state import Prediction, State, Step, start


class Flat:
    """Every token equally likely, whatever the context; tokens 0 … size - 1, the mask is `size`."""

    forwards = 1

    def __init__(self, size: int = 3) -> None:
        self.facts = Facts(mask_id=size, vocab_size=size + 1, hidden_size=1)

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        return Prediction(
            torch.zeros(*tokens.shape, 1),
            lambda hidden: hidden.expand(-1, self.facts.vocab_size),
            forbidden=torch.tensor([self.facts.mask_id]),
            quality_logits=lambda: torch.zeros(tokens.shape),
        )


class Given:
    """The same probabilities [l, v] and qualities [l] in every row and context; the mask is the id behind the last token."""

    forwards = 1

    def __init__(self, probabilities: Tensor, quality: Tensor | None = None) -> None:
        self.logits = torch.cat([probabilities.double().log(), torch.zeros(len(probabilities), 1)], dim=1)
        self.mask_id = probabilities.shape[1]
        self.quality = torch.full((len(probabilities),), 0.5) if quality is None else quality

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        return Prediction(
            self.logits.expand(len(tokens), -1, -1),
            lambda hidden: hidden,
            forbidden=torch.tensor([self.mask_id]),
            quality_logits=lambda: torch.logit(self.quality).expand(tokens.shape),
        )


class Mixing(Backbone):
    """A cheap model of any width whose every prediction depends on every attended token, and on no padding."""

    def __init__(self, size: int = 5, *, suppressed: tuple[int, ...] = (), seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.facts = Facts(mask_id=0, vocab_size=size + 1, hidden_size=8, suppressed=suppressed)
        self.embedding = torch.randn(size + 1, 8, generator=generator, dtype=torch.float64)
        self.places = torch.randn(64, 8, generator=generator, dtype=torch.float64)
        self.output = 2 * torch.randn(8, size + 1, generator=generator, dtype=torch.float64)
        self.scorer = torch.randn(8, generator=generator, dtype=torch.float64)

    def forward(self, tokens: Tensor, attend: Tensor | None = None, cache: Any = None) -> Tensor:
        own = self.embedding[tokens] + self.places[: tokens.shape[1]]
        seen = own if attend is None else own * attend[..., None]
        return torch.tanh(own + 0.5 * seen.sum(1, keepdim=True))

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden @ self.output

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        return with_quality(self, tokens, attend, lambda hidden: hidden @ self.scorer)


class Scored(nn.Module):
    """A backbone with a linear quality head."""

    forwards = 1

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.facts = backbone, backbone.facts
        self.head = nn.Linear(backbone.facts.hidden_size, 1)

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        return with_quality(self.backbone, tokens, attend, lambda hidden: self.head(hidden)[..., 0])

    def settled(self) -> AbstractContextManager[list[Tensor]]:
        return self.backbone.settled()


def with_quality(backbone: Backbone, tokens: Tensor, attend: Tensor | None, head: Any) -> Prediction:
    hidden = backbone(tokens, attend)
    facts = backbone.facts
    return Prediction(
        hidden,
        backbone.unembed,
        forbidden=torch.tensor([facts.mask_id, *facts.suppressed]),
        quality_logits=lambda: head(hidden),
    )


def tiny_dit(*, seed: int = 0, length: int = 12) -> Scored:
    """A one-block DiT with random weights throughout (as built, its output is zero)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Scored(DiT(DiTConfig(6, 0, length, hidden_size=8, blocks=1, heads=2, cond_size=4, dropout=0.0)))
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.7)
    return model.eval()


class Tabulated(Backbone):
    """The outputs of a model over an oracle's world, computed once for every context."""

    def __init__(self, model: Backbone, size: int, length: int) -> None:
        super().__init__()
        self.facts, self.base = model.facts, size + 1
        contexts = torch.cartesian_prod(*[torch.arange(self.base)] * length)
        with torch.no_grad():
            self.table = torch.cat([model(part) for part in contexts.split(512)])
        self.contexts = contexts

    def forward(self, tokens: Tensor, attend: Tensor | None = None, cache: Any = None) -> Tensor:
        return self.table[context_index(tokens, self.base)]

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        def own(hidden: Tensor) -> Tensor:
            chosen = hidden.gather(-1, tokens.clamp_max(self.base - 2)[..., None])[..., 0].exp()
            return torch.where(tokens == self.facts.mask_id, 30.0, torch.logit(chosen, eps=1e-12))

        return with_quality(self, tokens, attend, own)


@functools.cache
def small_world() -> Tabulated:
    """The oracle over 3 tokens and 6 positions."""
    return Tabulated(Oracle.random(3, 6), 3, 6)


def puzzles(length: int, mask_id: int, tokens: tuple[int, ...]) -> State:
    """Rows with every kind of prompt: none, in front, behind, scattered, all but one, nothing to generate."""
    given = [
        [],
        range(length // 3),
        range(length - 2, length),
        range(1, length, 2),
        [i for i in range(length) if i != 2],
        range(length),
    ]
    rows = torch.full((len(given), length), mask_id)
    for row, places in enumerate(given):
        for i in places:
            rows[row, i] = tokens[(row + 2 * i) % len(tokens)]
    return start(rows, mask_id)


def masks(rows: int, length: int, mask_id: int) -> State:
    return start(torch.full((rows, length), mask_id), mask_id)


def record(
    model: Denoiser, state: State, policy: Policy, *, steps: int, seed: int = 0, first: int = 0, **options: Any
) -> list[Step]:
    noise = Noise.rows(seed, len(state.tokens), first=first)
    return list(sample(model, state, policy, steps=steps, noise=noise, **options))


def moment(
    model: Denoiser,
    state: State,
    *,
    step: int,
    steps: int,
    times: Tensor | None = None,
    schedule: Schedule | None = None,
    draw: Draw | None = None,
    seed: int = 0,
) -> Moment:
    """What a policy sees at one step, without the loop."""
    grid = even_times(steps) if times is None else times
    t, s = (grid[i].expand(len(state.tokens)) for i in (step, step + 1))
    schedule = schedule or Linear()
    counts = (torch.full_like(state.step, n) for n in (step, len(grid) - 1))
    budget = Budget(t, s, schedule.alpha(t), schedule.alpha(s), *counts, state.editable.sum(1))
    noise = Noise.rows(seed, len(state.tokens)).at(step)
    return Moment(state, model.predict(state.tokens, state.attend), budget, noise, draw or Draw())


def partly_written(rows: int, length: int, size: int, share: float = 0.5, seed: int = 0) -> State:
    """Random tokens 0 … size - 1 at about `share` of the positions, all of them generated, the rest masks (`size`)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, size, (rows, length), generator=generator)
    tokens = tokens.masked_fill(torch.rand(rows, length, generator=generator) > share, size)
    state = start(tokens, size, frozen=torch.zeros(rows, length, dtype=torch.bool))
    return replace(state, confidence=torch.rand(rows, length, generator=generator))


def method(name: str, settings: Settings | None = None) -> Policy:
    return next(entry for entry in METHODS if entry.name == name).build(settings or Settings())


def check_edits(steps: list[Step], given: State) -> None:
    """What no policy may do, whatever its law."""
    for step in steps:
        before, edit, after = step.before, step.edit, step.after
        assert not (edit.write & edit.remask).any()
        assert not (edit.write & ~before.masked).any()
        assert not (edit.remask & ~before.committed).any()
        assert torch.equal(after.tokens[given.frozen], given.tokens[given.frozen])
        untouched = ~edit.write & ~edit.remask
        assert torch.equal(after.tokens[untouched], before.tokens[untouched])
        assert (after.tokens[edit.remask] == given.mask_id).all()
        assert (after.tokens[edit.write] != given.mask_id).all()
        assert (after.confidence[edit.write] > 0).all()
        assert (after.confidence[edit.write] <= 1 + 1e-6).all()


def check_end(steps: list[Step], given: State) -> None:
    final = steps[-1].after
    assert not (final.tokens[~given.frozen] == given.mask_id).any()
    assert torch.equal(steps[-1].remasks, sum(step.edit.remask.sum(1) for step in steps))
    assert (steps[-1].flipflops <= steps[-1].remasks).all()
    idle = given.frozen.all(1)
    assert (steps[-1].forwards[idle] == 0).all()


def tiny_truth(vocabulary: int = 12, *, tied: bool = False) -> Causal:
    """A causal model with random weights; every sequence begins with token 1."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        mask_id=0,
        length=16,
        hidden_size=16,
        layers=2,
        heads=4,
        kv_heads=2,
        intermediate_size=24,
        head_size=4,
        tied=tied,
    )
    model = Llama(config)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    return Causal(model, start=1)


def nearness(
    written: np.ndarray, generated: np.ndarray, seed: int, *, shape: tuple[int, ...] | None = None
) -> Clustering:
    """In place of mauve-text's clustering, which need not be installed; `shape` is what both must have, any if None."""
    assert written.shape == generated.shape
    assert shape in (None, written.shape)
    return Clustering(float(np.exp(-np.abs(written.mean(0) - generated.mean(0)).sum())), 0.0, 1)
