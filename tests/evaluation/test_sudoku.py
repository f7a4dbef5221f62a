"""The Sudoku task with models whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import prism
from prism.data import sudoku
from prism.evaluation.sudoku import check_model, evaluate_sudoku
from prism.models.backbone import Facts
from prism.state import Prediction


class Knows:
    """Predicts the solution of the puzzle it is shown; `wrong` cells get a wrong digit with certainty."""

    forwards = 1

    def __init__(self, solutions: np.ndarray, wrong: tuple[int, ...] = ()) -> None:
        self.solutions = torch.from_numpy(sudoku.to_tokens(solutions)).long()
        self.wrong = wrong

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        agree = ((tokens[:, None] == self.solutions[None]) | (tokens[:, None] == 0)).float().mean(-1)
        answer = self.solutions[agree.argmax(1)].clone()
        for cell in self.wrong:
            answer[:, cell] = answer[:, cell] % 9 + 1
        logits = torch.nn.functional.one_hot(answer, 11).float() * 50
        return Prediction(logits, lambda hidden: hidden, forbidden=torch.tensor([0]))


def test_who_knows_the_solution_solves_every_puzzle() -> None:
    made = sudoku.puzzles(12, 30, seed=5)
    run = evaluate_sudoku(Knows(made.solution), made.puzzle, prism.Pair(prism.Counted()), steps=51, batch=5)
    assert run.solved.all()
    assert (run.boards == made.solution).all()
    assert run.summary()["nfe"] == 51
    assert run.success.value == 1


def test_one_wrong_cell_spoils_the_board() -> None:
    made = sudoku.puzzles(4, 30, seed=6)
    blank = int(sudoku.CELLS[int(np.flatnonzero(made.puzzle[0] == 0)[0])])
    run = evaluate_sudoku(Knows(made.solution, (blank,)), made.puzzle[:1], prism.Pair(prism.Counted()), steps=10)
    assert not run.solved.any()


def test_other_models_are_refused() -> None:
    check_model(Facts(mask_id=0, vocab_size=11, hidden_size=4))
    with pytest.raises(ValueError, match="vocabulary 11"):
        check_model(Facts(mask_id=3, vocab_size=4, hidden_size=4))
