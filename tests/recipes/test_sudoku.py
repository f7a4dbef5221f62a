"""Training data for Sudoku."""

from __future__ import annotations

import numpy as np
import torch

from prism.data import sudoku
from prism.noise import Noise
from prism.recipes.sudoku import board_tokens, cells_only, examples, random_symmetry


def test_symmetries_keep_boards_valid_and_rows_independent() -> None:
    tokens = board_tokens(200, seed=3).long()
    noise = Noise.rows(1, 200)
    moved = random_symmetry(tokens, noise)
    assert sudoku.valid(sudoku.from_tokens(moved.numpy().astype(np.uint8))).all()
    assert (moved != tokens).any(1).all()
    assert (random_symmetry(tokens[50:60], Noise.rows(1, 10, first=50)) == moved[50:60]).all()


def test_symmetries_keep_masks_and_reach_both_kinds_of_line() -> None:
    tokens = board_tokens(1, seed=3).long().repeat(400, 1)
    tokens[:, 0] = 0
    moved = random_symmetry(tokens, Noise.rows(2, 400))
    assert ((moved == 0).sum(1) == 1).all()
    places = (moved == 0).long().argmax(1)
    assert len(set(places.tolist())) > 60  # the mask travels over the whole board


def test_only_cells_are_masked() -> None:
    batch = examples(board_tokens(8, seed=0), seed=0, augment=True).batch(range(4), torch.device("cpu"))
    assert batch.free.sum(1).tolist() == [81] * 4
    assert (batch.tokens[~batch.free] == sudoku.SEPARATOR).all()
    assert cells_only(2).sum().item() == 162
