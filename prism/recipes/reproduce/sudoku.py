"""The paper's Sudoku experiment (Section 4.1), on boards of our own: pretrain, fine-tune with PRISM, then ask everything.

The paper pretrains its 28.6M DiT for 100,000 steps of 256 boards and fine-tunes it for 20,000 more with k = 4, n_y = 1, λ = 5
at 3e-4. Here pretraining takes as many boards in batches of 1024, the matrices are pretrained with Muon, cells know where on
the board they lie, every board is seen under a fresh symmetry, and checkpoints are chosen on validation boards, never on the
puzzles they are judged by. Fine-tuning takes 2,000 steps: with 20,000 PRISM solves no more (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from prism.data import sudoku
from prism.evaluation.sudoku import SudokuRun, evaluate_sudoku
from prism.losses.denoising import DenoisingLoss
from prism.losses.masking import Batch, ByProbability
from prism.losses.prism import Likelihood, PrismLoss
from prism.models.attach import PrismModel, attach
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import BlockConfig, FinalLayerConfig, HeadConfig, ProjectionConfig
from prism.models.hub import load_backbone
from prism.recipes import sudoku as recipe
from prism.recipes.reproduce.workshop import Model, Workshop, on_cpu, on_gpu, to_sample
from prism.recipes.sampling import Sampling
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser
from prism.sampling.order import TopProbability
from prism.training import Optimisation, Shuffled

BOARD_SEED, PUZZLE_SEED = 0, 2026


@dataclass(frozen=True)
class Scale:
    """How large to do it. `ablation` fine-tunes the variants, `short` pretrains the other backbones."""

    model: DiTConfig
    other: DiTConfig
    """A backbone of another size, to be corrected by a stranger."""
    pretraining: Optimisation
    finetuning: Optimisation
    ablation: Optimisation
    short: Optimisation
    boards: int = recipe.TRAINING_BOARDS
    validation: int = recipe.VALIDATION_BOARDS
    puzzles: int = 2_000
    clues: int = 30
    watched: int = 500
    """Puzzles used where many answers are wanted of each: during fine-tuning, for calibration, for ablations."""
    at_once: int = 1_000
    steps: tuple[int, ...] = (51, 34, 26, 17, 13)

    @property
    def blanks(self) -> int:
        return 81 - self.clues


@dataclass(frozen=True)
class Variant:
    """One way to fine-tune."""

    loss: PrismLoss
    head: Callable[[int], HeadConfig | None] = FinalLayerConfig
    tune_backbone: bool = True


PAPER = PrismLoss(k=4, regulariser=5.0)
VARIANTS: dict[str, Variant] = {
    "paper": Variant(PAPER),
    "k=1": Variant(replace(PAPER, k=1)),
    "k=2": Variant(replace(PAPER, k=2)),
    "k=8": Variant(replace(PAPER, k=8)),
    "k=16": Variant(replace(PAPER, k=16)),
    "rounds of 12": Variant(replace(PAPER, k=12, rounds=4)),
    "at most 65 % masks": Variant(replace(PAPER, masking=ByProbability(floor=1e-3, most=0.65))),
    "λ=0.5": Variant(replace(PAPER, regulariser=0.5)),
    "λ=50": Variant(replace(PAPER, regulariser=50.0)),
    "no regulariser": Variant(replace(PAPER, regulariser=0.0)),
    "block head": Variant(PAPER, lambda d: BlockConfig(d, heads=8 if d % 16 == 0 else 2)),
    "projection head": Variant(PAPER, ProjectionConfig),
    "frozen backbone": Variant(replace(PAPER, regulariser=0.0), tune_backbone=False),
    "nucleus 0.9": Variant(replace(PAPER, draw=Draw(nucleus=0.9))),
    "S by confidence": Variant(replace(PAPER, order=TopProbability())),
    "n_y=4": Variant(replace(PAPER, ys=4)),
}


def _model(hidden_size: int, blocks: int, heads: int) -> DiTConfig:
    """The paper's DiT, which sees only how far apart two cells are, told besides where on the board each one lies."""
    return replace(
        DiTConfig.sudoku(), hidden_size=hidden_size, blocks=blocks, heads=heads, dropout=0.0, learned_positions=True
    )


SCALES: dict[str, Scale] = {
    "paper": Scale(
        model=_model(512, 8, 8),
        other=_model(192, 8, 6),
        pretraining=on_gpu(25_000, 1024, lr=1e-3, muon_lr=3e-3, warmup=300),
        finetuning=on_gpu(2_000, 256, lr=3e-4, warmup=100),
        ablation=on_gpu(2_000, 256, lr=3e-4, warmup=100),
        short=on_gpu(8_000, 256, lr=1e-3, muon_lr=3e-3, warmup=300),
    ),
    "small": Scale(
        model=_model(192, 8, 6),
        other=_model(128, 6, 4),
        pretraining=on_gpu(20_000, 1024, lr=1e-3, muon_lr=3e-3, warmup=300),
        finetuning=on_gpu(5_000, 1024, lr=3e-4, warmup=200),
        ablation=on_gpu(2_000, 512, lr=3e-4, warmup=100),
        short=on_gpu(4_000, 512, lr=1e-3, muon_lr=3e-3, warmup=300),
    ),
    "tiny": Scale(
        model=_model(48, 2, 2),
        other=_model(32, 1, 2),
        pretraining=on_cpu(60, 32, lr=3e-3, muon_lr=1e-2),
        finetuning=on_cpu(20, 32, lr=1e-3),
        ablation=on_cpu(4, 32, lr=1e-3),
        short=on_cpu(10, 32, lr=3e-3, muon_lr=1e-2),
        boards=256,
        validation=32,
        puzzles=8,
        watched=4,
        at_once=8,
        steps=(51, 13),
    ),
}


class SudokuStudy:
    """The data, and the models by name, each made when it is first asked for."""

    def __init__(self, scale: Scale, workshop: Workshop, given: Mapping[str, np.ndarray]) -> None:
        self.scale, self.workshop, self.given = scale, workshop, given
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def puzzles(self) -> dict[str, np.ndarray]:
        """Our own evaluation puzzles, and those that were given."""
        return {"own": self.own.puzzle, **self.given}

    @cached_property
    def own(self) -> sudoku.Puzzles:
        return sudoku.puzzles(self.scale.puzzles, self.scale.clues, seed=PUZZLE_SEED)

    @cached_property
    def boards(self) -> Integer[Tensor, "n l"]:
        """Training boards and then validation boards, none of them the solution of an evaluation puzzle."""
        solutions = np.concatenate([sudoku.solve(puzzles).solution for puzzles in self.puzzles.values()])
        return recipe.board_tokens(self.scale.boards + self.scale.validation, BOARD_SEED, excluding=solutions)

    def _examples(self, seed: int, *, augment: bool = True) -> Shuffled:
        return recipe.examples(self.boards[: self.scale.boards].to(self.device), seed=seed, augment=augment)

    def _held_out(self) -> Batch:
        return recipe.validation_batch(self.boards[self.scale.boards :], torch.device("cpu"))

    def pretrained(self) -> Path:
        """The backbone A of everything."""
        return self._pretrain("pretrained", self.scale.model, self.scale.pretraining, seed=0)

    def stranger(self, *, other_size: bool = False, augment: bool = True) -> Path:
        """A backbone that shares nothing with A but the game: another seed, shorter training, another size if asked."""
        config = self.scale.other if other_size else self.scale.model
        name = "stranger" + "-of-another-size" * other_size + "-without-augmentation" * (not augment)
        return self._pretrain(name, config, self.scale.short, seed=1, augment=augment)

    def _pretrain(
        self, name: str, config: DiTConfig, settings: Optimisation, *, seed: int, augment: bool = True
    ) -> Path:
        def make() -> DiT:
            torch.manual_seed(seed)
            return DiT(config)

        return self.workshop.model(
            name,
            make,
            DenoisingLoss(),
            lambda: self._examples(seed, augment=augment),
            self._held_out,
            replace(settings, seed=seed),
        )

    def tuned(self) -> Path:
        """A with PRISM, watched while it learns."""
        settings = self.scale.finetuning
        return self._tune("prism", Variant(PAPER), settings, self.pretrained, also=self._success)

    def likelihood_tuned(self) -> Path:
        """A tuned with the likelihood loss, without a head (Appendix D.6)."""
        variant = Variant(replace(PAPER, target=Likelihood()), head=lambda d: None)
        return self._tune("likelihood", variant, self.scale.finetuning, self.pretrained)

    def variant(self, name: str, base: Callable[[], Path] | None = None, *, augment: bool = True, of: str = "") -> Path:
        """A tuned for a short while in one of the ways of `VARIANTS`; or another backbone, then named by `of`."""
        folder = f"variant-{name}{of}".replace(" ", "-").replace("=", "-").replace("λ", "lambda").replace("-%", "")
        return self._tune(folder, VARIANTS[name], self.scale.ablation, base or self.pretrained, augment=augment)

    def _tune(
        self,
        name: str,
        variant: Variant,
        settings: Optimisation,
        base: Callable[[], Path],
        *,
        augment: bool = True,
        also: Callable[[Model, int], Mapping[str, float]] | None = None,
    ) -> Path:
        def make() -> PrismModel:
            torch.manual_seed(settings.seed)
            backbone = load_backbone(base())
            return attach(backbone, variant.head(backbone.facts.hidden_size), tune_backbone=variant.tune_backbone)

        examples = lambda: self._examples(100, augment=augment)  # noqa: E731
        return self.workshop.model(name, make, variant.loss, examples, self._held_out, settings, also)

    def _success(self, model: Model, step: int) -> dict[str, float]:
        """The paper's left figure: success of every method on the weights of this moment."""
        return {
            f"{kind}/{policy}": self.solve(model, puzzles[: self.scale.watched], Sampling(policy=policy)).success.value
            for kind, puzzles in self.puzzles.items()
            for policy in ("vanilla", "random", "remdm-conf-topk", "p2-self", "prism")
        }

    def load(self, path: Path, *, compiled: bool = True) -> Any:
        return to_sample(path, self.device, compiled=compiled)

    def solve(self, model: Denoiser, puzzles: np.ndarray, sampling: Sampling, *, seed: int = 0) -> SudokuRun:
        return evaluate_sudoku(
            model,
            puzzles,
            sampling.build_policy(),
            steps=sampling.steps or self.scale.blanks,
            seed=seed,
            draw=sampling.build_draw(),
            batch=self.scale.at_once,
            device=self.device,
        )
