"""A Sudoku solver that works on many puzzles at once, in plain numpy.

A cell is a set of candidate digits, held as a 9-bit mask. Puzzles are the last axis of every array here
(`[81, n]`), so that each rule of the game is a handful of operations on long contiguous vectors. One pass applies two
rules to a whole block of search nodes: a decided cell strikes its digit from its peers, and a digit with a single place
left in a row, column or box goes there. Nodes on which both rules fall silent are split in two at a tight cell.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt8, UInt16

Candidates = UInt16[np.ndarray, "81 n"]

ALL_DIGITS = 0b111_111_111
GROUP = 4096  # puzzles searched together
BLOCK = 512  # search nodes a pass looks at: its temporaries then stay in the processor's cache

_CELL = np.arange(81)
_ROW, _COLUMN = _CELL // 9, _CELL % 9
UNITS_OF_CELL = np.stack([_ROW, 9 + _COLUMN, 18 + 3 * (_ROW // 3) + _COLUMN // 3])  # [3, 81] rows, columns, boxes
CELLS_OF_UNIT = np.stack([np.flatnonzero(np.isin(UNITS_OF_CELL, unit).any(0)) for unit in range(27)], axis=1)  # [9, 27]
SHARES_UNIT = np.any(UNITS_OF_CELL[:, :, None] == UNITS_OF_CELL[:, None, :], axis=0)  # [81, 81], a cell with itself too
_PEERS = (SHARES_UNIT & ~np.eye(81, dtype=bool)).astype(np.float32)


@dataclass(frozen=True)
class Solutions:
    """What `solve` found: how many solutions, counted up to its limit, and one of them (0s where none)."""

    count: Int[np.ndarray, " n"]
    solution: UInt8[np.ndarray, "n 81"]


def solve(puzzles: Integer[np.ndarray, "n 81"], limit: int = 2) -> Solutions:
    """Count the solutions of each puzzle up to `limit`; with the usual 2, a count of 2 means more than one."""
    groups = [
        search(candidates(puzzles[start : start + GROUP]), limit) for start in range(0, max(len(puzzles), 1), GROUP)
    ]
    return Solutions(
        count=np.concatenate([group.count for group in groups]),
        solution=np.concatenate([group.solution for group in groups]),
    )


def candidates(puzzles: Integer[np.ndarray, "n 81"]) -> Candidates:
    """Every digit in a blank cell, the clue alone in the others."""
    of_digit = np.array([ALL_DIGITS] + [1 << digit for digit in range(9)], dtype=np.uint16)
    return of_digit[puzzles.T]


def search(start: Candidates, limit: int) -> Solutions:
    """Count, up to `limit`, the boards that fit each column of candidates.

    The newest nodes go first, so that the search is depth-first in blocks and its memory stays small.
    """
    found = Solutions(np.zeros(start.shape[1], np.int64), np.zeros((start.shape[1], 81), np.uint8))
    nodes, owners = start, np.arange(start.shape[1])  # owners: which puzzle a node belongs to
    while len(owners):
        before, owner = nodes[:, -BLOCK:], owners[-BLOCK:]
        nodes, owners = nodes[:, :-BLOCK], owners[:-BLOCK]

        after, alive = propagate(before)
        alive &= found.count[owner] < limit
        silent = (after == before).all(0)
        decided = (np.bitwise_count(after) == 1).all(0)
        # A decided node passes once more, for the last digits placed have not been checked against each other yet.
        solved, stuck, moving = alive & silent & decided, alive & silent & ~decided, alive & ~silent

        np.add.at(found.count, owner[solved], 1)
        found.solution[owner[solved]] = np.bitwise_count(after[:, solved] - 1).T + 1  # bit d - 1 back to digit d
        nodes = np.concatenate([nodes, after[:, moving], *_split(after[:, stuck])], axis=1)
        owners = np.concatenate([owners, owner[moving], owner[stuck], owner[stuck]])
    return Solutions(np.minimum(found.count, limit), found.solution)


def propagate(options: Candidates) -> tuple[Candidates, Bool[np.ndarray, " n"]]:
    """Apply both rules once; also say which nodes may still hold a solution."""
    single = np.where(np.bitwise_count(options) == 1, options, np.uint16(0))
    members = single[CELLS_OF_UNIT]
    taken = np.bitwise_or.reduce(members, axis=0)
    unclashing = (members.sum(axis=0, dtype=np.uint16) == taken).all(0)  # distinct bits add up to their union
    options = options & ~(_of_units(taken) & ~single)

    once, twice = np.zeros_like(taken), np.zeros_like(taken)
    for member in options[CELLS_OF_UNIT]:
        twice |= once & member
        once |= member
    placeable = (once == ALL_DIGITS).all(0)
    only_here = _of_units(once & ~twice) & options
    return np.where(only_here != 0, only_here, options), unclashing & placeable & options.all(0)


def _of_units(of_unit: UInt16[np.ndarray, "27 n"]) -> Candidates:
    """What the row, the column and the box of each cell hold together."""
    row, column, box = UNITS_OF_CELL
    return of_unit[row] | of_unit[column] | of_unit[box]


def _split(stuck: Candidates) -> tuple[Candidates, Candidates]:
    """Two copies of each node: in the second, the tightest cell takes its lowest digit; in the first it loses it.

    Ties go to the cell with the tightest peers. It matters little on proper puzzles, but an insoluble board with few
    clues is refuted in a thirtieth of the time.
    """
    count = np.bitwise_count(stuck).astype(np.float32)
    count[count == 1] = np.inf
    pressure = _PEERS @ (1 / count**2)  # at most 20 / 4, so a ninth of it never outweighs one candidate more
    node, cell = np.arange(stuck.shape[1]), (count - pressure / 9).argmin(0)
    chosen = stuck[cell, node]
    lowest = chosen & -chosen
    without, with_lowest = stuck.copy(), stuck.copy()
    without[cell, node] = chosen ^ lowest
    with_lowest[cell, node] = lowest
    return without, with_lowest
