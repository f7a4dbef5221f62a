"""The paper's Sudoku experiment (Section 4.1), on boards of our own: pretrain, fine-tune with PRISM, compare everything.

The paper pretrains its 28.6M DiT for 100,000 steps of 256 boards and fine-tunes it with k = 4, n_y = 1, λ = 5 at 3e-4. Here the
same number of boards comes in batches of 1024, the matrices are trained with Muon, and every board is seen under a fresh symmetry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from prism.data import sudoku
from prism.losses.denoising import DenoisingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import attach
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import FinalLayerConfig, HeadConfig
from prism.models.hub import load_backbone
from prism.recipes import sudoku as recipe
from prism.recipes.reproduce.workshop import Workshop
from prism.training import Cosine, Optimisation, Precision, Shuffled

BOARD_SEED, PUZZLE_SEED, CLUES = 0, 2026, 30


@dataclass(frozen=True)
class Scale:
    """How large to do it."""

    model: DiTConfig
    pretraining: Optimisation
    finetuning: Optimisation
    boards: int = recipe.TRAINING_BOARDS
    validation: int = recipe.VALIDATION_BOARDS
    puzzles: int = 2_000


def _model(hidden_size: int, blocks: int, heads: int) -> DiTConfig:
    return replace(DiTConfig.sudoku(), hidden_size=hidden_size, blocks=blocks, heads=heads, dropout=0.0)


def _on_gpu(**settings: Any) -> Optimisation:
    return Optimisation(rate=Cosine(), precision=Precision.BF16, compile=True, ema=0.999, keep=1, **settings)


SCALES: dict[str, Scale] = {
    "paper": Scale(
        model=_model(512, 8, 8),
        pretraining=_on_gpu(
            steps=25_000, batch=1024, lr=1e-3, muon_lr=3e-3, warmup=300, evaluate_every=1_250, checkpoint_every=2_500
        ),
        finetuning=_on_gpu(steps=5_000, batch=1024, lr=3e-4, warmup=200, evaluate_every=500, checkpoint_every=1_000),
    ),
    "small": Scale(
        model=_model(192, 10, 6),
        pretraining=_on_gpu(
            steps=10_000, batch=512, lr=1e-3, muon_lr=3e-3, warmup=300, evaluate_every=1_000, checkpoint_every=1_000
        ),
        finetuning=_on_gpu(steps=3_000, batch=512, lr=3e-4, warmup=200, evaluate_every=300, checkpoint_every=500),
    ),
    "tiny": Scale(
        model=_model(48, 2, 2),
        pretraining=Optimisation(steps=60, batch=32, lr=3e-3, muon_lr=1e-2, rate=Cosine(), ema=0.9, evaluate_every=30),
        finetuning=Optimisation(steps=20, batch=32, lr=1e-3, rate=Cosine(), ema=0.9, evaluate_every=10),
        boards=256,
        validation=32,
        puzzles=8,
    ),
}


class SudokuStudy:
    """Models and results by name, each made when it is first asked for."""

    def __init__(self, scale: Scale, output: Path, results: Path, puzzles: dict[str, np.ndarray]) -> None:
        self.scale, self.workshop, self.given = scale, Workshop(output, results), puzzles

    # Data --------------------------------------------------------------------------------------------------------------

    @cached_property
    def puzzles(self) -> dict[str, np.ndarray]:
        """Our own evaluation puzzles, and those that were given."""
        return {"own": sudoku.puzzles(self.scale.puzzles, CLUES, seed=PUZZLE_SEED).puzzle, **self.given}

    @cached_property
    def boards(self) -> Integer[Tensor, "n l"]:
        """Training boards and then validation boards, none of them the solution of an evaluation puzzle."""
        solutions = np.concatenate([sudoku.solve(puzzles).solution for puzzles in self.puzzles.values()])
        return recipe.board_tokens(self.scale.boards + self.scale.validation, BOARD_SEED, excluding=solutions)

    def _examples(self, seed: int, *, augment: bool = True) -> Shuffled:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return recipe.examples(self.boards[: self.scale.boards].to(device), seed=seed, augment=augment)

    def _held_out(self) -> Batch:
        return recipe.validation_batch(self.boards[self.scale.boards :], torch.device("cpu"))

    # Models ------------------------------------------------------------------------------------------------------------

    def pretrained(
        self, name: str = "A", config: DiTConfig | None = None, *, augment: bool = True, seed: int = 0
    ) -> Path:
        config = config or self.scale.model

        def make() -> DiT:
            torch.manual_seed(seed)
            return DiT(config)

        settings = replace(self.scale.pretraining, seed=seed)
        examples = lambda: self._examples(seed, augment=augment)  # noqa: E731
        return self.workshop.model(f"pretrained-{name}", make, DenoisingLoss(), examples, self._held_out, settings)

    def tuned(
        self,
        name: str = "prism",
        loss: PrismLoss = PrismLoss(k=4, regulariser=5.0),
        head: Callable[[int], HeadConfig | None] = FinalLayerConfig,
        *,
        tune_backbone: bool = True,
        base: str = "A",
    ) -> Path:
        source = self.pretrained(base)

        def make() -> Any:
            torch.manual_seed(0)
            backbone = load_backbone(source)
            return attach(backbone, head(backbone.facts.hidden_size), tune_backbone=tune_backbone)

        return self.workshop.model(
            f"tuned-{name}", make, loss, lambda: self._examples(1), self._held_out, self.scale.finetuning
        )
