"""Pairs of bodies: what was mended, what was broken, and the page that shows it."""

from __future__ import annotations

import pytest

from prism.data.functions import Function
from prism.evaluation.corrections import Change, by_task, corrections, page, summary
from prism.evaluation.functions import FunctionsRun

PROMPT = 'def double(x):\n    """Twice x."""'
DOUBLE = Function("numbers", "n.py", "double", 1, PROMPT, "\n    return 2 * x", documented=True)

CASES = {
    Change.REPAIRED: ("\n    return (2 * x", "\n    return (2 * x)"),
    Change.BROKEN: ("\n    return x + x", "\n    return x + + ) x"),
    Change.DEFINED: ("\n    return y + x", "\n    return x + x"),
    Change.UNDEFINED: ("\n    return x + x", "\n    return x + y"),
    Change.EMPTIED: ("\n    return x + x", "\n    pass"),
    Change.FILLED: ("\n    pass", "\n    return x + x"),
    Change.SPOILT: ("\n    return 2 * x", "\n    return 3 * x"),
    Change.SAME: ("\n    return x", "\n    return x"),
    Change.OTHER: ("\n    return x", "\n    return x + 1"),
}


def run(*bodies: str) -> FunctionsRun:
    return FunctionsRun.of([DOUBLE] * len(bodies), bodies)


@pytest.mark.parametrize("change", Change)
def test_every_change_is_told(change: Change) -> None:
    before, after = CASES[change]
    [pair] = corrections(run(before), run(after))
    assert pair.change is change


def test_losses_are_over_corrections() -> None:
    lost = {change for change in Change if change.over_correction}
    assert lost == {Change.BROKEN, Change.UNDEFINED, Change.EMPTIED, Change.SPOILT}


def test_summary() -> None:
    pairs = corrections(run(*(case[0] for case in CASES.values())), run(*(case[1] for case in CASES.values())))
    found = summary(pairs)
    assert set(found["changes"].values()) == {1}
    assert found["over_corrections"] == 4
    assert (found["syntax_errors_before"], found["syntax_errors_after"]) == (1, 1)
    assert found["gain_parses"] == 0
    assert found["errors_repaired"] == {"… was never closed": 1}
    assert list(found["errors_introduced"].values()) == [1]
    better = summary(corrections(run(*[CASES[Change.REPAIRED][0]] * 9), run(*[CASES[Change.REPAIRED][1]] * 9)))
    assert better["gain_sound"] == 1
    low, high = better["gain_sound_interval"]
    assert 0 < low < high == 1, "nine of nine is not certainty"


def test_every_task_is_told() -> None:
    found = by_task(corrections(run(*(case[0] for case in CASES.values())), run(*(case[1] for case in CASES.values()))))
    assert [task["change"] for task in found] == [change.name.lower() for change in CASES]
    assert {task["change"] for task in found if task["over_correction"]} == {"broken", "undefined", "emptied", "spoilt"}
    assert {(task["package"], task["function"]) for task in found} == {("numbers", "double")}


def test_page_shows_the_diff_and_the_complaint() -> None:
    pairs = corrections(
        run(CASES[Change.REPAIRED][0], "\n    return '```'"), run(CASES[Change.REPAIRED][1], "\n    return 1")
    )
    text = page("Vanilla and PRISM", pairs)
    assert text.startswith("# Vanilla and PRISM")
    assert "| a syntax error repaired | 1 |" in text
    assert "-    return (2 * x\n+    return (2 * x)" in text
    assert "was never closed" in text
    assert "````diff" in text  # a fence that a fence inside cannot end
    assert " def double(x):" in text


def test_page_with_half_a_character_can_be_written() -> None:
    text = page("Odd", corrections(run("\n    return '\udc80é'"), run("\n    return x")))
    assert "-    return '\\udc80é'" in text
    text.encode()


def test_page_shows_no_more_than_asked() -> None:
    before, after = CASES[Change.REPAIRED]
    pairs = corrections(run(*[before] * 5), run(*[after] * 5))
    assert page("Many", pairs, most=2).count("### numbers: double") == 2


def test_runs_over_other_functions_are_refused() -> None:
    other = Function("numbers", "n.py", "half", 1, 'def half(x):\n    """Half."""', "\n    return x / 2", True)
    with pytest.raises(ValueError, match="different functions"):
        corrections(run("\n    pass"), FunctionsRun.of([other], ["\n    pass"]))
