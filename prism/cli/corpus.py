"""prism corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prism.cli.command import Command, check_file, console, progress, show_record
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import weights_digest
from prism.models.causal import load_llama2c
from prism.recipes.known_truth import write_corpus


@dataclass(frozen=True, kw_only=True)
class WriteCorpus(Command):
    """Let a causal model, the truth, write a corpus to train on: prism pretrain --data FILE.

    Interrupted or killed, the same command goes on. On a GPU if there is one.
    """

    truth: Path
    """The causal model, a llama2.c checkpoint such as stories15M.bin."""
    sequences: int
    """How many to write."""
    output: Path
    """The .npy file for their tokens, one sequence a row."""
    length: int | None = None
    """Tokens of each, the start token first; all the truth was trained on if left out."""
    seed: int = 0
    """The same seed gives the same sequences. `prism evaluate known-truth` lets the truth write with its own --seed plus 1."""
    batch: int | None = None
    """Sequences written at once, 64 on a CPU and 8192 on a GPU if left out."""

    def check(self) -> None:
        super().check()
        check_file("--output", self.output)
        for flag, value in (("--sequences", self.sequences), ("--batch", self.batch)):
            if value is not None and value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1.")

    def run(self) -> dict[str, Any]:
        clock, truth = Stopwatch(), load_llama2c(self.truth)
        vocabulary, context = truth.llama.config.vocab_size, truth.llama.config.length
        length = context if self.length is None else self.length
        if not 2 <= length <= context:
            raise ValueError(
                f"--length {length}: the truth writes a start token and what follows, {context} tokens at most; take "
                f"2..{context}."
            )
        on_gpu = torch.cuda.is_available()
        truth.llama.to("cuda" if on_gpu else "cpu")
        settings = {"truth": self.truth.name, "weights": weights_digest(truth.llama), "vocabulary": vocabulary}
        settings |= {"sequences": self.sequences, "length": length, "seed": self.seed}
        batch = min(self.batch or (8192 if on_gpu else 64), self.sequences)
        with progress("sequences", self.sequences) as done:
            write_corpus(truth, self.output, settings, self.sequences, length, seed=self.seed, batch=batch, done=done)
        console.print(f"{self.sequences:,} sequences, {self.sequences * length:,} tokens")
        console.print(
            f"saved to {self.output}; next: prism pretrain --data {self.output} --vocab_size {vocabulary + 1} --output …"
        )
        record = clock.record("corpus", self, seed=self.seed, model=truth.llama, name=self.truth.name)
        show_record(record)
        return {**settings, "tokens": self.sequences * length, "record": plain(record)}
