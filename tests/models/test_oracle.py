"""The oracle against sums over all sequences, written out from the definitions."""

import itertools
from fractions import Fraction
from math import comb

import pytest
import torch

from prism.models.oracle import Oracle, Perturbed, any_set

SIZE, LENGTH = 2, 3
MASK = SIZE
WORLDS = list(itertools.product(range(SIZE), repeat=LENGTH))
CONTEXTS = list(itertools.product(range(SIZE + 1), repeat=LENGTH))


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle.random(SIZE, LENGTH, seed=3)


def joint(oracle: Oracle) -> dict[tuple[int, ...], float]:
    return dict(zip(WORLDS, oracle.log_joint.exp().tolist(), strict=True))


def posterior(p: dict[tuple[int, ...], float], z: tuple[int, ...], i: int, value: int) -> float:
    """p(x^i = value | z) with position i hidden, by the definition of conditional probability."""
    agreeing = [x for x in WORLDS if all(z[j] in (MASK, x[j]) for j in range(LENGTH) if j != i)]
    return sum(p[x] for x in agreeing if x[i] == value) / sum(p[x] for x in agreeing)


def test_posteriors_of_every_context(oracle):
    p = joint(oracle)
    answers = oracle(torch.tensor(CONTEXTS)).exp()
    for row, z in enumerate(CONTEXTS):
        for i in range(LENGTH):
            expected = [posterior(p, z, i, value) for value in range(SIZE)] + [0.0]
            torch.testing.assert_close(answers[row, i], torch.tensor(expected, dtype=torch.float64))


def test_quality_is_the_posterior_of_the_token_that_stands_there(oracle):
    p = joint(oracle)
    qualities = oracle.quality(torch.tensor(CONTEXTS))
    through_prediction = oracle.predict(torch.tensor(CONTEXTS)).quality
    for row, y in enumerate(CONTEXTS):
        for i in range(LENGTH):
            expected = 1.0 if y[i] == MASK else posterior(p, y, i, y[i])
            assert float(qualities[row, i]) == pytest.approx(expected)
            assert float(through_prediction[row, i]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_averaged_quality_is_the_label_mean_of_the_training_process(oracle, k):
    """Every (x, z, S, y) of Algorithm 1 with its probability; the minimiser of the loss is the weighted mean label."""
    p = joint(oracle)
    drawn_from = Perturbed(oracle, scale=1.0, seed=5)
    weight: dict[tuple[tuple[int, ...], int], float] = {}
    right: dict[tuple[tuple[int, ...], int], float] = {}
    for x, hidden_count in itertools.product(WORLDS, range(1, LENGTH + 1)):
        for hidden in itertools.combinations(range(LENGTH), hidden_count):
            z = tuple(MASK if i in hidden else x[i] for i in range(LENGTH))
            f = drawn_from(torch.tensor([z]))[0, :, :SIZE].softmax(-1)
            f = f / f.sum(-1, keepdim=True)
            size = min(k, hidden_count)
            sets = list(itertools.combinations(hidden, size))
            for chosen, values in itertools.product(sets, itertools.product(range(SIZE), repeat=size)):
                y = list(z)
                probability = p[x] / ((LENGTH + 1) * comb(LENGTH, hidden_count) * len(sets))
                for i, value in zip(chosen, values, strict=True):
                    y[i] = value
                    probability *= float(f[i, value])
                for i in chosen:
                    key = (tuple(y), i)
                    weight[key] = weight.get(key, 0.0) + probability / size
                    right[key] = right.get(key, 0.0) + probability / size * (x[i] == y[i])
    answers = oracle.averaged_quality(torch.tensor(CONTEXTS), k, drawn_from, any_set(k, MASK))
    for row, y in enumerate(CONTEXTS):
        for i in range(LENGTH):
            if (y, i) in weight:
                assert float(answers[row, i]) == pytest.approx(right[y, i] / weight[y, i], abs=1e-9)
    if k == 1:
        torch.testing.assert_close(answers, oracle.quality(torch.tensor(CONTEXTS)))


def test_samples_follow_the_joint(oracle):
    count = 4096
    drawn = oracle.draw((torch.arange(count) + 0.5) / count)
    for x, probability in joint(oracle).items():
        share = Fraction(int((drawn == torch.tensor(x)).all(1).sum()), count)
        assert float(share) == pytest.approx(probability, abs=1.5 / count)


def test_a_joint_with_impossible_sequences_is_refused():
    with pytest.raises(ValueError, match="positive probability"):
        Oracle(torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
