"""The embedded text model: a masked diffusion model small enough to travel with the package learns the stories a causal model
tells (World A), and is tuned with PRISM.

The truth writes; its sequences are cut into stories; a small tokenizer is made for them; the rest is training. Every stage
leaves what it made in the folder of the workshop: interrupted, the same call goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from prism.data.llama2c import Llama2c
from prism.data.shards import Corpus, Stream
from prism.data.text import Source, TextError, end_of_text, load_tokenizer, train_tokenizer, vocabulary_size
from prism.data.tokenizing import tokenize
from prism.data.windows import document_windows
from prism.losses.denoising import DenoisingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import PrismModel, attach
from prism.models.causal import Causal
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import FinalLayerConfig
from prism.models.hub import load_backbone
from prism.recipes.known_truth import corpus
from prism.recipes.reproduce.workshop import Workshop, on_cpu, on_gpu
from prism.sampling.draw import Draw
from prism.sampling.order import TopProbability
from prism.training import Optimisation, Shuffled

CONTEXT = 256
"""Tokens the truth writes at once: all it was trained for."""
CLEAN = Draw(nucleus=0.95)
"""How it writes them. Not its exact law, which no one measures here: the unlikely words are what makes a story hard to read."""
TUNING = PrismLoss(k=8, ys=4, regulariser=0.5, order=TopProbability())
CONDITION = 32
"""Width of adaLN's condition, a constant, whose matrices would otherwise be a seventh of the weights."""


@dataclass(frozen=True)
class Scale:
    """How large to make it."""

    sequences: int
    """Written by the truth to learn from."""
    vocabulary: int
    sampled: int
    """Stories the tokenizer is made from."""
    hidden_size: int
    blocks: int
    heads: int
    length: int
    validation: float
    """Share of the stories held out."""
    held_out: int
    """Sequences of them the checkpoints are chosen by, at the most."""
    pretraining: Optimisation
    finetuning: Optimisation


SCALES: dict[str, Scale] = {
    "full": Scale(  # 13M parameters
        sequences=819_200,  # 130M tokens in whole stories
        vocabulary=4096,
        sampled=50_000,
        hidden_size=320,
        blocks=8,
        heads=5,
        length=256,
        validation=0.002,
        held_out=1024,
        pretraining=on_gpu(10_000, 512, lr=1e-3, muon_lr=3e-3, warmup=300),
        finetuning=on_gpu(1_000, 256, lr=1.5e-4, warmup=50),
    ),
    "tiny": Scale(
        sequences=64,
        vocabulary=320,
        sampled=20,
        hidden_size=32,
        blocks=2,
        heads=2,
        length=32,
        validation=0.2,
        held_out=8,
        pretraining=on_cpu(20, 8, lr=3e-3, muon_lr=1e-2),
        finetuning=on_cpu(6, 8, lr=1e-3),
    ),
}


class StoriesModel:
    """The truth, what it wrote, and the models learned from it, each made when it is first asked for."""

    def __init__(self, scale: Scale, workshop: Workshop, truth: Causal, language: Llama2c, *, workers: int = 1) -> None:
        """`language` is the truth's tokenizer; so many `workers` make tokens of the stories."""
        if len(language) != truth.llama.config.vocab_size:
            raise TextError(
                f"The tokenizer has {len(language)} tokens and the truth {truth.llama.config.vocab_size}; name its own."
            )
        self.scale, self.workshop, self.language, self.workers = scale, workshop, language, workers
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.truth = Causal(truth.llama.to(self.device), truth.start)

    @cached_property
    def written(self) -> Integer[np.ndarray, "n l"]:
        """The truth's sequences, in its own tokens."""
        path = self.workshop.models / "written.npy"
        if not path.is_file():
            count, batch = self.scale.sequences, 8192 if self.device.type == "cuda" else 64
            self.workshop.tell(f"writing {count:,} sequences of {CONTEXT} tokens")
            done = self.workshop.tell_tenths(count)
            rows = corpus(self.truth, count, CONTEXT, seed=0, batch=batch, draw=CLEAN, done=done)
            partial = path.with_name(f".{path.name}")
            np.save(partial, rows.cpu().numpy())
            partial.replace(path)
        return np.load(path)

    @cached_property
    def tokenizer(self) -> Any:
        """Made for the first of the stories."""
        folder = self.workshop.models / "tokenizer"
        if not (folder / "tokenizer.json").is_file():
            stories = islice(self.language.documents(self.written), self.scale.sampled)
            self.workshop.tell(f"making a tokenizer of {self.scale.vocabulary} tokens")
            train_tokenizer(stories, self.scale.vocabulary).save_pretrained(folder)
        return load_tokenizer(folder)

    @cached_property
    def tokens(self) -> Corpus:
        """The stories in our tokens."""
        source, tokenizer = _Stories(self.written, self.language), self.tokenizer
        self.workshop.tell("making tokens of the stories")
        folder, share = self.workshop.models / "tokens", self.scale.validation
        found = tokenize(source, tokenizer, folder, validation=share, workers=self.workers)
        kept = found.splits["train"]
        self.workshop.tell(f"{kept.documents:,} stories to learn from, {kept.tokens:,} tokens")
        return found

    def pretrained(self) -> Path:
        def make() -> DiT:
            torch.manual_seed(0)
            return DiT(self._config())

        settings = self.scale.pretraining
        examples = lambda: self._examples(seed=0)  # noqa: E731
        return self.workshop.model("pretrained", make, DenoisingLoss(), examples, self._held_out, settings)

    def tuned(self) -> Path:
        """The model, its tokenizer beside it."""

        def make() -> PrismModel:
            torch.manual_seed(0)
            head = FinalLayerConfig(self.scale.hidden_size, cond_size=CONDITION)
            return attach(load_backbone(self.pretrained()), head, tune_backbone=True)

        settings = self.scale.finetuning
        examples = lambda: self._examples(seed=100)  # noqa: E731
        path = self.workshop.model("prism", make, TUNING, examples, self._held_out, settings)
        self.tokenizer.save_pretrained(path)
        return path

    def _config(self) -> DiTConfig:
        return DiTConfig(
            vocab_size=vocabulary_size(self.tokenizer),
            mask_id=self.tokenizer.mask_token_id,
            length=self.scale.length,
            hidden_size=self.scale.hidden_size,
            blocks=self.scale.blocks,
            heads=self.scale.heads,
            cond_size=CONDITION,
            dropout=0.0,
        )

    def _examples(self, seed: int) -> Shuffled:
        return Shuffled(self._windows(self.tokens.train).to(self.device), seed=seed)

    def _held_out(self) -> Batch:
        return Batch(self._windows(self.tokens.validation)[: self.scale.held_out].long())

    def _windows(self, stream: Stream) -> Integer[Tensor, "n l"]:
        return document_windows(stream, self.scale.length, end_of_text(self.tokenizer))


@dataclass(frozen=True)
class _Stories(Source):
    """The whole stories of what the truth wrote."""

    rows: Integer[np.ndarray, "n l"]
    language: Llama2c

    def documents(self, skip: int = 0) -> Iterator[str]:
        return islice(self.language.documents(self.rows), skip, None)

    def describe(self) -> dict[str, Any]:
        return {"sequences": len(self.rows), "sha256": hashlib.sha256(self.rows.tobytes()).hexdigest()}
