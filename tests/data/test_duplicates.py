"""MinHash: the estimate is near the truth, near texts are found, others are not."""

from __future__ import annotations

import random

import pytest

from prism.data.duplicates import ORDERS, SHINGLE, Known, sketch


def text(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"w{draw.randrange(10_000)}" for _ in range(count)]


def jaccard(one: list[str], other: list[str]) -> float:
    a, b = ({tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)} for words in (one, other))
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("changed", [0, 5, 20, 60, 300])
def test_estimate_is_near_the_truth(changed: int) -> None:
    gaps = []
    for seed in range(20):
        one = text(300, seed)
        other = one[changed:] + text(changed, seed + 1000)
        equal = (sketch(" ".join(one)) == sketch(" ".join(other))).sum() / ORDERS
        gaps.append(equal - jaccard(one, other))
    assert abs(sum(gaps) / len(gaps)) < 0.03
    assert max(map(abs, gaps)) < 0.17  # four standard deviations of 128 draws


def test_near_texts_are_found_and_others_not() -> None:
    known = Known(0.8)
    originals = [text(200, seed) for seed in range(50)]
    for words in originals:
        known.add(sketch(" ".join(words)))
    near = [words[:-8] + text(8, 77) for words in originals]
    assert [known.nearest(sketch(" ".join(words))) for words in near] == list(range(50))
    far = [words[:100] + text(100, 78) for words in originals]
    assert [known.nearest(sketch(" ".join(words))) for words in far] == [None] * 50


def test_layout_does_not_matter_and_short_texts_count() -> None:
    assert (sketch("return  x\n") == sketch("return x")).all()
    assert (sketch("return x") != sketch("return y")).any()
    assert sketch("").shape == (ORDERS,)


def test_similarity_must_be_a_share() -> None:
    with pytest.raises(ValueError, match=r"similarity=80"):
        Known(80.0)
