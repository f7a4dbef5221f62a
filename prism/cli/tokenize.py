"""prism tokenize."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from prism.cli.command import Command, check_folder, console, show_record
from prism.data.text import Dataset, Files, Source, load_tokenizer
from prism.data.tokenizing import tokenize
from prism.evaluation.record import Stopwatch, plain


@dataclass(frozen=True, kw_only=True)
class Tokenize(Command):
    """Turn any text into a folder of tokens to train on: prism pretrain --data FOLDER.

    Duplicates are dropped; case and white space do not count. Interrupted or killed, the same command goes on, and the files
    come out the same.
    """

    input: tuple[Path, ...] = ()
    """Files: JSON lines (.jsonl, .ndjson, .json) with a document a line, or plain text; .gz, .bz2, .xz or .zst if you like."""
    dataset: str | None = None
    """Instead of files, a dataset of the Hugging Face hub, or a folder in one of its layouts (needs the extra `text`)."""
    dataset_config: str | None = None
    """Its configuration, where it has several."""
    dataset_split: str = "train"
    """Which of its splits to read; our own validation documents are chosen among these."""
    tokenizer: str
    """Folder or hub name of a tokenizer, or a folder that has GPT-2's *vocab.json and *merges.txt."""
    output: Path
    """Folder for the tokens."""
    field: str = "text"
    """Where a JSON line, or a row of the dataset, keeps its text."""
    separator: str | None = None
    """In plain text files, a line that stands between documents, such as <|endoftext|>, or "" for blank lines; a whole file is
    one document if left out."""
    validation: float = 0.01
    """Share of the documents held out. A hash of the text decides, so the same text, case and white space aside, is never on
    both sides."""
    shard_tokens: int = 1 << 26
    """Tokens in a file."""
    workers: int = os.cpu_count() or 1
    """Processes that make ids; the files do not depend on it."""

    def check(self) -> None:
        super().check()
        check_folder("--output", self.output)

    def run(self) -> dict[str, Any]:
        clock, source = Stopwatch(), self._source()
        tokenizer = load_tokenizer(self.tokenizer)
        with _bar() as bar:
            task = bar.add_task("", total=None, documents=0)
            corpus = tokenize(
                source,
                tokenizer,
                self.output,
                validation=self.validation,
                shard_tokens=self.shard_tokens,
                workers=self.workers,
                report=lambda writer: bar.update(task, completed=writer.tokens, documents=writer.taken),
            )
        counts = {name: {"documents": split.documents, "tokens": split.tokens} for name, split in corpus.splits.items()}
        for name, count in counts.items():
            console.print(f"{name}: {count['documents']:,} documents, {count['tokens']:,} tokens")
        console.print(f"saved to {self.output}; next: prism pretrain --data {self.output} --output …")
        record = clock.record("tokenize", self, seed=0)
        show_record(record)
        return {**counts, "record": plain(record)}

    def _source(self) -> Source:
        if bool(self.input) == (self.dataset is not None):
            raise ValueError("Give what to tokenize with --input or with --dataset, one of them.")
        if self.dataset is not None:
            return Dataset(self.dataset, self.dataset_config, self.dataset_split, self.field)
        return Files(self.input, self.field, self.separator)


class _Pace(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f} tokens/s")


def _bar() -> Progress:
    counts = TextColumn("{task.fields[documents]:,} documents, {task.completed:,} tokens")
    columns = (SpinnerColumn(), counts, _Pace(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
