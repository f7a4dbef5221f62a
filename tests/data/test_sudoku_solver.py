"""The batched solver against a slow obvious one, and on boards known to be hard."""

import time
from pathlib import Path

import numpy as np
import pytest

from prism.data import sudoku
from prism.data.sudoku_solver import CELLS_OF_UNIT, SHARES_UNIT, UNITS_OF_CELL, solve

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "sudoku"

# Hard for candidate elimination: 17 clues and no solution, though none of them clash.
NO_SOLUTION = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."


def reference_solutions(puzzle: list[int], limit: int) -> list[list[int]]:
    """Try every digit in the blank cell that has the fewest left, by the rules of the game and nothing else."""

    def allowed(cell: int) -> list[int]:
        row, column = divmod(cell, 9)
        taken = set()
        for place in range(9):
            taken.add(puzzle[9 * row + place])
            taken.add(puzzle[9 * place + column])
            taken.add(puzzle[9 * (row // 3 * 3 + place // 3) + column // 3 * 3 + place % 3])
        return [digit for digit in range(1, 10) if digit not in taken]

    blanks = [cell for cell in range(81) if puzzle[cell] == 0]
    if not blanks:
        return [list(puzzle)] if sudoku.contradiction(np.array(puzzle)) is None else []
    cell = min(blanks, key=lambda blank: len(allowed(blank)))
    found: list[list[int]] = []
    for digit in allowed(cell):
        puzzle[cell] = digit
        found += reference_solutions(puzzle, limit - len(found))
        puzzle[cell] = 0
        if len(found) >= limit:
            break
    return found


def assert_agrees_with_reference(puzzles: np.ndarray, limit: int = 2) -> np.ndarray:
    ours = solve(puzzles, limit)
    for puzzle, count, solution in zip(puzzles, ours.count, ours.solution, strict=True):
        expected = reference_solutions(puzzle.tolist(), limit)
        assert count == len(expected)
        if count == 1 < limit:
            assert solution.tolist() == expected[0]
        elif count == 0:
            assert not solution.any()
    soluble = ours.count > 0
    assert sudoku.solves(ours.solution[soluble], puzzles[soluble]).all()
    return ours.count


def test_the_units():
    assert CELLS_OF_UNIT.shape == (9, 27)
    assert list(CELLS_OF_UNIT[:, 2]) == list(range(18, 27))
    assert list(CELLS_OF_UNIT[:, 9]) == list(range(0, 81, 9))
    assert list(CELLS_OF_UNIT[:, 22]) == [30, 31, 32, 39, 40, 41, 48, 49, 50]
    assert all(cell in CELLS_OF_UNIT[:, unit] for cell in range(81) for unit in UNITS_OF_CELL[:, cell])
    assert (SHARES_UNIT.sum(0) == 21).all()


def test_proper_puzzles_agree_with_the_reference():
    made = sudoku.puzzles(30, 28, seed=11)
    assert (assert_agrees_with_reference(made.puzzle) == 1).all()
    assert np.array_equal(solve(made.puzzle).solution, made.solution)


@pytest.mark.parametrize("blanks", [10, 40, 52])
def test_puzzles_with_several_solutions_agree_with_the_reference(blanks):
    puzzles = sudoku.boards(40, seed=12)
    order = np.random.default_rng(0).random(puzzles.shape).argsort(1)
    np.put_along_axis(puzzles, order[:, :blanks], 0, axis=1)
    counts = assert_agrees_with_reference(puzzles)
    assert (counts >= 1).all()
    assert blanks != 52 or (counts == 2).sum() > 10


def test_puzzles_with_a_wrong_clue_agree_with_the_reference():
    """One clue is replaced by another digit: some clash at once, most of the others have no solution."""
    puzzles = sudoku.puzzles(60, 32, seed=13).puzzle
    rng = np.random.default_rng(1)
    for puzzle in puzzles:
        cell = rng.choice(np.flatnonzero(puzzle))
        puzzle[cell] = puzzle[cell] % 9 + 1
    clash_free = np.array([sudoku.contradiction(puzzle) is None for puzzle in puzzles])
    assert clash_free.any()
    assert (~clash_free).any()
    assert np.median(assert_agrees_with_reference(puzzles[clash_free])) == 0
    assert not solve(puzzles[~clash_free]).count.any()


@pytest.mark.parametrize("limit", [1, 5, 40])
def test_solutions_are_counted_up_to_the_limit(limit):
    made = sudoku.puzzles(6, 26, seed=14).puzzle
    for puzzle in made:
        puzzle[np.flatnonzero(puzzle)[:2]] = 0
    made[0] = sudoku.boards(1, seed=0)[0]
    counts = assert_agrees_with_reference(made, limit)
    assert counts[0] == 1
    assert counts.max() <= limit


def test_complete_boards():
    boards = sudoku.boards(50, seed=15)
    solved = solve(boards)
    assert (solved.count == 1).all()
    assert np.array_equal(solved.solution, boards)
    boards[:, [0, 1]] = boards[:, [1, 0]]  # rows stay right, columns clash
    assert not solve(boards).count.any()


def test_the_batch_does_not_matter(monkeypatch):
    puzzles = sudoku.puzzles(40, 25, seed=16).puzzle
    puzzles[::3, :20] = 0
    together = solve(puzzles)
    apart = [solve(puzzle[None]) for puzzle in puzzles]
    assert together.count.tolist() == [int(one.count[0]) for one in apart]
    monkeypatch.setattr("prism.data.sudoku_solver.GROUP", 7)
    monkeypatch.setattr("prism.data.sudoku_solver.BLOCK", 3)
    assert np.array_equal(solve(puzzles).count, together.count)
    assert solve(puzzles[:0]).solution.shape == (0, 81)


def test_the_empty_board_has_several_solutions():
    solved = solve(np.zeros((1, 81), dtype=np.int64))
    assert solved.count[0] == 2
    assert sudoku.valid(solved.solution).all()


def test_a_board_that_takes_long_to_refute_is_refuted_in_seconds():
    assert solve(sudoku.parse_puzzle(NO_SOLUTION)[None]).count[0] == 0


@pytest.mark.parametrize("cells", [[0, 8], [0, 72], [0, 20]])
@pytest.mark.timeout(30)
def test_two_clashing_clues_on_an_empty_board_are_refuted_at_once(cells):
    """Without a check for clashes the search would try whole boards to learn that one digit has no place left."""
    puzzle = np.zeros((1, 81), dtype=np.uint8)
    puzzle[0, cells] = 7
    assert solve(puzzle).count[0] == 0


def test_a_thousand_puzzles_are_checked_in_seconds():
    puzzles = sudoku.puzzles(1000, 30, seed=17).puzzle
    start = time.perf_counter()
    assert (solve(puzzles).count == 1).all()
    seconds = time.perf_counter() - start
    print(f"{seconds:.3f} s for 1000 puzzles with 30 clues")
    assert seconds < 5


@pytest.mark.skipif(not SHARED.exists(), reason=f"the 17-clue puzzles are not in {SHARED}")
def test_puzzles_with_17_clues_have_one_solution(tmp_path):
    some = tmp_path / "some.txt"
    some.write_text("\n".join((SHARED / "17clue.txt").read_text().splitlines()[::245]))
    puzzles = sudoku.read_puzzles(some)
    solved = solve(puzzles)
    assert len(puzzles) > 200
    assert (np.count_nonzero(puzzles, axis=1) == 17).all()
    assert (solved.count == 1).all()
    assert sudoku.solves(solved.solution, puzzles).all()
