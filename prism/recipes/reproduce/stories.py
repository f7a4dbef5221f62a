"""Text whose truth is known (World A): a causal model writes the corpus, a masked diffusion model learns it, PRISM corrects
what it writes, and the causal model tells how likely that is.

The paper's text experiment (Section 4.2 and Appendix D) asked of a world in which nothing has to be guessed: the data have a
law, the law has an entropy, and what a sampler writes lies so many nats above it. Stories15M (llama2.c) is such a law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from prism.data.writing import Writing
from prism.evaluation.known_truth import own_texts, run_of, weighed
from prism.evaluation.samples import make_all
from prism.evaluation.text import TextRun
from prism.losses.denoising import DenoisingLoss
from prism.losses.masking import Batch
from prism.losses.prism import Likelihood, PrismLoss
from prism.models.attach import PrismModel, attach
from prism.models.causal import Causal
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import BlockConfig, HeadConfig, OddsConfig
from prism.models.hub import load_backbone
from prism.recipes.known_truth import corpus, features
from prism.recipes.reproduce.texts import Features, Kept
from prism.recipes.reproduce.workshop import Workshop, on_cpu, on_gpu, to_sample
from prism.recipes.sampling import Sampling
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser
from prism.sampling.order import RandomOrder, TopProbability
from prism.sampling.prepared import Prepared
from prism.training import Optimisation, Shuffled

CORPUS_SEED, HELD_OUT_SEED, TRUTH_SEED = 0, 1, 2


@dataclass(frozen=True)
class Scale:
    """How large to do it. `ablation` fine-tunes the variants."""

    hidden_size: int
    blocks: int
    heads: int
    length: int
    sequences: int
    """Written by the truth to learn from."""
    held_out: int
    pretraining: Optimisation
    finetuning: Optimisation
    ablation: Optimisation
    samples: int
    raced: int
    """Texts of each of the best methods, where fewer could not tell them apart."""
    at_once: int
    """Sequences sampled at a time."""
    steps: tuple[int, ...]
    """Forward passes, the fewest first."""
    witnesses: int = 500
    """Sequences watched for calibration."""

    def model(self, truth: Causal) -> DiTConfig:
        """The mask is the id behind the truth's vocabulary."""
        vocabulary = truth.llama.config.vocab_size
        return DiTConfig(
            vocab_size=vocabulary + 1,
            mask_id=vocabulary,
            length=self.length,
            hidden_size=self.hidden_size,
            blocks=self.blocks,
            heads=self.heads,
            dropout=0.0,
        )


def _odds(d: int, heads: int) -> HeadConfig:
    return OddsConfig(d, heads=heads, dropout=0.0)


def _block(d: int, heads: int) -> HeadConfig:
    return BlockConfig(d, heads=heads, dropout=0.0)


MAIN = PrismLoss(k=8, ys=4, regulariser=0.0, order=TopProbability())
"""The paper's S, the most confident masks, and the released code's k and n_y (the paper's own on text are 32 and 1). A frozen
backbone stays in shape without λ."""
AT_RANDOM = replace(MAIN, order=RandomOrder())
"""S at random: of the most confident masks of a half-empty story 98 % come out right, so this head sees more mistakes."""
TUNED = replace(AT_RANDOM, regulariser=0.5)
"""The paper's λ, where the backbone learns too."""


@dataclass(frozen=True)
class Variant:
    """One way to fine-tune. What is left out is an odds head on the backbone as it is. Training the backbone too makes its
    texts likelier still, but those of P2-self as well, which then needs no head (docs/experiments.md)."""

    loss: PrismLoss
    head: Callable[[int, int], HeadConfig | None] = _odds
    tune_backbone: bool = False
    head_lr: float | None = 1e-3
    """The backbone's if left out."""
    longer: int = 1
    """So many times the steps."""


_likelihood = Variant(replace(TUNED, target=Likelihood()), lambda d, heads: None, tune_backbone=True, head_lr=None)

WAYS: dict[str, Variant] = {
    "prism": Variant(MAIN),
    "S-at-random": Variant(AT_RANDOM),
    "likelihood": _likelihood,  # Appendix D.6: no head, and as many steps as PRISM or twice as many
    "likelihood-twice": replace(_likelihood, longer=2),
}
"""By the names of their weights: PRISM, and what is compared with it at every strength."""

VARIANTS: dict[str, Variant] = {
    "S at random": Variant(AT_RANDOM),
    "S by confidence": Variant(MAIN),
    "k=4, n_y=8": Variant(replace(AT_RANDOM, k=4, ys=8)),
    "k=16, n_y=2": Variant(replace(AT_RANDOM, k=16, ys=2)),
    "k=32, n_y=1": Variant(replace(AT_RANDOM, k=32, ys=1)),
    "nucleus 0.9": Variant(replace(AT_RANDOM, draw=Draw(nucleus=0.9))),
    "tuned backbone": Variant(TUNED, tune_backbone=True),
    "block head": Variant(AT_RANDOM, head=_block),
    "as published": Variant(replace(TUNED, order=TopProbability()), _block, tune_backbone=True, head_lr=None),
}
"""Each but the last differs from the first in one thing. The last has the paper's head, S and λ, all of the backbone, and the
released code's k and n_y."""


SCALES: dict[str, Scale] = {
    "full": Scale(
        hidden_size=384,
        blocks=12,
        heads=6,
        length=256,
        sequences=1_179_648,  # 302M tokens
        held_out=1024,
        pretraining=on_gpu(5_000, 512, lr=1e-3, muon_lr=3e-3, warmup=300, looks=5),
        finetuning=on_gpu(700, 256, lr=1.5e-4, warmup=50, looks=2),
        ablation=on_gpu(300, 256, lr=1.5e-4, warmup=20, looks=1),
        samples=2_000,
        raced=8_000,
        at_once=500,
        steps=(16, 32, 64, 128, 256),
    ),
    "tiny": Scale(
        hidden_size=32,
        blocks=2,
        heads=2,
        length=16,
        sequences=64,
        held_out=16,
        pretraining=on_cpu(20, 8, lr=3e-3, muon_lr=1e-2),
        finetuning=on_cpu(6, 8, lr=1e-3),
        ablation=on_cpu(2, 8, lr=1e-3),
        samples=6,
        raced=8,
        at_once=4,
        steps=(4, 8),
        witnesses=4,
    ),
}


class StoriesStudy:
    """The truth, its corpus, and the models by name, each made when it is first asked for."""

    def __init__(self, scale: Scale, workshop: Workshop, truth: Causal, writing: Writing) -> None:
        self.scale, self.workshop, self.writing = scale, workshop, writing
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.truth = Causal(truth.llama.to(self.device), truth.start)
        self.kept = Kept(workshop.models / "samples")
        self._corpus: Integer[Tensor, "n l"] | None = None

    def corpus(self, sequences: int) -> Integer[Tensor, "n l"]:
        """The first `sequences` of it, written when more are asked for than before."""
        if self._corpus is None or len(self._corpus) < sequences:
            self.workshop.tell(f"  writing {sequences:,} sequences of {self.scale.length} tokens")
            self._corpus = self._written(sequences, CORPUS_SEED, self.workshop.tell_tenths(sequences))
        return self._corpus[:sequences]

    def _written(
        self, sequences: int, seed: int, done: Callable[[int], object] | None = None
    ) -> Integer[Tensor, "n l"]:
        batch = 8192 if self.device.type == "cuda" else 64
        return corpus(self.truth, sequences, self.scale.length, seed=seed, batch=batch, done=done)

    def held_out(self) -> Batch:
        """Other samples of the same law; the start token is always given."""
        rows = self._written(self.scale.held_out, HELD_OUT_SEED).long().cpu()
        return Batch(rows, self._free(rows))

    def _examples(self, seed: int, settings: Optimisation) -> Shuffled:
        """Of the corpus; of no more of it than will be read, since it has to be written first."""
        rows = self.corpus(min(self.scale.sequences, settings.steps * settings.batch))
        return Shuffled(rows, self._free(rows), seed=seed)

    @staticmethod
    def _free(rows: Tensor) -> Tensor:
        """Everything but the start token; one row of it in memory, however many there are."""
        return (torch.arange(rows.shape[1], device=rows.device) > 0).expand(rows.shape)

    def own(self, samples: int | None = None, *, seed: int = TRUTH_SEED) -> TextRun:
        """What the truth itself writes: its entropy, and the texts MAUVE compares with."""
        return self._own(samples or self.scale.samples, seed)

    @lru_cache(maxsize=2)  # noqa: B019 (a study lives as long as the process)
    def _own(self, samples: int, seed: int) -> TextRun:
        make = own_texts(self.truth, self.writing.text, length=self.scale.length, seed=seed, batch=self.scale.at_once)
        return run_of(make_all(make, samples=samples, batch=self.scale.at_once))

    def own_features(self, samples: int, *, seed: int = TRUTH_SEED) -> Features:
        """Of these texts, kept: where there is no GPU, writing them takes longer than all the rest of MAUVE."""
        name = f"the truth, seed={seed}, {samples} texts"
        if (features := self.kept.features(name)) is None:
            tokens = self.own(samples, seed=seed).tokens
            self.kept.write(name, tokens, features := self.features(tokens))
        return features

    def pretrained(self) -> Path:
        def make() -> DiT:
            torch.manual_seed(0)
            return DiT(self.scale.model(self.truth))

        examples = lambda: self._examples(0, self.scale.pretraining)  # noqa: E731
        return self.workshop.model("pretrained", make, DenoisingLoss(), examples, self.held_out, self.scale.pretraining)

    def tuned(self, name: str = "prism") -> Path:
        """One of the `WAYS`."""
        return self._tune(name, WAYS[name], self.scale.finetuning)

    def variant(self, name: str) -> Path:
        folder = f"variant-{name}".replace("'", "").replace(", ", "-").replace(" ", "-").replace("=", "-")
        return self._tune(folder, VARIANTS[name], self.scale.ablation)

    def _tune(self, name: str, variant: Variant, settings: Optimisation) -> Path:
        def make() -> PrismModel:
            torch.manual_seed(settings.seed)
            backbone = load_backbone(self.pretrained())
            head = variant.head(self.scale.hidden_size, self.scale.heads)
            return attach(backbone, head, tune_backbone=variant.tune_backbone)

        settings = replace(settings, head_lr=variant.head_lr, steps=variant.longer * settings.steps)
        examples = lambda: self._examples(100, settings)  # noqa: E731
        return self.workshop.model(name, make, variant.loss, examples, self.held_out, settings)

    def load(self, path: Path, *, compiled: bool = True) -> Any:
        return to_sample(path, self.device, compiled=compiled)

    def write(self, model: Denoiser, sampling: Sampling, *, samples: int | None = None) -> TextRun:
        assert sampling.steps is not None
        prepared = Prepared(
            model,
            sampling.build_policy(),
            steps=sampling.steps,
            draw=sampling.build_draw(),
            schedule=sampling.build_schedule(),
        )
        make = weighed(prepared, self.truth, self.writing.text, length=self.scale.length, seed=sampling.seed)
        return run_of(make_all(make, samples=samples or self.scale.samples, batch=self.scale.at_once))

    def features(self, tokens: np.ndarray) -> Features:
        return Features(*features(self.truth, tokens, batch=self.scale.at_once))
