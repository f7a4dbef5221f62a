"""prism pretrain, prism finetune."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prism.cli.command import Command, check_folder, console, parameters, show_record
from prism.data import sudoku
from prism.data.writing import TOKENIZER_FILES, load_rows
from prism.evaluation.record import Stopwatch, plain
from prism.losses.denoising import DenoisingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import PrismModel, attach
from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.hub import load_backbone, locate, save_backbone
from prism.recipes import sudoku as recipe
from prism.recipes.training import AttachmentOptions, LossOptions, MaskingOptions, TrainingOptions, held_out_loss
from prism.training import Shuffled, train, use_ema, whole_state


@dataclass(frozen=True, kw_only=True)
class _Corpus:
    """What to learn from."""

    data: str = "sudoku"
    """sudoku (boards made from --data_seed), or a .npy file of token ids, one sequence a row."""
    data_seed: int = 0
    """Seed of the generated boards."""
    boards: int = recipe.TRAINING_BOARDS
    """How many boards to make for training."""
    augment: bool = True
    """Sudoku: show every board under a fresh symmetry of the game each time."""
    held_out: int = 256
    """Sequences kept apart to measure the loss on."""

    def read(self, vocab_size: int) -> torch.Tensor:
        """All rows, those held out last."""
        if self.held_out < 1:
            raise ValueError(f"--held_out {self.held_out}: keep at least 1 sequence apart to measure the loss on.")
        if self.data == "sudoku":
            if self.boards < 1:
                raise ValueError(f"--boards {self.boards}: make at least 1 board.")
            return recipe.board_tokens(self.boards + self.held_out, self.data_seed)
        rows = torch.from_numpy(load_rows(Path(self.data), vocab_size).astype("int64"))
        if len(rows) <= self.held_out:
            raise ValueError(
                f"{self.data} has {len(rows)} sequences; --held_out {self.held_out} leaves none to learn from."
            )
        return rows

    def split(self, rows: torch.Tensor, seed: int) -> tuple[Shuffled, Batch]:
        learn, held_out = rows[: -self.held_out], rows[-self.held_out :].long()
        if self.data == "sudoku":
            return recipe.examples(learn, seed=seed, augment=self.augment), Batch(
                held_out, recipe.cells_only(len(held_out))
            )
        return Shuffled(learn, seed=seed), Batch(held_out)


@dataclass(frozen=True, kw_only=True)
class _Run(_Corpus, TrainingOptions, Command):
    output: Path
    """Folder for the model; checkpoints and log lie in its `training` folder."""
    resume: bool = False
    """Go on from the newest checkpoint of --output."""
    trackers: tuple[str, ...] = ()
    """tensorboard, wandb."""

    def check(self) -> None:
        super().check()
        check_folder("--output", self.output)

    def fit(self, model: Backbone | PrismModel, loss: DenoisingLoss | PrismLoss, rows: torch.Tensor) -> _Fitted:
        """Train, and take the averaged weights."""
        examples, held_out = self.split(rows, self.seed)
        learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
        console.print(
            f"{parameters(model):,} parameters, {learning:,} of them learn; "
            f"{len(examples.tokens):,} sequences of {rows.shape[1]} tokens, {self.steps:,} steps of {self.batch}"
        )

        trained = train(
            model,
            loss,
            examples,
            self.build_optimisation(),
            folder=self.output / "training",
            resume=self.resume,
            evaluate=held_out_loss(loss, held_out),
            trackers=self.trackers,
        )
        if trained.has_ema:
            use_ema(model, trained.checkpoint)
        last = {
            name.removeprefix("evaluation/"): value
            for line in trained.history
            for name, value in line.items()
            if name.startswith("evaluation/")
        }
        if trained.is_main:
            console.print("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in last.items()))
        return _Fitted(last, whole_state(model), trained.is_main)


@dataclass(frozen=True)
class _Fitted:
    held_out: dict[str, float]
    """The last evaluation."""
    weights: dict[str, torch.Tensor]
    """All of them, also where every process trained only a part."""
    is_main: bool
    """Whether this process is the one that saves."""


@dataclass(frozen=True, kw_only=True)
class Pretrain(MaskingOptions, _Run):
    """Train a masked diffusion model (MDLM's diffusion transformer) from nothing."""

    hidden_size: int = 256
    """Width."""
    layers: int = 6
    """Depth."""
    heads: int = 8
    """Attention heads."""
    dropout: float = 0.0
    """Dropout."""
    vocab_size: int | None = None
    """For --data FILE: token ids and the mask; the largest id + 2 if left out, the mask being the last one."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        loss, _ = self.build_denoising(), self.build_optimisation()
        rows = self.read(self.vocab_size or 1 << 31)
        torch.manual_seed(self.seed)
        model = DiT(self._config(rows))
        fitted = self.fit(model, loss, rows)
        record = clock.record("pretrain", self, seed=self.seed, model=model)
        if fitted.is_main:
            save_backbone(model, self.output / "backbone", state=fitted.weights)
            console.print(f"saved to {self.output}; next: prism finetune --model {self.output} --output …")
            show_record(record)
        return {"held_out": fitted.held_out, "record": plain(record)}

    def _config(self, rows: torch.Tensor) -> DiTConfig:
        if self.data == "sudoku":
            vocab_size, mask_id = sudoku.VOCABULARY, sudoku.MASK
        else:
            vocab_size = self.vocab_size or int(rows.max()) + 2
            mask_id = vocab_size - 1
        return DiTConfig(
            vocab_size=vocab_size,
            mask_id=mask_id,
            length=rows.shape[1],
            hidden_size=self.hidden_size,
            blocks=self.layers,
            heads=self.heads,
            dropout=self.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class Finetune(LossOptions, AttachmentOptions, _Run):
    """Attach a quality head to a masked diffusion model and train it with the PRISM loss."""

    model: str
    """Folder or hub name of the pretrained model."""
    mask_id: int | None = None
    """The mask token, for models whose config does not name it."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        loss, lora = self.build_loss(), self.build_lora()
        self.build_optimisation()
        if self.head == "none" and self.target == "quality":
            raise ValueError("--head none has nothing to learn quality with; give a head, or --target likelihood.")
        inside = Path(self.model) / "backbone"  # where prism pretrain puts it
        source = str(inside.resolve()) if inside.is_dir() else self.model
        backbone = load_backbone(source, mask_id=self.mask_id)
        rows = self.read(backbone.facts.vocab_size)
        model = attach(
            backbone,
            self.build_head(backbone.facts.hidden_size),
            lora=lora,
            tune_backbone=self.tune_backbone and lora is None,
        )
        fitted = self.fit(model, loss, rows)
        record = clock.record("finetune", self, seed=self.seed, model=model)
        if fitted.is_main:
            self._save(model, fitted, source, loss)
            show_record(record)
        return {"held_out": fitted.held_out, "record": plain(record)}

    def _save(self, model: PrismModel, fitted: _Fitted, source: str, loss: PrismLoss) -> None:
        notes = {"loss": plain(loss), "training": plain(self.build_optimisation()), "held_out": fitted.held_out}
        if model.tuned:
            own = {
                name.removeprefix("backbone."): w for name, w in fitted.weights.items() if name.startswith("backbone.")
            }
            save_backbone(model.backbone, self.output / "backbone", state=own)
        if model.quality_head is not None or model.lora is not None:
            base = "../backbone" if model.tuned else source
            model.save(self.output / "corrector", base=base, notes=notes, state=fitted.weights)
        for name in TOKENIZER_FILES:
            if (found := locate(source) / name).is_file():
                shutil.copy(found, self.output / name)
        console.print(f"saved to {self.output}")
