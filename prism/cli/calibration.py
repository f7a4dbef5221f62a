"""prism evaluate calibration."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from prism.cli.command import (
    STORIES,
    Command,
    WithModel,
    check_file,
    console,
    own_length,
    progress,
    show_record,
    warn_of_length,
)
from prism.data.shards import MANIFEST, Corpus
from prism.data.text import end_of_text, load_tokenizer
from prism.data.windows import TextWindows
from prism.data.writing import load_rows
from prism.evaluation.calibration import detection
from prism.evaluation.record import Stopwatch, plain
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.hub import is_mdlms
from prism.recipes.knowledge import witnessed
from prism.recipes.reproduce.report import fifths, knowledge_figure
from prism.recipes.sampling import Sampling
from prism.state import Tokens, start

HELD_OUT = 256
"""What prism finetune holds out if nothing is said."""


@dataclass(frozen=True, kw_only=True)
class EvaluateCalibration(WithModel, Sampling, Command):
    """Check whether quality is a calibrated probability, and whether it finds mistakes.

    While the model writes, quality is compared with what it estimates: the model's own likelihood of the token when it is
    masked, which takes one more forward pass per token checked. ECE is their mean distance over 20 bins of quality. With
    --data it also reports which score finds tokens replaced in true texts.
    """

    model: str | None = None
    """A folder or hub name of a model tuned with PRISM; the embedded one of stories if left out."""
    policy: str = "vanilla"
    """The method whose run is watched; see prism sample --help for all of them."""
    samples: int = 64
    """How many sequences are written, and how many of --data are taken."""
    length: int | None = None
    """Their tokens; the model's own length if left out."""
    data: Path | None = None
    """True sequences the model was not trained on: a folder of prism tokenize (validation sequences that prism finetune did not
    hold out, see --held_out) or a .npy file of token ids (its last --samples rows). Do not use the .npy file the model was
    tuned on: all its rows were used, the last ones for calibration."""
    held_out: int | None = None
    """The --held_out of prism finetune on the same folder and --length (default 256, as there). Quality was calibrated on these
    sequences, so they are left out here."""
    ends: bool | None = None
    """Put the sequences of a --data folder between two end-of-text tokens, as the model learnt them (prism finetune --ends
    true); if left out, so for MDLM's checkpoints."""
    draws: int = 8
    """With --data: tokens redrawn in each sequence, at random positions."""
    plot: Path | None = None
    """Draw the curves into this file, .svg, .png or .pdf (needs the extra `plot`)."""

    def embedded(self) -> Path:
        return STORIES

    def check(self) -> None:
        super().check()
        for flag, value in (("--samples", self.samples), ("--length", self.length), ("--draws", self.draws)):
            if value is not None and value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1.")
        if self.steps is not None and self.steps < 2:
            raise ValueError(f"--steps {self.steps}: before the first step no token is written; take at least 2.")
        if self.held_out is not None and self.held_out < 0:
            raise ValueError(f"--held_out {self.held_out}: must be 0 or more.")
        for flag, given in (("--held_out", self.held_out), ("--ends", self.ends)):
            if given is not None and (self.data is None or not (self.data / MANIFEST).is_file()):
                raise ValueError(f"{flag} is about a --data folder of prism tokenize; leave it out.")
        if self.plot is not None:
            check_file("--plot", self.plot)
            if self.plot.suffix not in (".svg", ".png", ".pdf"):
                raise ValueError(f"--plot {self.plot}: name a file that ends with .svg, .png or .pdf.")
            if importlib.util.find_spec("matplotlib") is None:
                raise ValueError("--plot needs matplotlib: pip install 'prism-mdm[plot]'.")

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        self.build_policy()
        model = self.load()
        if getattr(model, "quality_head", None) is None:
            raise ValueError(f"{self.source()} has no quality head to ask; attach one with prism finetune.")
        length = self.length or own_length(model)
        if length is None:
            raise ValueError("This model does not say how long its sequences are; give --length.")
        self.check_length(length)
        warn_of_length(model, length)
        true = None if self.data is None else self._true(self.data, length, model.facts.vocab_size)
        mask, device, steps = model.facts.mask_id, self.torch_device(), self.steps or length
        blank = start(torch.full((self.samples, length), mask, device=device), mask)
        with progress("steps", steps) as done:
            seen = witnessed(model, self, blank, steps, done)
        found: dict[str, Any] = {"steps": steps, "runs": {self.policy: seen.summary()}}
        if true is not None:
            loss = PrismLoss(k=self.draws, draw=self.build_draw())
            found["detection"] = {"sequences": len(true), **detection(model, Batch(true.to(device)), loss)}
        record = clock.record("evaluate calibration", self, seed=self.seed, model=model, name=self.source())
        self._show(found, length)
        if self.plot is not None:
            knowledge_figure(found, self.plot)
            console.print(f"drawn to {self.plot}")
        show_record(record)
        return {**found, "record": plain(record)}

    def _true(self, data: Path, length: int, vocab_size: int) -> Tokens:
        if not (data / MANIFEST).is_file():
            rows = torch.from_numpy(load_rows(data, vocab_size).astype("int64"))
            if rows.shape[1] != length:
                raise ValueError(f"{data} has sequences of {rows.shape[1]} tokens, not {length}; give --length.")
            return rows[-self.samples :]
        corpus = Corpus.load(data)
        if corpus.recipe.vocab_size > vocab_size:
            raise ValueError(f"{data} has {corpus.recipe.vocab_size:,} token ids; the model knows 0..{vocab_size - 1}.")
        ends = is_mdlms(self.source(), self.backbone) if self.ends is None else self.ends
        end = end_of_text(load_tokenizer(corpus.folder / "tokenizer")) if ends else None
        windows = TextWindows(corpus.validation, length, end=end)
        if windows.count < self._fitted() + self.samples:
            raise ValueError(
                f"{data} has {windows.count} sequences of --length {length} to validate on, less than the --held_out "
                f"{self._fitted()} of prism finetune and --samples {self.samples}; lower --samples, give the --held_out the "
                "model was tuned with, or tokenize with a larger --validation."
            )
        # prism finetune holds out the first of this very order, so the last are none of them.
        return windows.read(range(windows.count - self.samples, windows.count))

    def _fitted(self) -> int:
        """Sequences quality was fitted to."""
        return HELD_OUT if self.held_out is None else self.held_out

    def _whence(self) -> str:
        assert self.data is not None
        if (self.data / MANIFEST).is_file():
            return f"validation documents of {self.data}, without the {self._fitted()} sequences quality was fitted to"
        return f"the last rows of {self.data}"

    def _show(self, found: dict[str, Any], length: int) -> None:
        run = found["runs"][self.policy]
        table = Table(title=f"{self.samples} sequences of {length} tokens, {self.policy}, {found['steps']} steps")
        for heading in ("written", "tokens asked", "mean quality", "mean likelihood", "ECE"):
            table.add_column(heading, justify="left" if heading == "written" else "right")
        for name, curve in [*fifths(run), ("all", run["against_likelihood"])]:
            count = sum(curve["count"])
            means = (_mean(curve[part], curve["count"]) for part in ("predicted", "observed"))
            table.add_row(name, str(count), *(f"{mean:.3f}" for mean in means), f"{curve['ece']:.3f}")
        console.print(table)
        if "detection" in found:
            told = found["detection"]
            scores = ", ".join(f"{name} {value:.3f}" for name, value in told["auroc"].items())
            console.print(
                f"{told['tokens']} tokens drawn into {told['sequences']} true sequences ({self._whence()}), "
                f"{100 * told['right']:.1f} % of them right: ECE against it "
                f"{told['against_truth']['ece']:.3f}; AUROC of finding the others: {scores}",
                soft_wrap=True,
            )


def _mean(values: list[float], counts: list[int]) -> float:
    return sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)
