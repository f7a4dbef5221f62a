"""Unconditional text (PRISM, Section 4.2; results in Appendix D.1, remasking in D.2, settings in the table of configurations):
MDLM's OpenWebText checkpoint is tuned with PRISM, and every row of the paper's table is written and judged.

Where the paper leaves room:

- **The batch.** 164M tokens, a batch of 256 and 10,000 steps (Appendix D.6) do not go together: 10,000 steps of 16 sequences of
  1024 tokens are 164M tokens, and so are 625 steps of 256. The first reading is used, which keeps two of the three figures;
  `Scale.in_batches_of(256)` is the second.
- **The rate** rises over a quarter of the steps and then stays: the released code's 2,500 of 10,000. Clipping at 1 and the
  average of weights (0.9999) are that code's as well.
- **Weights.** The paper says that baselines were run on the tuned weights, and its table quotes MDLM and ReMDM from ReMDM's
  paper, where nothing was tuned. Baselines are run on both.
- **ReMDM** is what its own paper reports (Wang et al. 2025): cap with η = 0.04 below 1024 steps, loop with η = 0.02 from there.
- **Sequences** begin and end with the end-of-text token, as those of the checkpoint did.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float

from prism.data.shards import MANIFEST, Corpus, CorpusWriter
from prism.data.text import (
    Dataset,
    Files,
    First,
    Source,
    end_mark,
    end_of_text,
    holds_json_lines,
    load_tokenizer,
    vocabulary_size,
)
from prism.data.tokenizing import tokenize
from prism.data.windows import TextWindows
from prism.data.writing import Text, has_tokenizer
from prism.evaluation.judge import load_judge
from prism.evaluation.mauve import mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import SampleFile, Written
from prism.evaluation.text import Likelihood, figure
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import PrismModel, attach
from prism.models.backbone import Backbone, Facts
from prism.models.heads import BlockConfig
from prism.models.hub import load_model, locate
from prism.recipes.reproduce.texts import digest_of, figures, write_texts
from prism.recipes.reproduce.workshop import Workshop, on_cpu, to_sample
from prism.recipes.sampling import Sampling
from prism.sampling.order import TopProbability
from prism.state import State, start
from prism.training import Optimisation, Precision

Made = TypeVar("Made")
Watch = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""A bar: what is done and how much of it there is; what it yields is called with how much is done."""

AT_ONCE = 16
"""Sequences that go through the model together in training; larger batches are accumulated."""
DOCUMENTS_A_PROCESS = 10_000
"""Fewer are not worth starting another process for."""


@dataclass(frozen=True)
class Scale:
    """How large to do it."""

    documents: int
    """Of the data, the first so many."""
    validation: float
    """The share of them held out."""
    length: int
    """Tokens of a sequence."""
    finetuning: Optimisation
    loss: PrismLoss
    held_out: int
    """Sequences the weights are chosen on."""
    samples: int
    """Written by every method, and as many held-out sequences for MAUVE to compare them with."""
    at_once: int
    """Sequences sampled at a time."""
    steps: tuple[int, ...]
    """Forward passes, N, the fewest first."""

    @property
    def tokens(self) -> int:
        """Seen in fine-tuning."""
        return self.finetuning.steps * self.finetuning.batch * self.length

    def in_batches_of(self, batch: int) -> Scale:
        """As many tokens, so many sequences a step."""
        sequences = self.finetuning.steps * self.finetuning.batch
        if not 1 <= batch <= sequences:
            raise ValueError(
                f"--batch {batch}: must lie in 1..{sequences}, all there is to fine-tune on; the paper may mean 16 or 256."
            )
        steps = sequences // batch
        divisors = (parts for parts in range(1, batch + 1) if batch % parts == 0)
        return replace(
            self,
            finetuning=replace(
                self.finetuning,
                steps=steps,
                batch=batch,
                accumulate=next(parts for parts in divisors if batch // parts <= AT_ONCE),
                warmup=steps // 4,
                evaluate_every=max(1, steps // 10),
                checkpoint_every=max(1, steps // 10),
            ),
        )


SCALES: dict[str, Scale] = {
    "paper": Scale(
        documents=250_000,  # a good thousand tokens each: the 164M once, and enough to hold out
        validation=0.05,
        length=1024,
        finetuning=Optimisation(
            10_000,
            16,
            lr=1.5e-4,
            warmup=2_500,
            ema=0.9999,
            precision=Precision.BF16,
            compile=True,
            keep=1,
        ),
        loss=PrismLoss(k=32, ys=1, regulariser=0.5, order=TopProbability()),
        held_out=256,
        samples=5_000,
        at_once=100,
        steps=(64, 128, 256, 512, 1024),
    ),
    "tiny": Scale(
        documents=500,
        validation=0.25,
        length=16,
        finetuning=on_cpu(4, 8, lr=1e-3),
        loss=PrismLoss(k=4, ys=1, regulariser=0.5, order=TopProbability()),
        held_out=4,
        samples=6,
        at_once=4,
        steps=(4, 8),
    ),
}


# ── the rows of the table ───────────────────────────────────────────────────────────────────────────────────────────


def mdlm(steps: int) -> Sampling:
    return Sampling("mdlm", steps=steps, nucleus=0.9)


def remdm_conf(steps: int) -> Sampling:
    return Sampling("remdm-conf", steps=steps, nucleus=0.9)


def remdm(steps: int) -> Sampling:
    """The variant ReMDM's paper reports at so many steps. It has none below 128; what it has at 128 is taken there."""
    policy, eta = ("remdm-cap", 0.04) if steps < 1024 else ("remdm-loop", 0.02)
    return Sampling(policy, steps=steps, nucleus=0.9, eta=eta)


def prism(steps: int) -> Sampling:
    """K ~ Binomial(committed, 2.56/N) from step ⌈N/2⌉ on (Algorithm 2, Appendix D.2)."""
    return Sampling("prism", steps=steps, nucleus=0.9, eta=min(1.0, 2.56 / steps), on=0.5)


@dataclass(frozen=True)
class Row:
    method: str
    """As the paper's table calls it."""
    sampling: Callable[[int], Sampling]
    """With so many forward passes."""
    tuned: bool
    """Whether it writes with the tuned weights or with the checkpoint as it came."""


TABLE: dict[str, Row] = {
    "mdlm": Row("MDLM", mdlm, tuned=False),
    "remdm-conf": Row("ReMDM-conf", remdm_conf, tuned=True),
    "remdm": Row("ReMDM", remdm, tuned=False),
    "prism": Row("PRISM", prism, tuned=True),
}
"""The paper's, on the weights its figures come from as far as it says."""
OTHER_WEIGHTS: dict[str, Row] = {
    "mdlm-tuned": Row("MDLM", mdlm, tuned=True),
    "remdm-conf-untuned": Row("ReMDM-conf", remdm_conf, tuned=False),
    "remdm-tuned": Row("ReMDM", remdm, tuned=True),
}
ROWS = TABLE | OTHER_WEIGHTS


# ── the study ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def unwatched(what: str, total: int) -> Iterator[Callable[[int], object]]:
    yield lambda done: None


@dataclass(frozen=True)
class Ingredients:
    """What the experiment is made of; names are folders or the hub's."""

    checkpoint: str = "kuleshov-group/mdlm-owt"
    data: str = "Skylion007/openwebtext"
    """A folder of prism tokenize, a file of text, or a dataset of the hub."""
    judge: str = "gpt2-large"
    tokenizer: str | None = None
    """The one beside the checkpoint if left out, else that of the data's folder, else gpt2, the paper's."""


class OwtStudy:
    """The data, the tuned model and the samples, each made when it is first asked for."""

    def __init__(self, scale: Scale, workshop: Workshop, ingredients: Ingredients, watch: Watch = unwatched) -> None:
        self.scale, self.workshop, self.ingredients, self.watch = scale, workshop, ingredients, watch
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # What may be missing is looked for now and not after hours of work.
        self.checkpoint = locate(ingredients.checkpoint).resolve()  # models are remembered by their path
        self.tokenizer = load_tokenizer(self._tokenizer_source())
        self.judge = load_judge(ingredients.judge, end=end_mark(self.tokenizer))

    # ── data ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tokenizer_source(self) -> str | Path:
        if self.ingredients.tokenizer is not None:
            return self.ingredients.tokenizer
        if has_tokenizer(self.checkpoint):
            return self.checkpoint
        return Path(self.ingredients.data) / "tokenizer" if self._data_is_tokens() else "gpt2"

    def _data_is_tokens(self) -> bool:
        return (Path(self.ingredients.data) / MANIFEST).is_file()

    @cached_property
    def corpus(self) -> Corpus:
        if self._data_is_tokens():
            corpus = Corpus.load(Path(self.ingredients.data))
            corpus.require_tokenizer(self.tokenizer, f"that of {self.ingredients.checkpoint}")
        else:
            corpus = self._tokenized(First(self._source(), self.scale.documents))
        wanted = self.scale.held_out + self.scale.samples
        there = len(corpus.validation) // (self.scale.length - 2)  # and an end on either side
        if there < wanted:
            raise ValueError(
                f"{self.ingredients.data} has {there:,} held-out sequences of {self.scale.length} tokens, and {wanted:,} are "
                f"needed ({self.scale.held_out:,} to choose weights on, {self.scale.samples:,} for MAUVE); give more text, or "
                "tokens made by prism tokenize with a larger --validation."
            )
        return corpus

    def _source(self) -> Source:
        path = Path(self.ingredients.data)
        return Files((path,)) if path.is_file() or holds_json_lines(path) else Dataset(self.ingredients.data)

    def _tokenized(self, source: Source) -> Corpus:
        self.workshop.tell(f"  tokenizing the first {self.scale.documents:,} documents of {self.ingredients.data}")
        workers = min(os.cpu_count() or 1, max(1, self.scale.documents // DOCUMENTS_A_PROCESS))
        folder = self.workshop.models / "tokens"
        with self.watch("documents", self.scale.documents) as done:

            def report(writer: CorpusWriter) -> None:
                done(writer.taken)

            return tokenize(
                source,
                self.tokenizer,
                folder,
                validation=self.scale.validation,
                workers=workers,
                report=report,
            )

    @cached_property
    def training_windows(self) -> TextWindows:
        return TextWindows(self.corpus.train, self.scale.length, seed=0, end=end_of_text(self.tokenizer))

    def held_out(self, rows: range) -> Batch:
        windows = TextWindows(self.corpus.validation, self.scale.length, end=end_of_text(self.tokenizer))
        return Batch(windows.read(rows))

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def backbone(self) -> Backbone:
        """The checkpoint, in float32 because it will learn."""
        found = load_model(self.checkpoint, dtype=torch.float32)
        if isinstance(found, PrismModel):
            raise ValueError(
                f"{self.ingredients.checkpoint} has a corrector already; name the backbone it was attached to."
            )
        self._check_vocabulary(found.facts)
        return found

    def _check_vocabulary(self, facts: Facts) -> None:
        tokens, known, mask = vocabulary_size(self.tokenizer), facts.vocab_size, facts.mask_id
        if tokens > known or (mask < tokens and mask != self.tokenizer.mask_token_id):
            raise ValueError(
                f"The tokenizer has the tokens 0..{tokens - 1} and the checkpoint knows 0..{known - 1} with the mask {mask}; "
                "name the tokenizer it was trained with (--tokenizer)."
            )

    def tuned(self) -> Path:
        """The checkpoint with the paper's head, all of it tuned."""

        def make() -> PrismModel:
            backbone = self.backbone()
            torch.manual_seed(self.scale.finetuning.seed)
            width = backbone.facts.hidden_size
            return attach(backbone, BlockConfig(width, heads=max(1, width // 64)), tune_backbone=True)

        return self.workshop.model(
            "prism",
            make,
            self.scale.loss,
            lambda: self.training_windows,
            lambda: self.held_out(range(self.scale.held_out)),
            self.scale.finetuning,
        )

    def weights(self, row: Row) -> Path:
        return self.tuned() if row.tuned else self.checkpoint

    # ── samples, and the judge ──────────────────────────────────────────────────────────────────────────────────────

    def write(self, name: str, steps: int) -> list[Written]:
        """The samples of a row, from its file as far as they are there."""
        row, scale = ROWS[name], self.scale
        sampling, weights = row.sampling(steps), self.weights(row)
        model = to_sample(weights, self.device)
        self._check_vocabulary(model.facts)
        mask = model.facts.mask_id

        def blank(count: int) -> State:
            return start(torch.full((count, scale.length), mask, device=self.device), mask)

        folder = self.workshop.models / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"weights": digest_of(weights), "length": scale.length, **vars(sampling)}
        with self.watch(f"{name}, {steps} steps", scale.samples) as done:
            return write_texts(
                model,
                sampling,
                self.tokenizer,
                blank,
                samples=scale.samples,
                batch=scale.at_once,
                file=SampleFile(folder / f"{name}_{steps}.jsonl", settings),
                done=done,
            )

    def likelihood(self, texts: Sequence[str]) -> Likelihood:
        nll, tokens = zip(*self._judged("judging", texts, self.judge.likelihood), strict=True)
        return Likelihood(np.array(nll), np.array(tokens))

    def features(self, texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
        found: list[np.ndarray] = self._judged("reading", texts, self.judge.features)
        return np.stack(found)

    @cached_property
    def references(self) -> Float[np.ndarray, "n d"]:
        """Held-out text as MAUVE sees it: other sequences than those the weights were chosen on, as long as the samples."""
        first = self.scale.held_out
        rows = self.held_out(range(first, first + self.scale.samples)).tokens.tolist()
        return self.features([Text(self.tokenizer).text(row) for row in rows])

    def _judged(self, what: str, texts: Sequence[str], work: Callable[[Sequence[str]], list[Made]]) -> list[Made]:
        self.judge.model.to(self.device)  # it waits in main memory while others need the device
        found: list[Made] = []
        with self.watch(what, len(texts)) as done:
            for first in range(0, len(texts), self.judge.batch):
                found += work(texts[first : first + self.judge.batch])
                done(len(found))
        self.judge.model.to("cpu")
        return found


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def training(study: OwtStudy) -> dict[str, Any]:
    """The checkpoint tuned with PRISM."""
    story, settings = study.workshop.story(study.tuned()), study.scale.finetuning
    return {
        "tokens": study.scale.tokens,
        "steps": settings.steps,
        "batch": settings.batch,
        "sequences": study.training_windows.count,
        "epochs": settings.steps * settings.batch / study.training_windows.count,
        "chosen": story["chosen"],
        "history": story["history"],
        "record": story["record"],
    }


def judged(name: str, steps: int) -> Callable[[OwtStudy], dict[str, Any]]:
    row, sampling = ROWS[name], ROWS[name].sampling(steps)

    def measure(study: OwtStudy) -> dict[str, Any]:
        clock, rows = Stopwatch(), study.write(name, steps)
        likelihood = study.likelihood([written.text for written in rows])
        record = clock.record("reproduce owt", sampling, seed=sampling.seed, device=study.device)
        return {
            **_about(name, steps),
            **figures(rows, likelihood),
            "judge": {"name": study.ingredients.judge, **study.judge.describe()},
            "record": plain(record),
        }

    weights = "tuned weights" if row.tuned else "the checkpoint"
    measure.__doc__ = f"{row.method} with {steps} forward passes on {weights}: perplexity and entropy."
    return measure


def mauve_scores(names: Iterable[str], steps: int) -> Callable[[OwtStudy], dict[str, Any]]:
    def measure(study: OwtStudy) -> dict[str, Any]:
        clock, rows = Stopwatch(), []
        for name in names:
            found = mauve(study.references, study.features([written.text for written in study.write(name, steps)]))
            rows.append(
                {
                    **_about(name, steps),
                    **figure("mauve", found.score),
                    "mauve_by_seed": list(found.by_seed),
                    "mauve_buckets": found.buckets,
                }
            )
            study.workshop.tell(f"  {name}: MAUVE {found.score}")
        record = clock.record("reproduce owt", {"steps": steps}, seed=0, device=study.device)
        return {"references": len(study.references), "rows": rows, "record": plain(record)}

    measure.__doc__ = f"MAUVE of {', '.join(names)} with {steps} forward passes."
    return measure


def _about(name: str, steps: int) -> dict[str, Any]:
    row, sampling = ROWS[name], ROWS[name].sampling(steps)
    return {
        "row": name,
        "method": row.method,
        "weights": "tuned" if row.tuned else "checkpoint",
        "sampling": sampling.described(),
        "steps": steps,
    }


def results_of(scale: Scale, *, with_mauve: bool) -> dict[str, Callable[[OwtStudy], dict[str, Any]]]:
    """All results by the name of their file: the paper's table first, the fewest steps first."""
    results: dict[str, Callable[[OwtStudy], dict[str, Any]]] = {"training": training}
    for scores, rows in (("mauve", TABLE), ("mauve_other_weights", OTHER_WEIGHTS)):
        for steps in scale.steps:
            results |= {f"{name}_{steps}": judged(name, steps) for name in rows}
            results |= {f"{scores}_{steps}": mauve_scores(rows, steps)} if with_mauve else {}
    return results
