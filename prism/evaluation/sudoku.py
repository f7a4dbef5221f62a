"""The paper's first task: complete Sudoku puzzles (PRISM, Section 4.1). A board counts only if every row, column and box holds
1–9 and every clue stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8

from prism.data import sudoku
from prism.evaluation.record import Stopwatch
from prism.evaluation.statistics import Interval, rate
from prism.models.backbone import Facts
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, generate
from prism.sampling.policy import Policy
from prism.sampling.prepared import Prepared
from prism.schedule import Schedule
from prism.state import State, Step, start

Boards = UInt8[np.ndarray, "n 81"]


@dataclass(frozen=True)
class SudokuRun:
    """One policy on one set of puzzles."""

    solved: Bool[np.ndarray, " n"]
    boards: Boards
    forwards: Int[np.ndarray, " n"]
    remasks: Int[np.ndarray, " n"]
    flipflops: Int[np.ndarray, " n"]
    seconds: float

    @property
    def success(self) -> Interval:
        return rate(int(self.solved.sum()), len(self.solved))

    def summary(self) -> dict[str, object]:
        """What a results file holds; counts are per board."""
        success, remasks = self.success, float(self.remasks.sum())
        return {
            "success_rate": success.value,
            "success_interval": [success.low, success.high],
            "boards": len(self.solved),
            "solved": int(self.solved.sum()),
            "nfe": float(self.forwards.mean()),
            "remasks": float(self.remasks.mean()),
            "flipflop_rate": float(self.flipflops.sum()) / remasks if remasks else 0.0,
            "seconds_per_1000_boards": 1000 * self.seconds / len(self.solved),
        }


def evaluate_sudoku(
    model: Denoiser,
    puzzles: Boards,
    policy: Policy,
    *,
    steps: int,
    seed: int = 0,
    draw: Draw | None = None,
    schedule: Schedule | None = None,
    block: int | None = None,
    batch: int = 256,
    device: torch.device | str = "cpu",
    watch: Callable[[Step], object] | None = None,
    done: Callable[[int], object] | None = None,
) -> SudokuRun:
    """Complete every puzzle once. A puzzle's result does not depend on the batch size or on its neighbours.

    `watch` sees every step, `done` hears how many boards are finished.
    """
    clock = Stopwatch()
    boards, forwards, remasks, flipflops = [], [], [], []
    prepared = Prepared(model, policy, steps=steps, draw=draw, schedule=schedule, block=block)
    for first in range(0, len(puzzles), batch):
        state = puzzle_state(puzzles[first : first + batch], device)
        noise = Noise.rows(seed, len(state.tokens), first=first, device=device)
        result = (
            prepared(state, noise)
            if watch is None
            else generate(
                model, state, policy, steps=steps, noise=noise, draw=draw, schedule=schedule, block=block, watch=watch
            )
        )
        boards.append(_completed(result.tokens))
        forwards.append(result.forwards.cpu().numpy())
        remasks.append(result.remasks.cpu().numpy())
        flipflops.append(result.flipflops.cpu().numpy())
        if done is not None:
            done(min(first + batch, len(puzzles)))
    completed = np.concatenate(boards)
    return SudokuRun(
        solved=sudoku.solves(completed, puzzles),
        boards=completed,
        forwards=np.concatenate(forwards),
        remasks=np.concatenate(remasks),
        flipflops=np.concatenate(flipflops),
        seconds=clock.seconds,
    )


def puzzle_state(puzzles: Boards, device: torch.device | str = "cpu") -> State:
    """Clues and row ends are given, blanks are masks."""
    tokens = torch.from_numpy(sudoku.to_tokens(puzzles)).long().to(device)
    return start(tokens, sudoku.MASK)


def check_model(facts: Facts) -> None:
    if (facts.vocab_size, facts.mask_id) != (sudoku.VOCABULARY, sudoku.MASK):
        raise ValueError(
            f"A Sudoku model has vocabulary {sudoku.VOCABULARY} with mask {sudoku.MASK}; this one has "
            f"{facts.vocab_size} with mask {facts.mask_id}. Pretrain one with: prism pretrain --data sudoku"
        )


def _completed(tokens: torch.Tensor) -> Boards:
    return sudoku.from_tokens(tokens.cpu().numpy().astype(np.uint8))
