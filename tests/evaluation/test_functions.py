"""Bodies of functions judged by reading them."""

from __future__ import annotations

import pytest

from prism.data.functions import Function
from prism.evaluation.functions import FunctionsRun, judge

PROMPT = 'import math\n\n\ndef area(radius):\n    """The area of a circle."""'
AREA = Function("shapes", "shapes/round.py", "area", 3, PROMPT, "\n    return math.pi * radius**2", documented=True)
HELPED = Function("s", "s.py", "f", 1, 'def f(x):\n    """Doubled."""', "\n    return twice(x)", True, ("twice",))


def test_the_original_is_sound_and_exact() -> None:
    verdict = judge(AREA, AREA.body)
    assert verdict.sound
    assert verdict.exact
    assert (verdict.lines, verdict.repeated, verdict.undefined) == (1, 0.0, ())


def test_layout_and_comments_do_not_matter() -> None:
    assert judge(AREA, "\n    # pi r²\n    return (math.pi * radius ** 2)").exact
    assert not judge(AREA, "\n    return math.pi * radius**3").exact
    assert not judge(AREA, AREA.body + "\n\n\nprint(area(1))").exact


@pytest.mark.parametrize(
    "body", ["\n    return math.pi * (radius", "\n  return 1\n    return 2", "\n\x00", "\nreturn 1"]
)
def test_what_is_no_python(body: str) -> None:
    verdict = judge(AREA, body)
    assert not verdict.parses
    assert not verdict.sound
    assert not verdict.trivial


def test_undefined_names_but_not_those_of_the_module() -> None:
    verdict = judge(AREA, "\n    return PI * square(radius)")
    assert verdict.parses
    assert verdict.undefined == ("PI", "square")
    assert not verdict.defined
    assert judge(HELPED, "\n    return twice(x) + 0").sound
    assert judge(HELPED, "\n    return thrice(x)").undefined == ("thrice",)


@pytest.mark.parametrize(
    "body",
    ["", "\n    pass", "\n    return", "\n    return None", "\n    ...", "\n    raise NotImplementedError('later')"],
)
def test_doing_nothing_is_not_sound(body: str) -> None:
    """Or whoever writes nothing would win."""
    verdict = judge(AREA, body)
    assert verdict.parses
    assert verdict.trivial
    assert not verdict.sound


def test_a_second_function_does_not_hide_an_empty_first() -> None:
    assert judge(AREA, "\n    pass\n\n\ndef more(x):\n    return x + 1").trivial


def test_summary_counts_and_has_intervals() -> None:
    bodies = [AREA.body, "\n    pass", "\n    return (", "\n    x = 1\n    x = 1\n    return rad"]
    run = FunctionsRun.of([AREA] * 4, bodies)
    found = run.summary()
    assert (found["parses"], found["defined"], found["sound"], found["trivial"]) == (0.75, 0.5, 0.25, 0.25)
    assert found["parses_interval"][0] < 0.75 < found["parses_interval"][1]
    assert found["lines"] == 1.5
    assert found["lines_of_the_originals"] == 1
    assert found["distinct_bodies"] == 1
    assert found["repeated_lines"] == pytest.approx(1 / 12)
    assert FunctionsRun.of([AREA] * 2, ["\n    pass"] * 2).summary()["distinct_bodies"] == 0.5


def test_every_function_needs_a_body() -> None:
    with pytest.raises(ValueError, match="1 bodies for 2 functions"):
        FunctionsRun.of([AREA, AREA], ["\n    pass"])
