"""prism functions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.cli.command import Command, check_folder, console, progress, show_record
from prism.data.function_corpus import FunctionCorpus, FunctionRecipe, make_functions
from prism.data.function_rows import write_rows
from prism.data.functions import Selection, published_solutions
from prism.data.packages import find_packages
from prism.data.text import check_vocabulary, load_tokenizer, train_tokenizer
from prism.evaluation.record import Stopwatch, plain


@dataclass(frozen=True, kw_only=True)
class Functions(Command):
    """Make a corpus of documented Python functions from packages: installed ones, wheels, source archives.

    Packages whose metadata names no permissive licence are left out, copies are dropped, and a package's functions are all for
    training, all for validation or all for testing. Interrupted or killed, the same command goes on.
    """

    packages: tuple[Path, ...] = ()
    """Wheels (.whl), sources (.tar.gz), folders of them, or site-packages folders. pip download --no-deps fetches them."""
    output: Path
    """Folder for the corpus. With --tokenizer or --vocabulary alone, one that holds it already."""
    published: tuple[Path, ...] = ()
    """Files of programming tasks (HumanEval.jsonl.gz, mbpp.jsonl, …): functions like their solutions are left out."""
    longest: int = 60
    """Lines a body may have."""
    undocumented: bool = False
    """Keep functions without a docstring, too, in a file of their own."""
    held_out: float = 0.04
    """Share of the packages that are for testing, and share that is for validation."""
    similarity: float = 0.8
    """From this share of equal runs of five words on, two functions are copies."""
    seed: int = 0
    """Of the choice of packages that are held out."""
    tokenizer: str | None = None
    """Folder or hub name of a tokenizer: write the functions as tokens, too, into OUTPUT/tokens."""
    vocabulary: int | None = None
    """Instead of --tokenizer: make one of so many tokens from the functions for training."""
    workers: int = os.cpu_count() or 1
    """Processes that read packages; the corpus does not depend on it."""

    def check(self) -> None:
        super().check()
        check_folder("--output", self.output)
        if self.longest < 1 or self.workers < 1:
            raise ValueError(f"--longest {self.longest} and --workers {self.workers} must both be at least 1.")
        if self.tokenizer is not None and self.vocabulary is not None:
            raise ValueError("--tokenizer names one that is there and --vocabulary makes one; give either, not both.")
        if self.vocabulary is not None:
            check_vocabulary(self.vocabulary)
        if not self.packages and self.tokenizer is None and self.vocabulary is None:
            raise ValueError("--packages: name wheels, source archives, or folders of them.")

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        corpus = self._corpus()
        splits = corpus.manifest["splits"]
        for name, split in splits.items():
            console.print(f"{name}: {split['functions']:,} functions, {split['characters']:,} characters")
        dropped = ", ".join(f"{count:,} {why}" for why, count in corpus.manifest["dropped"].items())
        console.print(
            f"from {len(corpus.manifest['packages']):,} packages; {len(corpus.manifest['left_out']):,} left out for their "
            f"licence; of {corpus.manifest['found']:,} functions dropped: {dropped}"
        )
        tokens = {}
        if (tokenizer := self._tokenizer(corpus)) is not None:
            tokens = write_rows(corpus, tokenizer, self.output / "tokens")
            for name, count in tokens.items():
                console.print(f"{name}: {count['tokens']:,} tokens")
        record = clock.record("functions", self, seed=self.seed)
        show_record(record)
        return {"splits": splits, "dropped": corpus.manifest["dropped"], "tokens": tokens, "record": plain(record)}

    def _tokenizer(self, corpus: FunctionCorpus) -> Any:
        """The one that is named, made, or none."""
        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        if self.vocabulary is not None:
            return train_tokenizer((function.text for function in corpus.functions("train")), self.vocabulary)
        return None

    def _corpus(self) -> FunctionCorpus:
        if not self.packages:
            return FunctionCorpus.load(self.output)
        packages = find_packages(self.packages)
        recipe = FunctionRecipe(Selection(self.longest, self.undocumented), self.held_out, self.similarity, self.seed)
        published = {path.name: published_solutions(path) for path in self.published}
        with progress("packages", sum(package.licence.permissive for package in packages)) as done:
            return make_functions(packages, self.output, recipe, published=published, workers=self.workers, report=done)
