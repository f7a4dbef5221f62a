"""prism evaluate text, prism evaluate known-truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from prism.cli.command import (
    Command,
    WithModel,
    check_file,
    console,
    dtype_of,
    own_length,
    progress,
    require_head,
    show_record,
    warn_of_length,
)
from prism.data.llama2c import Llama2c
from prism.data.shards import MANIFEST, Corpus
from prism.data.text import Files, end_mark, end_of_text, fingerprint, load_tokenizer
from prism.data.windows import TextWindows
from prism.data.writing import Text, has_tokenizer
from prism.evaluation.judge import Featuriser, Judge, load_encoder, load_judge
from prism.evaluation.known_truth import own_texts, run_of, weighed
from prism.evaluation.mauve import clustering, combined, mauve, require_mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import SampleFile, Together, Written, costs, make_all, weights_digest, write_samples
from prism.evaluation.statistics import difference
from prism.evaluation.text import Likelihood, diversity, figure
from prism.models.causal import Causal, load_llama2c
from prism.models.folding import for_sampling
from prism.models.hub import is_mdlms, locate
from prism.recipes.known_truth import features, writing_of
from prism.recipes.sampling import Sampling
from prism.sampling.prepared import Prepared
from prism.state import State, start

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class _Generates(WithModel, Sampling, Command):
    samples: int | None = None
    """How many sequences, 1000 if left out; of given texts the first so many, all if left out."""
    length: int | None = None
    """Their tokens; the model's own length if left out."""
    batch: int | None = None
    """Sequences made at once by each process, 16 on a CPU and 128 elsewhere if left out."""
    save: Path | None = None
    """Write the samples to this file, a JSON object a line."""

    def check(self) -> None:
        super().check()
        for flag, value in (("--samples", self.samples), ("--length", self.length), ("--batch", self.batch)):
            if value is not None and value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1.")
        if self.save is not None:
            check_file("--save", self.save)

    def count(self) -> int:
        return 1000 if self.samples is None else self.samples

    def batch_size(self) -> int:
        return self.batch or (16 if self.torch_device().type == "cpu" else 128)

    def full_length(self, model: Any) -> int:
        length = self.length or own_length(model)
        if length is None:
            raise ValueError("This model does not say how long its sequences are; give --length.")
        return length


@dataclass(frozen=True, kw_only=True)
class EvaluateText(_Generates):
    """Generate text, or take texts, and judge them: generative perplexity, entropy, distinct n-grams, repetition, MAUVE.

    With --save an interrupted run goes on where it stopped; `accelerate launch -m prism evaluate text …` shares the work, and
    the samples are the same.
    """

    model: str | None = None
    """What writes, unless texts are given (--texts), a folder or hub name: a model made by `prism finetune`, `prism pretrain`
    or `prism adapt`, or a masked language model of transformers."""
    tokenizer: str | None = None
    """The model's tokenizer (a folder or hub name), where none lies beside it: gpt2 for MDLM."""
    texts: Path | None = None
    """Judge these instead of generating: JSON lines, or plain text (see --separator)."""
    judge: str = "gpt2-large"
    """The causal model that gives the perplexity: a hub name, a folder or a GGUF file."""
    judge_context: int | None = None
    """Tokens of a text it reads; all it can if left out."""
    judge_start: bool | None = None
    """Whether it gets its start token; as its tokenizer does it if left out."""
    judge_batch: int = 8
    """Texts it reads at once."""
    judge_dtype: str = "float32"
    """float32, as published, or bfloat16."""
    reference: Path | None = None
    """Text to compare with for MAUVE: JSON lines, plain text, or a folder of prism tokenize, whose validation part is taken in
    pieces as long as the samples. Needs mauve-text, which is under the GPLv3: pip install 'prism-mdm[mauve]'."""
    ends: bool | None = None
    """Put the pieces of a --reference folder between two end-of-text tokens, as the model learnt them (prism pretrain --ends
    true); if left out, so for MDLM's checkpoints. MAUVE sees how texts end: it means nothing where only one side has ends."""
    encoder: str | None = None
    """MAUVE's features from the mean hidden state of this encoder (a folder or hub name) and not, as published with
    gpt2-large, from the judge's last token."""
    mauve_seeds: int = 5
    """How many clusterings."""
    field: str = "text"
    """Where a JSON line keeps its text."""
    separator: str | None = None
    """In plain text files, a line that stands between texts."""
    end_of_text: str | None = None
    """How texts mark the end of a document, for the judge to read its own mark; the model's, or <|endoftext|> in files."""

    def check(self) -> None:
        super().check()
        if (self.model is None) == (self.texts is None):
            raise ValueError("Give a model that writes (--model) or texts to judge (--texts), one of them.")
        dtype_of("--judge_dtype", self.judge_dtype)
        for flag, value in (("--judge_batch", self.judge_batch), ("--mauve_seeds", self.mauve_seeds)):
            if value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1.")
        if self.texts is not None:
            self._check_nothing_about_sampling()
            if not self.texts.is_file():
                raise ValueError(f"--texts {self.texts}: no such file.")
        if self.encoder is not None and self.reference is None:
            raise ValueError("--encoder makes features for MAUVE; give --reference too.")
        if self.reference is not None:
            require_mauve()
            if not self.reference.is_file() and not (self.reference / MANIFEST).is_file():
                raise ValueError(f"--reference {self.reference}: neither a file nor a folder of prism tokenize.")
        if self.ends is not None and (self.reference is None or not (self.reference / MANIFEST).is_file()):
            raise ValueError("--ends is about a --reference folder of prism tokenize; leave it out.")

    def _check_nothing_about_sampling(self) -> None:
        about = (*fields(Sampling), *(f for f in fields(self) if f.name in ("length", "batch", "save", "tokenizer")))
        if given := [f"--{f.name}" for f in about if getattr(self, f.name) != f.default]:
            raise ValueError(f"{', '.join(given)}: the texts are there already (--texts); leave it out.")

    def run(self) -> dict[str, Any]:
        clock, together = Stopwatch(), Together()
        writing = self._writing() if self.texts is None else None
        end = END_OF_TEXT if writing is None else end_mark(writing.tokenizer)
        judge = load_judge(  # first, lest it be missed when an hour's samples are there
            self.judge,
            device=self.torch_device(),
            dtype=dtype_of("--judge_dtype", self.judge_dtype),
            context=self.judge_context,
            begins=self.judge_start,
            batch=self.judge_batch,
            end=self.end_of_text or end,
        )
        tokens: list[np.ndarray] | None = None
        made: dict[str, Any] = {}
        if self.texts is not None:
            texts = self._read(self.texts, self.samples)
        else:
            assert writing is not None
            rows, made = self._write(writing, together)
            texts, tokens = [row.text for row in rows], [np.array(row.tokens) for row in rows]
        likelihood = self._likelihood(judge, texts, together)
        whole = [np.array(judge.whole(text), dtype=np.int64) for text in texts]
        cut = sum(len(row) > judge.room for row in whole)
        if cut:
            console.print(
                f"{cut} of {len(texts)} texts are longer than the {judge.room} tokens of them {self.judge} reads; it judges "
                "how they begin.",
                soft_wrap=True,
            )
        summary = {
            "samples": len(texts),
            "texts_cut": cut,
            **likelihood.summary(),
            **diversity(tokens if tokens is not None else whole),
            "diversity_of": "the model's tokens" if tokens is not None else "the judge's tokens",
        }
        if self.reference is not None:
            summary |= self._mauve(judge, texts, tokens, together)
        summary = _honest(summary)
        record = clock.record("evaluate text", self, seed=self.seed, model=judge.model, name=self.judge)
        if together.is_main:
            _show(f"{len(texts)} texts, judged by {self.judge}", summary)
            show_record(record)
        return {**summary, **made, "judge": {"name": self.judge, **judge.describe()}, "record": plain(record)}

    def _write(self, writing: Text, together: Together) -> tuple[list[Written], dict[str, Any]]:
        """Samples of the model, and what made them."""
        policy, draw, schedule = self.build_policy(), self.build_draw(), self.build_schedule()
        loaded = self.loaded()
        require_head(loaded, self.method())
        model = for_sampling(loaded, self.torch_dtype())
        length, device = self.full_length(loaded), self.torch_device()
        self.check_length(length)
        warn_of_length(loaded, length)
        steps = self.steps if self.steps is not None else length
        mask = model.facts.mask_id

        def blank(count: int) -> State:
            return start(torch.full((count, length), mask, device=device), mask)

        sampling = {f.name: getattr(self, f.name) for f in fields(Sampling)} | {"steps": steps}
        settings = {"model": self.model, "weights": weights_digest(loaded), "length": length, "dtype": self.dtype}
        settings |= {"mask_id": mask, "tokenizer": fingerprint(writing.tokenizer)}  # for the file keeps texts
        with progress("samples", self.count(), shown=together.is_main) as done:
            rows = write_samples(
                Prepared(model, policy, steps=steps, draw=draw, schedule=schedule, block=self.block),
                blank,
                writing.text,
                samples=self.count(),
                seed=self.seed,
                batch=self.batch_size(),
                file=None if self.save is None else SampleFile(self.save, settings | sampling),
                together=together,
                done=done,
            )
        return rows, {**costs(rows), "length": length, "policy": plain(policy), "model": settings}

    def _writing(self) -> Text:
        assert self.model is not None
        beside = locate(self.model)
        if self.tokenizer is None and not has_tokenizer(beside):
            raise ValueError(
                f"{self.model} has no tokenizer beside it to read its samples with; name one: --tokenizer."
            )
        return Text(load_tokenizer(beside if self.tokenizer is None else self.tokenizer))

    def _read(self, path: Path, most: int | None = None) -> list[str]:
        documents = Files((path,), self.field, self.separator).documents()
        found = list(islice((text for text in documents if text.strip()), most))
        if not found:
            raise ValueError(f"{path}: no text in it.")
        return found

    def _likelihood(self, judge: Judge, texts: list[str], together: Together) -> Likelihood:
        found = _each("judging", texts, judge.batch, judge.likelihood, together)
        nll, tokens = zip(*found, strict=True)
        return Likelihood(np.array(nll), np.array(tokens))

    def _mauve(
        self, judge: Judge, texts: list[str], tokens: Sequence[np.ndarray] | None, together: Together
    ) -> dict[str, Any]:
        assert self.reference is not None
        length = len(tokens[0]) if tokens else max(len(judge.read(text)) for text in texts)
        references = self._references(self.reference, len(texts), length, judge.end or judge.own_end)
        eye: Featuriser = judge
        if self.encoder is not None:
            eye = load_encoder(
                self.encoder, device=self.torch_device(), dtype=dtype_of("--judge_dtype", self.judge_dtype)
            )
        most = max(len(eye.read(text)) for text in texts)  # or references would be told from samples by their length

        def features(some: Sequence[str]) -> list[Any]:
            return eye.features(some, most=most)

        written = np.stack(_each("reading references", references, eye.batch, features, together))
        generated = np.stack(_each("reading samples", texts, eye.batch, features, together))

        def cluster(some: Sequence[int]) -> list[Any]:
            return [clustering(written, generated, seed) for seed in some]

        found = combined(_each("clustering", range(self.mauve_seeds), 1, cluster, together))
        return {
            **figure("mauve", found.score),
            "mauve_by_seed": list(found.by_seed),
            "mauve_buckets": found.buckets,
            "mauve_references": len(references),
            "mauve_features": self.encoder or self.judge,
        }

    def _references(self, source: Path, count: int, length: int, mark: str | None) -> list[str]:
        """So many texts to be like; where a document ends they have the samples' `mark`, or the two would differ in that."""
        if not (source / MANIFEST).is_file():
            return [_marked(text, END_OF_TEXT, mark) for text in self._read(source, count)]
        corpus = Corpus.load(source)
        tokenizer = load_tokenizer(corpus.folder / "tokenizer")
        corpus.require_tokenizer(tokenizer, "the one beside it")
        windows = TextWindows(corpus.validation, length, end=end_of_text(tokenizer) if self._ends() else None)
        rows = windows.read(range(min(count, windows.count))).tolist()
        return [_marked(Text(tokenizer).text(row), end_mark(tokenizer), mark) for row in rows]

    def _ends(self) -> bool:
        return self.model is not None and is_mdlms(self.model, self.backbone) if self.ends is None else self.ends


@dataclass(frozen=True, kw_only=True)
class EvaluateKnownTruth(_Generates):
    """Generate from a model that was trained on a causal model's own samples, and let that model, the truth, judge.

    With --save an interrupted run goes on where it stopped; `accelerate launch -m prism evaluate known-truth …` shares the
    work, and the samples are the same.
    """

    model: str | None = None
    """What writes, a folder or hub name: a model trained on what the truth wrote (`prism corpus`)."""
    truth: Path
    """The causal model, a llama2.c checkpoint such as stories15M.bin."""
    tokenizer: Path | None = None
    """Its tokenizer.bin, to read the samples as text; the one beside --truth if left out, and ids if there is none."""
    save: Path | None = None
    """Write the samples to this file, a JSON object a line, and the truth's own to NAME.truth.jsonl."""
    mauve: bool = False
    """MAUVE against the truth's own texts, by its hidden states at the last token and in the mean. Needs mauve-text, which is
    under the GPLv3: pip install 'prism-mdm[mauve]'."""

    def check(self) -> None:
        super().check()
        if self.model is None:
            raise ValueError("--model: name the model to evaluate.")
        if self.tokenizer is not None and not self.tokenizer.is_file():
            raise ValueError(f"--tokenizer {self.tokenizer}: no such file.")
        if self.mauve:
            require_mauve("leave --mauve out")
            if self.count() < 2:
                raise ValueError(
                    "--mauve true: MAUVE compares distributions and 1 sample shows none; take more --samples."
                )

    def run(self) -> dict[str, Any]:
        clock, together = Stopwatch(), Together()
        policy, draw, schedule = self.build_policy(), self.build_draw(), self.build_schedule()
        truth = load_llama2c(self.truth)
        vocabulary = truth.llama.config.vocab_size
        writing, loaded = writing_of(self.truth, self.tokenizer, vocabulary), self.loaded()
        require_head(loaded, self.method())
        if loaded.facts.mask_id != vocabulary:
            raise ValueError(
                f"The truth has {vocabulary} tokens, so the mask of a model of it is {vocabulary}; this one's is "
                f"{loaded.facts.mask_id}: it was trained on something else."
            )
        length = self._length(loaded, truth)
        self.check_length(length - 1)
        truth.llama.to(self.torch_device())
        steps, batch = self.steps if self.steps is not None else length - 1, min(self.batch_size(), self.count())
        about = {"truth": self.truth.name, "truth_weights": weights_digest(truth.llama), "length": length}
        about |= {"tokenizer": writing.fingerprint() if isinstance(writing, Llama2c) else None}  # None for ids
        sampling = {f.name: getattr(self, f.name) for f in fields(Sampling)} | {"steps": steps}
        settings = {"model": self.model, "weights": weights_digest(loaded), "dtype": self.dtype}
        file = None if self.save is None else SampleFile(self.save, about | settings | sampling)
        beside = None if self.save is None else SampleFile(_beside(self.save), about | {"seed": self.seed + 1})
        if beside is not None and together.is_main:
            with beside.alone():
                beside.begin()  # lest it be refused when the samples are there
        model = for_sampling(loaded, self.torch_dtype())
        prepared = Prepared(model, policy, steps=steps, draw=draw, schedule=schedule, block=self.block)
        make = weighed(prepared, truth, writing.text, length=length, seed=self.seed)
        with progress(self.policy, self.count(), shown=together.is_main) as done:
            rows = make_all(make, samples=self.count(), batch=batch, file=file, together=together, done=done)
        make = own_texts(truth, writing.text, length=length, seed=self.seed + 1, batch=batch)
        with progress("the truth's own", self.count(), shown=together.is_main) as done:
            theirs = make_all(make, samples=self.count(), batch=batch, file=beside, together=together, done=done)
        run, own = run_of(rows), run_of(theirs)
        summary = {
            **run.summary(),
            **figure("truth_entropy", own.likelihood),
            **figure("excess", difference(run.nll, own.nll)),
            **(_mauve_of(truth, own.tokens, run.tokens, batch, together) if self.mauve else {}),
            "truth": _honest(own.summary()),
        }
        summary = _honest(summary)
        title = f"{self.count()} samples of {length} tokens, {self.policy}, against {self.truth.name}"
        record = clock.record("evaluate known-truth", self, seed=self.seed, model=model, name=self.model)
        if together.is_main:
            _show(title, summary, summary["truth"])
            show_record(record)
        return {**summary, "policy": plain(policy), "record": plain(record)}

    def _length(self, model: Any, truth: Causal) -> int:
        length, own, context = self.full_length(model), own_length(model), truth.llama.config.length
        if length < 2:
            raise ValueError(f"--length {length}: the first token is given; take at least 2.")
        if own is not None and length > own:
            raise ValueError(f"--length {length}: the model was trained on {own} tokens; take at most {own}.")
        if length > context:
            raise ValueError(f"--length {length}: the truth knows texts of {context} tokens; take at most {context}.")
        return length


def _beside(samples: Path) -> Path:
    """Where the truth's own texts go."""
    return samples.with_name(f"{samples.stem}.truth{samples.suffix}")


def _mauve_of(truth: Causal, own: np.ndarray, written: np.ndarray, batch: int, together: Together) -> dict[str, Any]:
    """By both features of the truth, each clustered by one process."""

    def pairs(rows: Sequence[Any]) -> list[Any]:
        return list(zip(*features(truth, np.stack(rows), batch=batch), strict=True))

    sides = [
        [np.stack(kind) for kind in zip(*_each(what, list(rows), batch, pairs, together), strict=True)]
        for what, rows in (("reading the truth's own", own), ("reading samples", written))
    ]

    def compare(kinds: Sequence[int]) -> list[Any]:
        return [mauve(sides[0][kind], sides[1][kind]).score for kind in kinds]

    last, mean = _each("clustering", range(2), 1, compare, together)
    return {**figure("mauve", last), **figure("mauve_of_means", mean)}


def _honest(summary: dict[str, Any]) -> dict[str, Any]:
    """One sample tells nothing of how others would differ: its figures have no intervals."""
    if summary["samples"] > 1:
        return summary
    return {name: None if name.endswith("_interval") else value for name, value in summary.items()}


def _each(
    what: str, items: Sequence[Any], batch: int, work: Callable[[Sequence[Any]], list[Any]], together: Together
) -> list[Any]:
    """What `work` makes of all items, a batch at a time, each process its share of them, with a bar."""
    with progress(what, len(items), shown=together.is_main) as done:

        def pieces(mine: Sequence[Any]) -> list[Any]:
            found: list[Any] = []
            for first in range(0, len(mine), batch):
                found += work(mine[first : first + batch])
                done(len(found) * together.size)
            return found

        return together.each(items, pieces)


def _marked(text: str, own: str | None, mark: str | None) -> str:
    """With `mark` for the `own` mark of the text."""
    return text if own is None or mark is None else text.replace(own, mark)


def _show(title: str, summary: dict[str, Any], beside: dict[str, Any] | None = None) -> None:
    """Every figure that has an interval, and in a second column the same of what it is held against."""
    table = Table(title=title)
    for heading in ("", "found", "95 % interval", *([] if beside is None else ["the truth's own"])):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in (name for name in summary if f"{name}_interval" in summary):
        bounds = summary[f"{name}_interval"]
        interval = "one sample has none" if bounds is None else f"{bounds[0]:.4g} – {bounds[1]:.4g}"
        cells = [name.replace("_", " "), f"{summary[name]:.4g}", interval]
        table.add_row(*cells, *([] if beside is None else [f"{beside[name]:.4g}" if name in beside else ""]))
    console.print(table)
