"""Sudoku as data for training: generated boards, and the symmetries of the game as augmentation on the device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from prism.data import sudoku
from prism.losses.masking import Batch
from prism.noise import Noise, Purpose
from prism.state import Mask, Tokens
from prism.training import Shuffled

TRAINING_BOARDS, VALIDATION_BOARDS = 48_000, 2_000
"""The paper's corpus sizes (Section 4.1)."""


def board_tokens(count: int, seed: int, *, excluding: np.ndarray | None = None) -> Integer[Tensor, "n l"]:
    """Complete boards as the model reads them."""
    return torch.from_numpy(sudoku.to_tokens(sudoku.boards(count, seed, excluding=excluding)))


def cells_only(rows: int, device: torch.device | str = "cpu") -> Mask:
    """Row ends are always given, so they are never masked. (The authors mask them too.)"""
    maskable = torch.zeros(sudoku.LENGTH, dtype=torch.bool, device=device)
    maskable[_cells(torch.device(device))] = True
    return maskable.expand(rows, sudoku.LENGTH)


@lru_cache(maxsize=4)
def _cells(device: torch.device) -> Int[Tensor, "81"]:
    """Where the cells of a board lie in its tokens."""
    return torch.as_tensor(sudoku.CELLS, device=device)


def examples(tokens: Integer[Tensor, "n l"], *, seed: int, augment: bool) -> Shuffled:
    """Boards in a fresh order every epoch, each under a fresh symmetry if asked."""
    return Shuffled(
        tokens, cells_only(len(tokens), tokens.device), seed=seed, augment=random_symmetry if augment else None
    )


def validation_batch(tokens: Integer[Tensor, "n l"], device: torch.device) -> Batch:
    return Batch(tokens.long().to(device), cells_only(len(tokens), device))


def random_symmetry(tokens: Tokens, noise: Noise) -> Tokens:
    """Each board under a symmetry of its own: bands, stacks, rows, columns, transposition and the names of the digits.

    The same group as `prism.data.sudoku.symmetries`, drawn from numbers that depend on the row alone and applied where the
    tokens are.
    """
    uniform = noise.uniform(Purpose.EXAMPLE, 34)
    rows, columns = _line_orders(uniform[:, :12]), _line_orders(uniform[:, 12:24])
    cells = 9 * rows[:, :, None] + columns[:, None, :]
    transposed = (uniform[:, 24] < 0.5)[:, None, None]
    cells = torch.where(transposed, cells.transpose(1, 2), cells).reshape(len(tokens), 81)
    digits = uniform[:, 25:34].argsort(1) + 1
    digits = torch.cat([torch.zeros_like(digits[:, :1]), digits], dim=1)  # a mask stays a mask
    places = _cells(tokens.device)
    out = tokens.clone()
    out[:, places] = digits.gather(1, tokens[:, places].gather(1, cells))
    return out


def _line_orders(uniform: Float[Tensor, "b 12"]) -> Int[Tensor, "b 9"]:
    """Orders of nine lines in which the three of a band stay together."""
    bands = uniform[:, :3].argsort(1)[:, :, None]
    lines = uniform[:, 3:].view(-1, 3, 3).argsort(2)
    return (3 * bands + lines).reshape(-1, 9)
