"""EvalPlus's way of telling a right answer (HumanEval+ and MBPP+): on every input, compare with the reference solution.

The source of this file is put before the tests of a task and runs with them inside the sandbox, on the judge's side, so it
imports nothing but the standard library. The rules are EvalPlus 0.3's; only its time limit per input is left to the sandbox.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

inf, nan = math.inf, math.nan  # how repr writes them in the inputs
# Outputs that are matches of regular expressions: only whether there is one counts, as in the original tests.
ONLY_WHETHER_NONE = {"check_str", "text_match_three", "text_starta_endb"}
AS_SETS = {
    "similar_elements",
    "find_char_long",
    "common_in_nested_lists",
    "extract_singly",
    "larg_nnum",
    "intersection_array",
    "find_dissimilar",
    "Diff",
}


def check_plus(
    candidate: Callable[..., Any], solution: str, entry_point: str, inputs: list[Any], tolerance: float
) -> None:
    """Raises AssertionError at the first input where the candidate is wrong."""
    scope: dict[str, Any] = {"__name__": "reference"}
    exec(solution, scope)
    for given in inputs:
        expected = scope[entry_point](*deepcopy(given))
        answer = candidate(*deepcopy(given))  # what it does to them must not make it right below
        if tolerance == 0 and all_floats(expected):
            tolerance = 1e-6  # and so it stays for the inputs that follow, as in EvalPlus
        assert right(entry_point, given, answer, expected, tolerance), (
            f"{entry_point}({', '.join(map(repr, given))}) == {expected!r}, got {answer!r}"
        )


def right(entry_point: str, given: list[Any], answer: Any, expected: Any, tolerance: float) -> bool:
    same = bool(answer == expected)
    if entry_point == "find_zero":  # HumanEval/32: any root will do
        return abs(sum(factor * math.pow(answer, power) for power, factor in enumerate(given[0]))) <= tolerance
    if entry_point == "are_equivalent":  # Mbpp/164: the task's text contradicts its tests, so everything is right
        return True
    if entry_point == "sum_div":  # Mbpp/295: whether a number divides itself is not said
        same = same or answer == 0
    elif entry_point == "surface_Area":  # Mbpp/581: the height may be the pyramid's or its side's
        edge, height = given
        same = same or abs(answer - round(edge**2 + 2 * edge * math.hypot(edge / 2, height))) <= tolerance
    elif entry_point == "digit_distance_nums":  # Mbpp/558: or digit by digit
        one, other = (str(number).zfill(max(len(str(n)) for n in given)) for number in given)
        same = same or answer == sum(abs(int(a) - int(b)) for a, b in zip(one, other, strict=True))
    elif entry_point in AS_SETS:
        same = set(answer) == set(expected)
    elif entry_point in ONLY_WHETHER_NONE:
        same = (answer if isinstance(answer, bool) else answer is not None) == (expected is not None)
    return same or (tolerance != 0 and type(answer) is type(expected) and close(answer, expected, tolerance))


def close(answer: Any, expected: Any, tolerance: float) -> bool:
    """numpy.allclose with rtol 1e-7, for numbers and nested lists of them."""
    if isinstance(expected, list | tuple):
        return (
            isinstance(answer, list | tuple)
            and len(answer) == len(expected)
            and all(close(a, b, tolerance) for a, b in zip(answer, expected, strict=True))
        )
    if not all(isinstance(number, int | float | complex) for number in (answer, expected)):
        return False
    return bool(answer == expected or abs(answer - expected) <= tolerance + 1e-7 * abs(expected))


def all_floats(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(item, float) for item in value)
    return isinstance(value, float)
