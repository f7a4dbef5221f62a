"""Sudoku: boards, puzzles, their tokens and files (the conditional completion task of the PRISM paper, section 4.1).

A board is 81 digits, row by row; a puzzle has 0 where a cell is blank. The model reads 89 tokens: the digits with the
separator 10 after each of the first eight rows, and 0 is its mask. The paper trains on 48,000 complete boards that were
not published and tests on puzzles with 30 clues, so both are generated here, from a seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count as count_from
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt8

from prism.data.sudoku_solver import (
    ALL_DIGITS,
    CELLS_OF_UNIT,
    SHARES_UNIT,
    Solutions,
    candidates,
    search,
    solve,
)

__all__ = [
    "CELLS",
    "LENGTH",
    "MASK",
    "SEPARATOR",
    "SEPARATORS",
    "VOCABULARY",
    "Diagnosis",
    "Puzzles",
    "Solutions",
    "SudokuError",
    "Verdict",
    "augment",
    "boards",
    "contradiction",
    "diagnose",
    "from_tokens",
    "parse_puzzle",
    "puzzles",
    "read_puzzles",
    "solve",
    "solves",
    "symmetries",
    "to_tokens",
    "valid",
]

MASK = 0
SEPARATOR = 10
VOCABULARY = 11
LENGTH = 89
SEPARATORS = np.arange(9, LENGTH, 10)  # positions of the separators among the tokens
CELLS = np.setdiff1d(np.arange(LENGTH), SEPARATORS)  # positions of the 81 cells among the tokens


class SudokuError(ValueError):
    """Something a user gave is not a Sudoku, or asks for one that cannot be had."""


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def to_tokens(boards: Integer[np.ndarray, "n 81"]) -> UInt8[np.ndarray, "n 89"]:
    """Boards or puzzles as the model reads them."""
    tokens = np.full((len(boards), LENGTH), SEPARATOR, dtype=np.uint8)
    tokens[:, CELLS] = boards
    return tokens


def from_tokens(tokens: Integer[np.ndarray, "n 89"]) -> UInt8[np.ndarray, "n 81"]:
    """The cells of token sequences, whatever they hold: a model may write a separator there, `valid` rejects it."""
    misplaced = np.argwhere(tokens[:, SEPARATORS] != SEPARATOR)
    if len(misplaced):
        board, row = misplaced[0]
        raise SudokuError(
            f"token {SEPARATORS[row]} of board {board} is {tokens[board, SEPARATORS[row]]}; "
            f"expected the separator {SEPARATOR} at tokens 9, 19, ..., 79"
        )
    return tokens[:, CELLS].astype(np.uint8)


# ── the rules ───────────────────────────────────────────────────────────────────────────────────────────────────────


def valid(boards: Integer[np.ndarray, "n 81"]) -> Bool[np.ndarray, " n"]:
    """Whether every row, column and box holds 1 to 9; a board with a blank is not valid."""
    in_order = np.sort(boards[:, CELLS_OF_UNIT], axis=1)
    return (in_order == np.arange(1, 10)[:, None]).all(axis=(1, 2))


def solves(boards: Integer[np.ndarray, "n 81"], puzzles: Integer[np.ndarray, "n 81"]) -> Bool[np.ndarray, " n"]:
    """Whether each board is valid and keeps every clue of its puzzle."""
    return valid(boards) & ((puzzles == MASK) | (puzzles == boards)).all(axis=1)


def contradiction(puzzle: Integer[np.ndarray, "81"]) -> str | None:
    """The first clash between clues in words, such as "row 3 has two 7s"; rows come first, then columns, then boxes."""
    times = (puzzle[CELLS_OF_UNIT][:, :, None] == np.arange(1, 10)).sum(axis=0)  # [27 units, 9 digits]
    clashes = np.argwhere(times > 1)
    if not len(clashes):
        return None
    unit, digit = clashes[0]
    number = ("two", "three", "four", "five", "six", "seven", "eight", "nine")[times[unit, digit] - 2]
    return f"{('row', 'column', 'box')[unit // 9]} {unit % 9 + 1} has {number} {digit + 1}s"


class Verdict(Enum):
    """What can be said of a puzzle."""

    FINE = "has exactly one solution"
    CONTRADICTION = "has clues that contradict each other"
    UNSOLVABLE = "has no solution, although no two clues clash"
    SEVERAL = "has more than one solution"


@dataclass(frozen=True)
class Diagnosis:
    """A verdict and, for contradictory clues, where they clash."""

    verdict: Verdict
    where: str | None = None

    def __str__(self) -> str:
        return self.verdict.value + (f": {self.where}" if self.where else "")


def diagnose(puzzle: Integer[np.ndarray, "81"]) -> Diagnosis:
    """Tell a proper puzzle from one that contradicts itself, has no solution or has several."""
    where = contradiction(puzzle)
    if where:
        return Diagnosis(Verdict.CONTRADICTION, where)
    count = solve(puzzle[None]).count[0]
    return Diagnosis((Verdict.UNSOLVABLE, Verdict.FINE, Verdict.SEVERAL)[count])


# ── symmetries ──────────────────────────────────────────────────────────────────────────────────────────────────────


def symmetries(
    count: int, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, "count 81"], UInt8[np.ndarray, "count 10"]]:
    """Draw symmetries of the game uniformly, as two tables to gather with: `digits[boards[cells]]` row by row.

    `cells` permutes bands, stacks, the rows and columns inside them, and transposes half of the time; `digits` renames
    1 to 9 and keeps the mask. Any framework with a gather can apply them.
    """
    rows, columns = _line_orders(count, rng), _line_orders(count, rng)
    cells = 9 * rows[:, :, None] + columns[:, None, :]
    transposed = rng.random(count) < 0.5
    cells[transposed] = cells[transposed].swapaxes(1, 2)
    digits = np.zeros((count, 10), dtype=np.uint8)
    digits[:, 1:] = rng.random((count, 9)).argsort(axis=1) + 1
    return cells.reshape(count, 81), digits


def _line_orders(count: int, rng: np.random.Generator) -> Int64[np.ndarray, "count 9"]:
    """Random orders of nine rows in which the three rows of a band stay together (or columns of a stack)."""
    bands = rng.random((count, 3, 1)).argsort(axis=1)
    lines = rng.random((count, 3, 3)).argsort(axis=2)
    return (3 * bands + lines).reshape(count, 9)


def augment(boards: Integer[np.ndarray, "n 81"], rng: np.random.Generator) -> UInt8[np.ndarray, "n 81"]:
    """Each board or puzzle under a random symmetry of its own; what was valid stays valid."""
    cells, digits = symmetries(len(boards), rng)
    return np.take_along_axis(digits, np.take_along_axis(boards, cells, axis=1).astype(np.int64), axis=1)


# ── generation ──────────────────────────────────────────────────────────────────────────────────────────────────────

STARTS = 1024  # boards begun together; about two in three are finished
PUZZLE_STARTS = 256  # the same for puzzles, whose boards cost more
PATIENCE = 40  # batches in a row without a puzzle before `puzzles` gives up


def boards(count: int, seed: int, *, excluding: Integer[np.ndarray, "m 81"] | None = None) -> UInt8[np.ndarray, "n 81"]:
    """Random complete boards, all different, none of them in `excluding`; a larger count only adds boards at the end.

    Boards are filled at random, the cell with the fewest candidates first, and dropped at a dead end; a random symmetry
    follows. So the boards of one symmetry class are equally likely, but the classes are not drawn quite uniformly: a
    fill ends at a board with probability one over the product of the candidate numbers met on its way. Every board can
    occur, and averaged over symmetries the bias is small: reweighted to uniform, a sample keeps 86 % of its effective
    size (27 % without the last step). That does for training data.
    """
    known = set() if excluding is None else {board.tobytes() for board in excluding.astype(np.uint8)}
    found = np.empty((count, 81), dtype=np.uint8)
    stream = _board_stream(seed)
    for place in range(count):
        board = next(board for board in stream if board.tobytes() not in known)
        known.add(board.tobytes())
        found[place] = board
    return found


def _board_stream(seed: int) -> Iterator[UInt8[np.ndarray, "81"]]:
    for batch in count_from():
        rng = _batch_rng(seed, 0, batch)
        yield from augment(fill(STARTS, rng), rng)


def _batch_rng(seed: int, purpose: int, batch: int) -> np.random.Generator:
    """A generator of its own for each batch, so that earlier batches do not depend on how many follow."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, batch)))


_NTH_DIGIT = np.array(  # [512 sets of candidates, 9] the n-th lowest digit of a set, less 1, then padding
    [([digit for digit in range(9) if digits >> digit & 1] + 9 * [0])[:9] for digits in range(ALL_DIGITS + 1)],
    dtype=np.uint8,
)
_STILL_ALLOWED = np.array(  # [81 cells, 9 digits, 81 cells] what a digit written into a cell leaves of every cell
    [[np.where(peers, ALL_DIGITS ^ (1 << digit), ALL_DIGITS) for digit in range(9)] for peers in SHARES_UNIT],
    dtype=np.uint16,
)


def fill(starts: int, rng: np.random.Generator) -> UInt8[np.ndarray, "n 81"]:
    """Fill empty boards at random, one cell of each at a time, and return those that met no dead end."""
    board = np.zeros((starts, 81), dtype=np.uint8)
    options = np.full((starts, 81), ALL_DIGITS, dtype=np.uint16)
    for _ in range(81):
        count = np.bitwise_count(options)
        count[board != MASK] = 10  # more than any blank cell has
        alive = count.min(axis=1) > 0
        board, options, count = board[alive], options[alive], count[alive]
        row, cell = np.arange(len(board)), count.argmin(axis=1)
        nth = (rng.random(len(board)) * count[row, cell]).astype(np.int64)
        digit = _NTH_DIGIT[options[row, cell], nth]
        board[row, cell] = digit + 1
        options &= _STILL_ALLOWED[cell, digit]
    return board


@dataclass(frozen=True)
class Puzzles:
    """Puzzles, each with its only solution."""

    puzzle: UInt8[np.ndarray, "n 81"]
    solution: UInt8[np.ndarray, "n 81"]


def puzzles(count: int, clues: int, seed: int) -> Puzzles:
    """Random puzzles with exactly `clues` clues and one solution; a larger count only adds puzzles at the end.

    Cells are blanked in random order wherever the solution stays unique. Of the boards tried, 84 % reach 25 clues, 21 %
    reach 23, 4 % reach 22 and 0.2 % reach 21; below that an error after about half a minute is likely.
    """
    if not 17 <= clues <= 81:
        raise SudokuError(f"clues={clues} is impossible: a puzzle with one solution has 17 to 81 clues")
    batches, none = _puzzle_batches(clues, seed), np.empty((0, 81), dtype=np.uint8)
    found = [Puzzles(none, none)]
    while sum(len(part.puzzle) for part in found) < count:
        found.append(next(batches))
    return Puzzles(
        puzzle=np.concatenate([part.puzzle for part in found])[:count],
        solution=np.concatenate([part.solution for part in found])[:count],
    )


def _puzzle_batches(clues: int, seed: int) -> Iterator[Puzzles]:
    fruitless = 0
    for batch in count_from():
        rng = _batch_rng(seed, 1, batch)
        dug = dig(augment(fill(PUZZLE_STARTS, rng), rng), clues, rng)
        yield dug
        fruitless = 0 if len(dug.puzzle) else fruitless + 1
        if fruitless == PATIENCE:
            raise SudokuError(
                f"clues={clues} is too few: {PATIENCE} batches of {PUZZLE_STARTS} boards gave no such puzzle, for "
                "blanking cells at random seldom gets below 22; ask for more clues"
            )


def dig(boards: UInt8[np.ndarray, "n 81"], clues: int, rng: np.random.Generator) -> Puzzles:
    """Blank cells of each board in random order while the solution stays unique; keep boards that reach `clues`."""
    puzzle = boards.copy()
    for cell in rng.random(boards.shape).argsort(axis=1).T:
        (rich,) = np.nonzero(np.count_nonzero(puzzle, axis=1) > clues)
        trial, blanked = puzzle[rich], cell[rich]
        trial[np.arange(len(rich)), blanked] = MASK
        # The solution stays unique when no board fits with another digit in the blanked cell.
        options = candidates(trial)
        options[blanked, np.arange(len(rich))] ^= candidates(boards[rich])[blanked, np.arange(len(rich))]
        unique = search(options, limit=1).count == 0
        puzzle[rich[unique], blanked[unique]] = MASK
    reached = np.count_nonzero(puzzle, axis=1) == clues
    return Puzzles(puzzle[reached], boards[reached])


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_puzzles(path: str | Path) -> UInt8[np.ndarray, "n 81"]:
    """Read one puzzle a line in any form of `parse_puzzle`; blank lines and what follows a # are skipped."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise SudokuError(f"{path} cannot be read ({error.strerror}); expected a text file of puzzles") from error
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.append(parse_puzzle(text))
        except SudokuError as error:
            raise SudokuError(f"{path}, line {number}: {error}") from None
    if not found:
        raise SudokuError(f"{path} holds no puzzle; expected one a line, 81 characters or comma-separated integers")
    return np.stack(found)


def parse_puzzle(text: str) -> UInt8[np.ndarray, "81"]:
    """Read a puzzle of 81 characters (0, . or _ for a blank), of 81 comma-separated integers, or of the 89 tokens."""
    puzzle = np.array(_parse_integers(text) if "," in text else _parse_characters(text), dtype=np.uint8)
    clash = contradiction(puzzle)
    if clash:
        raise SudokuError(f"the clues contradict each other: {clash}; expected each digit once in a row, column or box")
    return puzzle


_DIGITS = frozenset("0123456789")


def _parse_characters(text: str) -> list[int]:
    characters = text.strip()
    if len(characters) != 81:
        raise SudokuError(f"{len(characters)} characters; expected 81, one a cell, or comma-separated integers")
    for position, character in enumerate(characters, start=1):
        if character not in _DIGITS | {".", "_"}:
            raise SudokuError(
                f"character {position} is {character!r}; expected a digit from 1 to 9, or 0, . or _ for a blank"
            )
    return [0 if character in "._" else int(character) for character in characters]


def _parse_integers(text: str) -> list[int]:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) not in (81, LENGTH):
        raise SudokuError(
            f"{len(fields)} comma-separated values; expected 81, or {LENGTH} with the separator {SEPARATOR} "
            "after each of the first eight rows"
        )
    separators = set(SEPARATORS) if len(fields) == LENGTH else set()
    for position, field in enumerate(fields):
        if position in separators and field != str(SEPARATOR):
            raise SudokuError(
                f"value {position + 1} is {field!r}; expected the separator {SEPARATOR}, which ends the first eight rows"
            )
        if position not in separators and field not in _DIGITS:
            raise SudokuError(f"value {position + 1} is {field!r}; expected a digit from 1 to 9, or 0 for a blank")
    return [int(field) for position, field in enumerate(fields) if position not in separators]
