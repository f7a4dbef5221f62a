from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from stand_ins import Mixing, Scored, tiny_dit
from torch import Tensor

from prism.losses.denoising import DenoisingLoss, PerTime
from prism.losses.loss import TrainingLoss
from prism.losses.masking import Batch, ByCount, ByProbability, Masked
from prism.losses.prism import Likelihood, PrismLoss, Quality, Target
from prism.noise import Noise, Purpose
from prism.sampling.draw import Draw
from prism.sampling.order import Confidence, Order, RandomOrder, TopProbability
from prism.state import Prediction
from prism.training.objective import Objective
from prism.training.settings import Precision

ROWS, LENGTH, MASK = 8, 9, 0


def batch() -> Batch:
    """Two tokens of prompt, padding behind some rows, rows with one token to mask and with none."""
    tokens = torch.randint(1, 6, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    maskable = (torch.arange(LENGTH) >= 2).repeat(ROWS, 1)
    maskable[2] = False
    maskable[3, 3:] = False
    return Batch(tokens, maskable, torch.arange(LENGTH) < 9 - torch.arange(ROWS)[:, None] % 3)


class Seen(Target):
    """Keeps what the loss asks about."""

    def __init__(self) -> None:
        self.asked: list[tuple[Tensor, Tensor, Tensor]] = []

    def losses(self, prediction: Prediction, x: Tensor, y: Tensor, chosen: Tensor, most: int) -> Tensor:
        self.asked.append((x, y, chosen))
        return Quality().losses(prediction, x, y, chosen, most)


@pytest.mark.parametrize("order", [RandomOrder(), TopProbability(), Confidence()], ids=str)
@pytest.mark.parametrize("k", [1, 3, 20])
def test_y_is_z_with_k_masks_filled(order: Order, k: int) -> None:
    """min(k, n) of them, none of a prompt or of padding, whatever n is."""
    given, noise, seen = batch(), Noise.rows(4, ROWS), Seen()
    PrismLoss(k=k, order=order, target=seen)(Mixing(), given, MASK, noise)
    masked = ByProbability(floor=1e-3)(given, MASK, noise)
    ((x, y, chosen),) = seen.asked
    n = masked.where.sum(1)
    assert torch.equal(x, given.tokens)
    assert torch.equal(chosen.sum(1), n.clamp_max(k))
    assert not (chosen & ~masked.where).any()
    assert torch.equal(y[~chosen], masked.tokens[~chosen])
    assert (y[chosen] != MASK).all()
    assert n.min() == 0
    assert (n > k).any() or k == 20


def test_s_by_confidence_and_by_chance() -> None:
    model, given, noise = Mixing(), batch(), Noise.rows(4, ROWS)
    masked = ByProbability(floor=1e-3)(given, MASK, noise)
    top = model.predict(masked.tokens, given.attend).log_probabilities(torch.ones_like(masked.where))
    certainty = top.max(-1).values.reshape(ROWS, LENGTH)
    chance = -noise.uniform(Purpose.ORDER, LENGTH)
    for order, scores in ((TopProbability(), certainty), (RandomOrder(), chance)):
        seen = Seen()
        PrismLoss(k=2, order=order, target=seen)(model, given, MASK, noise)
        chosen = seen.asked[0][2]
        for row in range(ROWS):
            places = masked.where[row].nonzero()[:, 0].tolist()
            best = sorted(places, key=lambda i: -float(scores[row, i]))[:2]
            assert sorted(best) == chosen[row].nonzero()[:, 0].tolist()


def slow(model: Mixing, given: Batch, masked: Masked, y: Tensor, chosen: Tensor, target: Target) -> float:
    """Row by row and token by token: 1/|S| Σ BCE or -log f, rows without masks counting 0."""
    total = 0.0
    for row in range(ROWS):
        attend = given.attend[row : row + 1] if given.attend is not None else None
        hidden = model(y[row : row + 1], attend)[0]
        places = chosen[row].nonzero()[:, 0].tolist()
        for i in places:
            if isinstance(target, Quality):
                g = 1 / (1 + math.exp(-float(hidden[i] @ model.scorer)))
                loss = -math.log(g if given.tokens[row, i] == y[row, i] else 1 - g)
            else:
                logits = model.unembed(hidden[i]).index_fill(-1, torch.tensor([MASK]), -torch.inf)
                loss = -float(logits.log_softmax(-1)[given.tokens[row, i]])
            total += loss / len(places)
    return total / ROWS


@pytest.mark.parametrize("target", [Quality(), Likelihood()], ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_against_a_slow_reference(target: Target, k: int) -> None:
    model, given, noise, seen = Mixing(), batch(), Noise.rows(4, ROWS), Seen()
    masking = ByCount()
    PrismLoss(k=k, masking=masking, target=seen)(model, given, MASK, noise)
    _, y, chosen = seen.asked[0]
    loss = PrismLoss(k=k, masking=masking, target=target, regulariser=0.0)(model, given, MASK, noise)
    expected = slow(model, given, masking(given, MASK, noise), y, chosen, target)
    assert float(loss.total) == pytest.approx(expected)
    assert float(loss.parts["quality"]) == float(loss.total)
    right = (given.tokens == y)[chosen].double().mean()
    assert float(loss.parts["right"]) == pytest.approx(float(right))


@pytest.mark.parametrize("weight", [0.5, 5.0])
def test_the_regulariser_is_the_denoising_loss_on_z(weight: float) -> None:
    model, given, noise = Mixing(), batch(), Noise.rows(4, ROWS)
    plain = PrismLoss(k=2, regulariser=0.0)(model, given, MASK, noise)
    both = PrismLoss(k=2, regulariser=weight, weighting=PerTime())(model, given, MASK, noise)
    denoising = DenoisingLoss(ByProbability(floor=1e-3), PerTime())(model, given, MASK, noise).total
    torch.testing.assert_close(both.total, plain.total + weight * denoising)
    torch.testing.assert_close(both.parts["denoising"], denoising)
    torch.testing.assert_close(both.parts["quality"], plain.total)


def test_several_y_are_the_mean_over_replicas() -> None:
    """The replicas share z and one forward pass of it, and differ in S and in what is drawn."""
    model, given, noise, seen = Mixing(), batch(), Noise.rows(4, ROWS), Seen()
    masking = ByCount()
    PrismLoss(k=2, ys=3, masking=masking, target=seen)(model, given, MASK, noise)
    ((x, y, chosen),) = seen.asked
    assert torch.equal(x, given.tokens.repeat(3, 1))
    masked = masking(given, MASK, noise)
    parts = [slow(model, given, masked, y[i * ROWS :][:ROWS], chosen[i * ROWS :][:ROWS], Quality()) for i in range(3)]
    loss = PrismLoss(k=2, ys=3, masking=masking, regulariser=0.0)(model, given, MASK, noise)
    assert float(loss.total) == pytest.approx(sum(parts) / 3)
    assert not torch.equal(chosen[:ROWS], chosen[ROWS : 2 * ROWS])
    one = PrismLoss(k=2, ys=1, masking=masking, regulariser=0.0)(model, given, MASK, noise)
    assert float(one.total) == pytest.approx(parts[0])


@pytest.mark.parametrize("regulariser", [0.0, 2.0])
def test_the_mean_does_not_depend_on_how_the_batch_is_split(regulariser: float) -> None:
    model, given = Mixing(), batch()
    loss = PrismLoss(k=2, ys=2, regulariser=regulariser)
    whole = loss(model, given, MASK, Noise.rows(0, ROWS)).total
    parts = []
    for first in range(0, ROWS, 2):
        rows = slice(first, first + 2)
        part = Batch(given.tokens[rows], given.maskable[rows], given.attend[rows])  # type: ignore[index]
        parts.append(loss(model, part, MASK, Noise.rows(0, 2, first=first)).total)
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


class Spy(Scored):
    """Notes, call by call, which half of the network ran and whether a graph was kept."""

    def __init__(self, model: Scored) -> None:
        super().__init__(model.backbone)
        self.head = model.head
        self.log: list[str] = []

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        self.log.append("forward" if torch.is_grad_enabled() else "forward without gradient")
        base = super().predict(tokens, attend)

        def unembed(hidden: Tensor) -> Tensor:
            self.log.append(f"unembed {len(hidden)}" + ("" if torch.is_grad_enabled() else " without gradient"))
            return self.backbone.unembed(hidden)

        return Prediction(base.hidden, unembed, forbidden=base._forbidden, quality_logits=base._quality_logits)


def test_which_passes_run_and_where_gradients_are_kept() -> None:
    given, noise = batch(), Noise.rows(4, ROWS)
    masked = ByProbability(floor=1e-3)(given, MASK, noise)
    n, drawn = int(masked.where.sum()), int(masked.where.sum(1).clamp_max(2).sum())

    frozen = Spy(tiny_dit().train())
    PrismLoss(k=2, regulariser=0.0)(frozen, given, MASK, noise)
    assert frozen.log == ["forward without gradient", f"unembed {drawn} without gradient", "forward"]

    tuned = Spy(tiny_dit().train())
    PrismLoss(k=2, regulariser=1.0)(tuned, given, MASK, noise)
    assert tuned.log == ["forward", f"unembed {drawn} without gradient", f"unembed {n}", "forward"]

    likelihood = Spy(tiny_dit().train())
    PrismLoss(k=2, regulariser=0.0, target=Likelihood())(likelihood, given, MASK, noise)
    assert likelihood.log == [*frozen.log, f"unembed {2 * ROWS}"]  # k in every row: that much is known without asking


def gradients(model: Scored) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("regulariser", [0.0, 1.0])
def test_no_gradient_flows_through_y(regulariser: float) -> None:
    """The same as drawing y from a detached copy of the model, beforehand."""
    model, given, noise = tiny_dit().train(), batch(), Noise.rows(4, ROWS)
    loss = PrismLoss(k=2, regulariser=regulariser)
    loss(model, given, MASK, noise).total.backward()
    together = gradients(model)

    seen = Seen()
    PrismLoss(k=2, regulariser=0.0, target=seen)(copy.deepcopy(model), given, MASK, noise)
    ((x, y, chosen),) = seen.asked
    model.zero_grad(set_to_none=True)
    second = Quality().losses(model.predict(y, given.attend), x, y, chosen, most=LENGTH)
    assert not second[~chosen].any()
    apart = (second.sum(1) / chosen.sum(1).clamp_min(1)).mean()
    if regulariser:
        apart = apart + regulariser * DenoisingLoss()(model, given, MASK, noise).total
    apart.backward()
    expected = gradients(model)
    assert together.keys() == expected.keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)
    head = "backbone.output_layer.linear.weight"
    assert (head in together and bool(together[head].any())) == (
        regulariser > 0
    )  # BCE never reaches the vocabulary head
    assert together["head.weight"].any()
    assert together["backbone.vocab_embed.embedding"].any()


def test_padding_does_not_matter() -> None:
    """What stands there changes nothing, not even where it is the mask."""
    model, given = tiny_dit(), batch()
    assert given.attend is not None
    losses = []
    for rubbish in (1, 5, MASK):
        tokens = given.tokens.masked_fill(~given.attend, rubbish)
        padded = Batch(tokens, given.maskable, given.attend)
        losses.append(PrismLoss(k=2, ys=2)(model, padded, MASK, Noise.rows(0, ROWS)).total)
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(losses[2], losses[0])
    without = PrismLoss(k=2, ys=2)(model, Batch(given.tokens, given.maskable), MASK, Noise.rows(0, ROWS)).total
    assert not torch.isclose(without, losses[0])


def test_no_masks_at_all() -> None:
    model = tiny_dit().train()
    given = Batch(torch.ones(2, 3, dtype=torch.long), maskable=torch.zeros(2, 3, dtype=torch.bool))
    for target in (Quality(), Likelihood()):
        loss = PrismLoss(target=target)(model, given, MASK, Noise.rows(0, 2))
        loss.total.backward()
        assert loss.total == 0
        assert all(part.isfinite() for part in loss.parts.values())


def test_the_draw_is_the_samplers() -> None:
    """Greedy y, as for LLaDA (nucleus 0), is the argmax of f(· | z)."""
    model, given, noise, seen = Mixing(), batch(), Noise.rows(4, ROWS), Seen()
    PrismLoss(k=20, draw=Draw(nucleus=0.0), target=seen)(model, given, MASK, noise)
    _, y, chosen = seen.asked[0]
    masked = ByProbability(floor=1e-3)(given, MASK, noise)
    best = model.predict(masked.tokens, given.attend).log_probabilities(chosen).argmax(-1)
    assert torch.equal(y[chosen], best)


@pytest.mark.parametrize("ys", [1, 2])
def test_rounds_write_on_where_masks_are_left(ys: int) -> None:
    """Rows have 1 to 3 rounds of their own; what was written stays; a model that ignores its input shows the counts."""
    given, noise, seen, once = batch(), Noise.rows(4, ROWS), Seen(), Seen()
    masking = ByProbability(floor=1e-3)
    PrismLoss(k=2, rounds=3, ys=ys, target=seen, masking=masking)(Mixing(), given, MASK, noise)
    PrismLoss(k=2, ys=ys, target=once, masking=masking)(Mixing(), given, MASK, noise)
    (_, y, chosen), (_, first, before) = seen.asked[0], once.asked[0]
    n = masking(given, MASK, noise).where.sum(1).repeat(ys)
    assert not (before & ~chosen).any()
    assert torch.equal(y[before], first[before])
    keys = torch.cat([noise.replica(j).keys for j in range(ys)])
    rounds = 1 + (Noise(keys).uniform(Purpose.AMOUNT, 1)[:, 0] * 3).long()
    assert torch.equal(chosen.sum(1), n.minimum(2 * rounds))
    assert len(set(rounds.tolist())) == 3
    assert (y[chosen] != MASK).all()


def test_every_round_is_a_forward_pass_without_gradients() -> None:
    model = Spy(tiny_dit().train())
    PrismLoss(k=1, rounds=3)(model, batch(), MASK, Noise.rows(4, ROWS))
    passes = [line for line in model.log if line.startswith("forward")]
    assert passes == ["forward", "forward without gradient", "forward without gradient", "forward"]


@pytest.mark.parametrize("bad", [{"k": 0}, {"ys": 0}, {"rounds": 0}, {"regulariser": -1.0}])
def test_bad_values(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        PrismLoss(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [DenoisingLoss(), PrismLoss(k=2, ys=2), PrismLoss(k=2, regulariser=0.0)], ids=repr)
def test_turns_add_up_to_the_loss(loss: TrainingLoss) -> None:
    """Whether the way back comes after each or after all."""
    model, given, noise = tiny_dit().train(), batch(), Noise.rows(4, ROWS)
    whole = loss(model, given, MASK, noise)
    whole.total.backward()
    together = gradients(model)
    model.zero_grad(set_to_none=True)
    total, parts = Objective(model, loss, Precision.FP32).learn(given, noise, Tensor.backward)
    torch.testing.assert_close(total, whole.total.detach())
    torch.testing.assert_close(parts, whole.parts)
    torch.testing.assert_close(gradients(model), together)


def test_the_way_back_of_a_turn_lets_its_memory_go() -> None:
    """Nothing that the first pass keeps for it is alive in the second; weights made of others serve both."""
    kept: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    class Watched(Scored):
        @contextmanager
        def settled(self) -> Iterator[list[Tensor]]:
            with super().settled() as made:
                kept.clear()
                yield made

        def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
            alive.append(sum(ref() is not None for ref in kept))
            return super().predict(tokens, attend)

    def pack(tensor: Tensor) -> Tensor:
        if tensor.grad_fn is not None:
            tensor = tensor.detach()
            kept.append(weakref.ref(tensor))
        return tensor

    small = tiny_dit().train()
    model = Watched(small.backbone)
    model.head = small.head
    objective = Objective(model, PrismLoss(k=2), Precision.FP32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective.learn(batch(), Noise.rows(4, ROWS), Tensor.backward)
    assert len(kept) > 20
    assert alive == [0, 0]
