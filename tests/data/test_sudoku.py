"""Boards, puzzles, symmetries, tokens and files of Sudoku; the solver has its own tests beside this file."""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.data import sudoku
from prism.data.sudoku import SudokuError, Verdict
from prism.data.sudoku_solver import SHARES_UNIT

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "sudoku"

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
NO_SOLUTION = ".12345678" + "9" + "." * 71  # only a 9 fits the first row, and its column has one


def digits(text: str) -> np.ndarray:
    return np.array([int(character.replace(".", "0")) for character in text], dtype=np.uint8)


# ── generation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_boards_are_valid_and_distinct():
    boards = sudoku.boards(3000, seed=0)
    assert boards.shape == (3000, 81)
    assert boards.dtype == np.uint8
    assert sudoku.valid(boards).all()
    assert len(np.unique(boards, axis=0)) == 3000


def test_a_seed_fixes_the_boards_and_a_larger_count_only_adds_to_them():
    many = sudoku.boards(900, seed=5)  # more than one batch
    assert np.array_equal(sudoku.boards(10, seed=5), many[:10])
    assert np.array_equal(sudoku.boards(900, seed=5), many)
    assert not np.array_equal(sudoku.boards(10, seed=6), many[:10])
    assert sudoku.boards(0, seed=5).shape == (0, 81)


def test_excluded_boards_are_skipped_and_the_others_keep_their_order():
    plain = sudoku.boards(20, seed=1)
    spared = sudoku.boards(15, seed=1, excluding=plain[[0, 3, 4, 18, 19]].astype(np.int64))
    assert np.array_equal(spared, plain[[1, 2, *range(5, 18)]])


def test_repeated_boards_are_dropped(monkeypatch):
    three = sudoku.boards(3, seed=1)
    monkeypatch.setattr(sudoku, "fill", lambda starts, rng: three[[0, 0, 1, 0, 2]])
    monkeypatch.setattr(sudoku, "augment", lambda boards, rng: boards)
    assert np.array_equal(sudoku.boards(3, seed=0), three)


def test_boards_come_fast():
    sudoku.boards(1, seed=0)
    start = time.perf_counter()
    sudoku.boards(5000, seed=0)
    speed = 5000 / (time.perf_counter() - start)
    print(f"{speed:,.0f} boards a second")
    assert speed > 3000


def test_the_fill_counts_all_the_boards_there_are():
    """Knuth's estimator: the product of the candidate numbers met, 0 at a dead end, averages to the number of boards.

    That number is 6.67e21 (Felgenhauer and Jarvis, 2005). If the fill could not reach some boards, or drew digits
    unevenly, the average would miss it; with 4096 starts its standard error is about 4 %.
    """
    starts = 4096
    boards = sudoku.fill(starts, np.random.default_rng(0))
    log_choices = np.zeros(len(boards))
    blocked = np.zeros((len(boards), 81, 10), dtype=bool)
    written = np.zeros((len(boards), 81), dtype=bool)
    row = np.arange(len(boards))
    for _ in range(81):
        choices = np.where(written, 10, 9 - blocked.sum(2))
        cell = choices.argmin(1)
        log_choices += np.log(choices[row, cell])
        written[row, cell] = True
        where, peer = np.nonzero(SHARES_UNIT[cell])
        blocked[where, peer, boards[where, cell[where]]] = True
    assert np.exp(log_choices).sum() / starts == pytest.approx(6.671e21, rel=0.2)


@pytest.mark.parametrize("clues", [24, 30, 50, 81])
def test_puzzles_have_the_clues_asked_for_and_their_solution(clues):
    made = sudoku.puzzles(20, clues, seed=2)
    assert made.puzzle.shape == made.solution.shape == (20, 81)
    assert (np.count_nonzero(made.puzzle, axis=1) == clues).all()
    assert sudoku.solves(made.solution, made.puzzle).all()
    assert (sudoku.solve(made.puzzle).count == 1).all()
    assert len(np.unique(made.solution, axis=0)) == 20


def test_a_seed_fixes_the_puzzles_and_a_larger_count_only_adds_to_them():
    many = sudoku.puzzles(200, 32, seed=3)  # more than one batch
    few = sudoku.puzzles(7, 32, seed=3)
    assert np.array_equal(few.puzzle, many.puzzle[:7])
    assert np.array_equal(few.solution, many.solution[:7])
    assert not np.array_equal(sudoku.puzzles(7, 32, seed=4).puzzle, few.puzzle)
    assert sudoku.puzzles(0, 30, seed=3).puzzle.shape == (0, 81)


def test_the_clues_of_a_puzzle_stand_at_random_places():
    """A digging order shared by all boards, or one that spares some cells, would show here."""
    kept = (sudoku.puzzles(300, 40, seed=0).puzzle != 0).mean(axis=0)
    assert abs(kept - 40 / 81).max() < 0.15  # five standard errors


@pytest.mark.parametrize("clues", [16, 82, 0, -1])
def test_impossible_clue_counts_are_refused(clues):
    with pytest.raises(SudokuError, match=f"clues={clues} is impossible.*17 to 81"):
        sudoku.puzzles(1, clues, seed=0)


def test_out_of_reach_clue_counts_end_in_an_error(monkeypatch):
    monkeypatch.setattr(sudoku, "PATIENCE", 1)
    with pytest.raises(SudokuError, match=r"clues=17 is too few: 1 batches .* ask for more clues"):
        sudoku.puzzles(1, 17, seed=0)


# ── symmetries ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_symmetries_keep_boards_valid_and_change_them():
    boards = sudoku.boards(500, seed=0)
    changed = sudoku.augment(boards, np.random.default_rng(0))
    assert sudoku.valid(changed).all()
    assert (changed != boards).any(axis=1).all()
    assert len(np.unique(changed, axis=0)) == 500


def test_the_symmetries_of_one_board_are_all_different_and_valid():
    same = np.repeat(digits(SOLUTION)[None], 2000, axis=0)
    changed = sudoku.augment(same, np.random.default_rng(1))
    assert sudoku.valid(changed).all()
    assert len(np.unique(changed, axis=0)) == 2000


def test_symmetries_are_permutations_that_keep_the_mask():
    cells, renamed = sudoku.symmetries(300, np.random.default_rng(0))
    assert (np.sort(cells, axis=1) == np.arange(81)).all()
    assert (np.sort(renamed, axis=1) == np.arange(10)).all()
    assert (renamed[:, 0] == sudoku.MASK).all()


def test_symmetries_send_any_cell_anywhere():
    cells, renamed = sudoku.symmetries(5000, np.random.default_rng(0))
    assert set(cells[:, 0]) == set(range(81))
    assert set(renamed[:, 1]) == set(range(1, 10))
    transposed = cells[:, 0] // 9 != cells[:, 1] // 9
    assert transposed.mean() == pytest.approx(0.5, abs=0.04)


def test_a_symmetry_of_a_puzzle_still_has_one_solution():
    made = sudoku.puzzles(30, 30, seed=0)
    changed = sudoku.augment(made.puzzle, np.random.default_rng(4))
    solution = sudoku.augment(made.solution, np.random.default_rng(4))  # the same draws
    assert (np.count_nonzero(changed, axis=1) == 30).all()
    solved = sudoku.solve(changed)
    assert (solved.count == 1).all()
    assert np.array_equal(solved.solution, solution)


# ── tokens and rules ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(0, 9), min_size=81, max_size=81))
def test_tokens_and_back(cells):
    board = np.array([cells], dtype=np.uint8)
    tokens = sudoku.to_tokens(board)
    assert tokens.shape == (1, 89)
    assert list(tokens[0, 9::10]) == [10] * 8
    assert list(tokens[0, :9]) == cells[:9]
    assert list(tokens[0, 80:]) == cells[72:]
    assert np.array_equal(sudoku.from_tokens(tokens), board)


def test_misplaced_separators_are_refused():
    tokens = sudoku.to_tokens(np.repeat(digits(SOLUTION)[None], 3, axis=0))
    tokens[1, [28, 29]] = tokens[1, [29, 28]]
    with pytest.raises(SudokuError, match="token 29 of board 1 is 7; expected the separator 10 at tokens 9, 19"):
        sudoku.from_tokens(tokens)


def test_a_separator_written_into_a_cell_reads_as_a_wrong_board():
    tokens = sudoku.to_tokens(digits(SOLUTION)[None])
    tokens[0, 40] = sudoku.SEPARATOR
    assert not sudoku.valid(sudoku.from_tokens(tokens)).any()


@pytest.mark.parametrize("wrong", [0, 10])
def test_no_digit_can_be_replaced_throughout_by_a_mask_or_separator(wrong):
    """The authors' check takes a board whose every 9 is still masked for a solution."""
    board = digits(SOLUTION)[None]
    assert sudoku.valid(board).all()
    assert not sudoku.valid(np.where(board == 9, wrong, board)).any()


@given(st.integers(0, 80), st.integers(0, 80))
def test_swapping_two_different_digits_spoils_a_board(one, other):
    board = digits(SOLUTION)
    board[[one, other]] = board[[other, one]]
    assert sudoku.valid(board[None])[0] == (board[one] == board[other])


@pytest.mark.parametrize("kind", ["row", "column", "box"])
def test_each_kind_of_unit_is_checked(kind):
    """Boards in which the two other kinds are perfect."""
    row, column = np.divmod(np.arange(81), 9)
    board = {
        "row": 3 * (row % 3) + (column + row // 3) % 3,
        "column": 3 * (column % 3) + (row + column // 3) % 3,
        "box": (row + column) % 9,
    }[kind]
    faulty = {
        name
        for name, unit in {"row": row, "column": column, "box": 3 * (row // 3) + column // 3}.items()
        if any(len(set(board[unit == number])) < 9 for number in range(9))
    }
    assert faulty == {kind}
    assert not sudoku.valid(board[None] + 1).any()


def test_a_solution_must_keep_the_clues():
    puzzle, solution = digits(PUZZLE)[None], digits(SOLUTION)[None]
    assert sudoku.solves(solution, puzzle).all()
    other = sudoku.augment(solution, np.random.default_rng(0))
    assert sudoku.valid(other).all()
    assert not sudoku.solves(other, puzzle).any()
    assert not sudoku.solves(puzzle, puzzle).any()


@pytest.mark.parametrize(
    ("cells", "digit", "message"),
    [
        ([18, 26], 7, "row 3 has two 7s"),
        ([4, 40, 76], 2, "column 5 has three 2s"),
        ([60, 70, 80], 9, "box 9 has three 9s"),
        ([0, 10], 1, "box 1 has two 1s"),
        ([0, 1], 5, "row 1 has two 5s"),
        (range(9), 4, "row 1 has nine 4s"),
        ([0, 13, 26], 4, None),
        ([], 1, None),
    ],
)
def test_clashes_are_named(cells, digit, message):
    puzzle = np.zeros(81, dtype=np.uint8)
    puzzle[list(cells)] = digit
    assert sudoku.contradiction(puzzle) == message


def test_diagnoses_are_told_apart():
    assert sudoku.diagnose(digits(PUZZLE)).verdict is Verdict.FINE
    assert sudoku.diagnose(digits(NO_SOLUTION)).verdict is Verdict.UNSOLVABLE
    assert sudoku.diagnose(np.zeros(81, dtype=np.int64)).verdict is Verdict.SEVERAL
    clash = sudoku.diagnose(digits("77" + "." * 79))
    assert (clash.verdict, clash.where) == (Verdict.CONTRADICTION, "row 1 has two 7s")
    assert str(clash) == "has clues that contradict each other: row 1 has two 7s"
    assert str(sudoku.diagnose(digits(SOLUTION))) == "has exactly one solution"


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────

AS_INTEGERS = ",".join(PUZZLE.replace(".", "0"))
AS_TOKENS = ",".join(map(str, sudoku.to_tokens(digits(PUZZLE)[None])[0]))


@pytest.mark.parametrize(
    "text",
    [
        PUZZLE,
        PUZZLE.replace(".", "0"),
        PUZZLE.replace(".", "_"),
        f"  {PUZZLE}\n",
        AS_INTEGERS,
        AS_INTEGERS.replace(",", ", "),
        AS_TOKENS,
    ],
)
def test_every_form_of_a_puzzle_is_read(text):
    puzzle = sudoku.parse_puzzle(text)
    assert puzzle.dtype == np.uint8
    assert np.array_equal(puzzle, digits(PUZZLE))


def test_a_file_may_mix_forms_comments_and_blank_lines(tmp_path):
    path = tmp_path / "puzzles.txt"
    path.write_text(
        f"\ufeff# a comment\r\n\r\n{PUZZLE}  # the first\n  \n{AS_INTEGERS}\n{AS_TOKENS}\n", encoding="utf-8"
    )
    assert np.array_equal(sudoku.read_puzzles(path), np.repeat(digits(PUZZLE)[None], 3, axis=0))
    assert np.array_equal(sudoku.read_puzzles(str(path)), sudoku.read_puzzles(path))


def edited(text: str, position: int, value: object) -> str:
    fields = text.split(",")
    fields[position] = str(value)
    return ",".join(fields)


BAD_LINES = {
    "a letter": ("x" + PUZZLE[1:], "character 1 is 'x'; expected a digit from 1 to 9, or 0, . or _"),
    "a foreign digit": (PUZZLE[:-1] + "٣", "character 81 is '٣'"),
    "one short": (PUZZLE[:-1], "80 characters; expected 81"),
    "a solution beside it": (f"{PUZZLE} {SOLUTION}", "163 characters; expected 81"),
    "a solution column": (f"{PUZZLE},{SOLUTION}", "2 comma-separated values; expected 81, or 89"),
    "a header": ("quizzes,solutions", "2 comma-separated values"),
    "80 integers": (AS_INTEGERS[:-2], "80 comma-separated values"),
    "a trailing comma": (AS_INTEGERS + ",", "82 comma-separated values"),
    "a digit too large": (edited(AS_INTEGERS, 2, 10), "value 3 is '10'; expected a digit from 1 to 9"),
    "a negative digit": (edited(AS_INTEGERS, 2, -1), "value 3 is '-1'"),
    "a word": (edited(AS_INTEGERS, 80, "nine"), "value 81 is 'nine'"),
    "an empty field": (edited(AS_INTEGERS, 4, ""), "value 5 is ''"),
    "a missing separator": (edited(AS_TOKENS, 9, 0), "value 10 is '0'; expected the separator 10"),
    "a separator in a cell": (edited(AS_TOKENS, 12, 10), "value 13 is '10'; expected a digit from 1 to 9"),
    "clashing clues": ("55" + PUZZLE[2:], "the clues contradict each other: row 1 has two 5s"),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path, line, message):
    path = tmp_path / "bad.csv"
    path.write_text(f"# puzzles\n{PUZZLE}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(SudokuError) as caught:
        sudoku.read_puzzles(path)
    assert str(caught.value).startswith(f"{path}, line 4: {message}")
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(SudokuError) as caught:
        sudoku.parse_puzzle(line)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("content", [b"", b"\n\n  \n", b"# only a comment\n"])
def test_a_file_without_puzzles_is_an_error(tmp_path, content):
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(SudokuError, match=r"empty\.txt holds no puzzle; expected one a line"):
        sudoku.read_puzzles(path)


def test_unreadable_files_are_an_error(tmp_path):
    with pytest.raises(SudokuError, match=r"absent\.txt cannot be read \(No such file"):
        sudoku.read_puzzles(tmp_path / "absent.txt")
    with pytest.raises(SudokuError, match=r"cannot be read \(Is a directory\)"):
        sudoku.read_puzzles(tmp_path)


def test_a_binary_file_is_an_error_of_its_first_line(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(SudokuError, match=r"binary, line 1: 128 characters; expected 81"):
        sudoku.read_puzzles(path)


@given(
    st.text(max_size=100)
    | st.text("0123456789._", min_size=81, max_size=81)
    | st.lists(st.integers(-1, 10), min_size=81, max_size=89).map(lambda values: ",".join(map(str, values)))
    | st.integers(0, 80).map(lambda cell: PUZZLE[:cell] + "." + PUZZLE[cell + 1 :])
)
def test_any_text_is_a_puzzle_or_a_sudoku_error(text):
    try:
        puzzle = sudoku.parse_puzzle(text)
    except SudokuError:
        return
    assert puzzle.max() <= 9


# ── the shared files ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not SHARED.exists(), reason=f"the paper's puzzles are not in {SHARED}")
def test_the_papers_puzzles_have_30_clues_and_one_solution():
    puzzles = sudoku.read_puzzles(SHARED / "paper_hard_first1000.csv")
    solved = sudoku.solve(puzzles)
    assert puzzles.shape == (1000, 81)
    assert (np.count_nonzero(puzzles, axis=1) == 30).all()
    assert (solved.count == 1).all()
    assert sudoku.solves(solved.solution, puzzles).all()
