"""The paper's propositions, run on worlds small enough to enumerate.

A table of free parameters (the most expressive model there is) is trained with the very `PrismLoss` that trains networks.
What it converges to is compared with an average worked out by enumerating every (x, z, S, y), which is also the independent
check of `Oracle.quality` and `Oracle.averaged_quality`.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from stand_ins import Tabulated
from torch import Tensor, nn

from prism.losses.masking import Batch, ByCount, ByProbability, Masking
from prism.losses.prism import Likelihood, PrismLoss
from prism.models.oracle import Oracle, Perturbed, SetRule, any_set, context_index
from prism.noise import Noise, Purpose
from prism.sampling.order import AwayFrom, Order, RandomOrder, TopProbability
from prism.state import Prediction

ROWS, STEPS, WARM_UP = 40_000, 84, 18
NEGLIGIBLE = 3e-3  # labels per row; a pair (y, i) that gets fewer is not asked for
CLOSE = 0.02


@dataclass(frozen=True)
class World:
    size: int
    length: int
    seed: int

    @property
    def mask(self) -> int:
        return self.size

    @functools.cached_property
    def oracle(self) -> Oracle:
        return Oracle.random(self.size, self.length, seed=self.seed, sharpness=1.0)

    @functools.cached_property
    def perfect(self) -> Tabulated:
        return Tabulated(self.oracle, self.size, self.length)

    @functools.cached_property
    def imperfect(self) -> Tabulated:
        return Tabulated(Perturbed(self.oracle, scale=1.0, seed=1), self.size, self.length)

    @property
    def contexts(self) -> Tensor:
        return self.perfect.contexts

    @functools.cached_property
    def quality(self) -> Tensor:
        """g*, from the oracle."""
        return self.oracle.quality(self.contexts)


THREE = World(3, 3, seed=3)
FOUR = World(2, 4, seed=0)


@dataclass(frozen=True)
class Exact:
    """By enumeration, for every y and i: how much the loss looks at (y, i), and the distribution of x^i when it does."""

    mass: Tensor
    posterior: Tensor
    labels: Tensor
    """The same as `mass` without the weight 1/|S|: how often (y, i) is labelled."""

    def quality(self, contexts: Tensor) -> Tensor:
        own = contexts.clamp_max(self.posterior.shape[-1] - 1)[..., None]
        return self.posterior.gather(-1, own)[..., 0]

    @property
    def asked(self) -> Tensor:
        return self.labels >= NEGLIGIBLE


@functools.cache
def enumerate_pairs(world: World, drawer: Tabulated, k: int, rule: SetRule) -> Exact:
    """Σ over x, the masked set, S and the tokens drawn for it of p(x)·p(z | x)·p(S | z)·Π f(y^i | z)/|S|."""
    table = drawer.table.log_softmax(-1).exp()
    base, length = world.size + 1, world.length
    hits = torch.zeros(base**length, length, world.size, dtype=torch.float64)
    labels = torch.zeros(base**length, length, dtype=torch.float64)
    for x, p in zip(world.oracle.worlds, world.oracle.log_joint.exp().tolist(), strict=True):
        for places in itertools.chain(*(itertools.combinations(range(length), n) for n in range(1, length + 1))):
            z = x.clone()
            z[list(places)] = world.mask
            of_z = p / ((length + 1) * math.comb(length, len(places)))
            f = table[context_index(z[None], base)[0]]
            for chosen in itertools.combinations(places, min(k, len(places))):
                of_set = of_z * rule(z, chosen) / len(chosen)
                for drawn in itertools.product(range(world.size), repeat=len(chosen)) if of_set > 0 else ():
                    y = z.clone()
                    y[list(chosen)] = torch.tensor(drawn)
                    weight = of_set * math.prod(float(f[i, v]) for i, v in zip(chosen, drawn, strict=True))
                    index = context_index(y[None], base)[0]
                    for i in chosen:
                        hits[index, i, x[i]] += weight
                        labels[index, i] += weight * len(chosen)
    mass = hits.sum(-1)
    return Exact(mass, hits / mass.clamp_min(1e-300)[..., None], labels)


def most_confident(k: int, world: World, drawer: Tabulated) -> SetRule:
    """S is the set of the k masks with the highest max_v f^i(v | z), as `TopProbability` chooses them."""

    def rule(z: Tensor, chosen: tuple[int, ...]) -> float:
        top = drawer(z[None])[0].log_softmax(-1).max(-1).values.tolist()
        masked = [i for i in range(world.length) if z[i] == world.mask]
        return float(set(chosen) == set(sorted(masked, key=lambda i: -top[i])[:k]))

    return rule


def weighted(token: int, world: World, drawer: Tabulated) -> SetRule:
    """One mask, with probability in proportion to 1 - f^i(token | z), as `AwayFrom` chooses it."""

    def rule(z: Tensor, chosen: tuple[int, ...]) -> float:
        weights = 1 - drawer(z[None])[0].softmax(-1)[:, token]
        [place] = chosen
        return float(weights[place] / weights[z == world.mask].sum())

    return rule


@functools.cache  # a rule of the same arguments is the same rule, and what is enumerated for it the same work
def rule_for(order: Order, k: int, world: World, drawer: Tabulated) -> SetRule:
    if isinstance(order, AwayFrom):
        return weighted(order.token, world, drawer)
    return any_set(k, world.mask) if isinstance(order, RandomOrder) else most_confident(k, world, drawer)


class Table(nn.Module):
    """y is drawn from a fixed model; what the second pass says of y is free for every context and position.

    Hidden states are addresses in the table, so that only the rows asked for are ever read.
    """

    forwards = 1

    def __init__(self, drawer: Tabulated) -> None:
        super().__init__()
        self.drawn, self.facts, self.base = drawer.table.flatten(0, 1), drawer.facts, drawer.base
        self.quality = nn.Parameter(torch.zeros(drawer.table.shape[:2], dtype=torch.float64))
        self.likelihood = nn.Parameter(torch.zeros_like(self.drawn))

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        context = context_index(tokens, self.base)
        address = context[:, None] * tokens.shape[1] + torch.arange(tokens.shape[1])
        hidden = torch.where(tokens == self.facts.mask_id, address, -1 - address)  # masks: drawn from; tokens: learned
        return Prediction(
            hidden[..., None].double(),
            self.unembed,
            forbidden=torch.tensor([self.facts.mask_id]),
            quality_logits=lambda: self.quality[context],
        )

    def unembed(self, hidden: Tensor) -> Tensor:
        address = hidden[:, 0].long()
        return self.drawn[address] if bool((address >= 0).all()) else self.likelihood[-1 - address]


def train(world: World, model: Table, loss: PrismLoss, parameter: nn.Parameter) -> Tensor:
    """The parameter after training on fresh draws of the world: large steps at first, then an average over small ones."""
    optimiser = torch.optim.Adam([parameter], lr=0.5, betas=(0.8, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.1, 0.85**step))
    total = torch.zeros_like(parameter)
    for step in range(STEPS):
        noise = Noise.rows(step, ROWS)
        batch = Batch(world.oracle.draw(noise.uniform(Purpose.EXAMPLE, 1)[:, 0]))
        optimiser.zero_grad()
        loss(model, batch, world.mask, noise).total.backward()
        optimiser.step()
        schedule.step()
        if step >= WARM_UP:
            total += parameter.detach()
    return total / (STEPS - WARM_UP)


def learned_quality(world: World, drawer: Tabulated, k: int, order: Order, masking: Masking) -> Tensor:
    model = Table(drawer)
    loss = PrismLoss(k=k, regulariser=0.0, order=order, masking=masking)
    return train(world, model, loss, model.quality).sigmoid()


ORDERS = (RandomOrder(), TopProbability())


@pytest.mark.parametrize("order", ORDERS, ids=["random", "confident"])
@pytest.mark.parametrize(("world", "k"), [(THREE, 1), (THREE, 2), (FOUR, 3)], ids=["k=1", "k=2", "k=3"])
def test_the_oracle_agrees_with_enumeration(world: World, order: Order, k: int) -> None:
    """`quality` is the label mean for k = 1 and `averaged_quality` for every k, wherever the loss ever looks."""
    for drawer in (world.perfect, world.imperfect):
        rule = rule_for(order, k, world, drawer)
        exact = enumerate_pairs(world, drawer, k, rule)
        seen = exact.mass > 0
        assert exact.mass.sum().item() == pytest.approx(world.length / (world.length + 1))  # all rows with a mask
        enumerated = exact.quality(world.contexts)[seen]
        averaged = world.oracle.averaged_quality(world.contexts, k, drawer, rule)[seen]
        torch.testing.assert_close(averaged, enumerated, rtol=1e-9, atol=1e-9)
        if k == 1:
            torch.testing.assert_close(world.quality[seen], enumerated, rtol=1e-9, atol=1e-9)


def check(learned: Tensor, wanted: Tensor, exact: Exact) -> None:
    asked = exact.asked
    assert exact.mass[asked].sum() / exact.mass.sum() > 0.85
    assert (learned - wanted)[asked].abs().max() < CLOSE


@pytest.mark.parametrize(
    ("name", "order", "masking"),
    [
        ("perfect", RandomOrder(), ByCount()),
        ("perfect", TopProbability(), ByProbability()),
        ("imperfect", RandomOrder(), ByProbability()),
        ("imperfect", TopProbability(), ByCount()),
        ("imperfect", AwayFrom(token=0), ByCount()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_proposition_1(name: str, order: Order, masking: Masking) -> None:
    """k = 1: the minimiser is p(x^i = y^i | y ⊕ m_i), whatever model drew y and whatever rule chose i."""
    world = THREE
    drawer = getattr(world, name)
    exact = enumerate_pairs(world, drawer, 1, rule_for(order, 1, world, drawer))
    learned = learned_quality(world, drawer, 1, order, masking)
    check(learned, world.quality, exact)
    # What distilling the imperfect model would teach, f^i(y^i | y ⊕ m_i), is far from it.
    distilled = own(drawer.table.log_softmax(-1).exp(), world.contexts)
    assert ((distilled - world.quality)[exact.asked].abs().max() > 10 * CLOSE) == (name == "imperfect")


def own(table: Tensor, contexts: Tensor) -> Tensor:
    return table.gather(-1, contexts[..., None])[..., 0]


@pytest.mark.parametrize("order", ORDERS, ids=["random", "confident"])
@pytest.mark.parametrize("k", [2, 3])
def test_proposition_2(k: int, order: Order) -> None:
    """k > 1: the minimiser is the average of p(x^i = y^i | y ⊕ m_S) over the sets S behind y, and not g*."""
    world = THREE if k == 2 else FOUR
    drawer = world.imperfect
    rule = rule_for(order, k, world, drawer)
    exact = enumerate_pairs(world, drawer, k, rule)
    wanted = world.oracle.averaged_quality(world.contexts, k, drawer, rule)
    learned = learned_quality(world, drawer, k, order, ByCount() if k == 2 else ByProbability())
    check(learned, wanted, exact)
    assert (learned - world.quality)[exact.asked].abs().max() > 5 * CLOSE


def enumerate_two_rounds(world: World, drawer: Tabulated) -> Exact:
    """One token after another, the second drawn by a model that sees the first; half of the rows stop after one."""
    table = drawer.table.log_softmax(-1).exp()
    base, length = world.size + 1, world.length
    hits = torch.zeros(base**length, length, world.size, dtype=torch.float64)
    labels = torch.zeros(base**length, length, dtype=torch.float64)

    def written(z: Tensor, left: list[int]) -> list[tuple[Tensor, int, float]]:
        """Every way to draw one of the masks, with its probability."""
        f, ways = table[context_index(z[None], base)[0]], []
        for i, v in itertools.product(left, range(world.size)):
            y = z.clone()
            y[i] = v
            ways.append((y, i, float(f[i, v]) / len(left)))
        return ways

    def count(x: Tensor, y: Tensor, chosen: list[int], weight: float) -> None:
        for i in chosen:
            index = context_index(y[None], base)[0]
            hits[index, i, x[i]] += weight / len(chosen)
            labels[index, i] += weight

    for x, p in zip(world.oracle.worlds, world.oracle.log_joint.exp().tolist(), strict=True):
        for places in itertools.chain(*(itertools.combinations(range(length), n) for n in range(1, length + 1))):
            z = x.clone()
            z[list(places)] = world.mask
            of_z = p / ((length + 1) * math.comb(length, len(places)))
            for y, i, once in written(z, list(places)):
                count(x, y, [i], of_z * once * (1.0 if len(places) == 1 else 0.5))
                for w, j, again in written(y, [place for place in places if place != i]):
                    count(x, w, [i, j], of_z * once * again * 0.5)
    mass = hits.sum(-1)
    return Exact(mass, hits / mass.clamp_min(1e-300)[..., None], labels)


def test_written_in_rounds() -> None:
    """The minimiser is p(x^i = y^i | y) under the process that wrote y, which is not that of tokens drawn at once."""
    world = THREE
    exact = enumerate_two_rounds(world, world.imperfect)
    model = Table(world.imperfect)
    loss = PrismLoss(k=1, rounds=2, regulariser=0.0, masking=ByCount())
    learned = train(world, model, loss, model.quality).sigmoid()
    wanted = exact.quality(world.contexts)
    check(learned, wanted, exact)
    at_once = world.oracle.averaged_quality(world.contexts, 2, world.imperfect, any_set(2, world.mask))
    assert (wanted - at_once)[exact.asked].abs().max() > 2 * CLOSE
    assert (wanted - world.quality)[exact.asked].abs().max() > 2 * CLOSE


def test_the_likelihood_variant_learns_the_full_conditional() -> None:
    """Cross-entropy instead of BCE: p(x^i = · | y ⊕ m_i), for every token and not only the one that stands there."""
    world = THREE
    drawer = world.imperfect
    exact = enumerate_pairs(world, drawer, 1, rule_for(RandomOrder(), 1, world, drawer))
    model = Table(drawer)
    loss = PrismLoss(k=1, regulariser=0.0, masking=ByCount(), target=Likelihood())
    logits = train(world, model, loss, model.likelihood)[:, : world.size]
    learned = logits.softmax(-1).reshape(*exact.mass.shape, world.size)
    wanted = world.oracle(world.contexts)[..., : world.size].exp()
    assert (learned - wanted)[exact.asked].abs().max() < CLOSE
    assert (wanted - wanted.mean(0))[exact.asked].abs().max() > 10 * CLOSE


@pytest.mark.parametrize("masking", [ByCount(), ByProbability()], ids=["by n", "by t"])
def test_both_maskings_have_the_same_distribution(masking: Masking) -> None:
    """P(set) = 1/((L + 1)·C(L, n)), with a prompt that is never masked (Appendix B.2)."""
    rows, maskable = 100_000, torch.tensor([True, True, False, True, True])
    batch = Batch(torch.ones(rows, 5, dtype=torch.long), maskable=maskable.expand(rows, 5))
    where = masking(batch, 9, Noise.rows(0, rows)).where
    assert not where[:, 2].any()
    sets = (where[:, maskable].long() * torch.tensor([8, 4, 2, 1])).sum(1)
    counts = torch.bincount(sets, minlength=16)
    expected = [rows / (5 * math.comb(4, index.bit_count())) for index in range(16)]
    assert stats.chisquare(counts.numpy(), expected).pvalue > 1e-3


def test_a_masking_that_is_not_uniform_would_be_noticed() -> None:
    """The χ² above has the power to tell t ~ Unif[0.05, 1] from t ~ Unif[0, 1]."""
    rows = 100_000
    where = ByProbability(floor=0.05)(Batch(torch.ones(rows, 4, dtype=torch.long)), 9, Noise.rows(0, rows)).where
    counts = torch.bincount(where.sum(1), minlength=5)
    assert stats.chisquare(counts.numpy()).pvalue < 1e-6
