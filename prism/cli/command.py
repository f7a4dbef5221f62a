"""What every command has: an output for people, a result for `--json`, and a record of the run."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from prism.data.text import fingerprint, load_tokenizer
from prism.data.writing import Text, Writing, has_tokenizer, writing_for
from prism.evaluation.record import Record
from prism.models.backbone import Backbone
from prism.models.folding import for_sampling
from prism.models.hub import folders, load_model
from prism.models.judge import Judged
from prism.recipes.sampling import Sampling
from prism.sampling.policies import Method

console = Console(
    highlight=False, quiet=os.environ.get("RANK", "0") != "0"
)  # of several processes the first one speaks
ASSETS = Path(__file__).resolve().parent.parent / "assets"
SUDOKU, STORIES = ASSETS / "sudoku", ASSETS / "stories"
"""The embedded models."""


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    smaller: ClassVar[str] = "take a smaller --batch, --count, --length or model"
    """What to do where memory is not enough."""

    json: Path | None = None
    """Write the result and its run record to this file."""

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Do it, and say what came of it."""

    def check(self) -> None:
        """What can be known to fail before any work is done."""
        if self.json is not None:
            check_file("--json", self.json)


def check_file(flag: str, path: Path) -> None:
    """Whether a file can be written there."""
    if path.is_dir():
        raise ValueError(f"{flag} {path}: that is a folder; name a file.")
    parent = path.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(f"{flag} {path}: cannot write into {parent}; make the folder or choose another.")


def check_folder(flag: str, path: Path) -> None:
    """Whether the path may be, or become, a folder."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{flag} {path}: that is a file; name a folder.")


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Where the model runs."""

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, mps."""
    dtype: str = "float32"
    """float32 or bfloat16."""

    def torch_device(self) -> torch.device:
        if self.device == "auto":
            # By number: of several processes each has a GPU of its own, and not every library knows which "cuda" is.
            return (
                torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
            )
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA says so with an assertion
            raise ValueError(f"--device {self.device}: this machine has no such device; use auto or cpu.") from error
        return torch.device(self.device)

    def torch_dtype(self) -> torch.dtype:
        return dtype_of("--dtype", self.dtype)


def dtype_of(flag: str, name: str) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in dtypes:
        raise ValueError(f"{flag} {name}: choose from {', '.join(dtypes)}.")
    return dtypes[name]


@dataclass(frozen=True, kw_only=True)
class WithModel(OnDevice):
    model: str | None = None
    """A folder or hub name: a model made by `prism finetune`, `prism pretrain` or `prism adapt`, LLaDA, Dream, MDLM, or a
    masked language model of transformers. Default: an embedded one, for Sudoku or, where text can be given, stories."""
    backbone: str | None = None
    """Folder or hub name of the backbone --model was trained on, if it is no longer where it was then."""
    mask_id: int | None = None
    """The mask token, for models whose config does not name it."""

    def load(self) -> Any:
        """The model, ready to predict."""
        return for_sampling(self.loaded(), self.torch_dtype())

    def loaded(self) -> Any:
        """The model as it was saved."""
        dtype, device = self.torch_dtype(), str(self.torch_device())
        found = load_model(self.source(), dtype=dtype, device=device, mask_id=self.mask_id, backbone=self.backbone)
        return found.eval()

    def source(self) -> str:
        """The folder or hub name of the model."""
        if self.model is None and not self.embedded().exists():
            raise ValueError("This installation has no embedded model; name one with --model.")
        if self.model == "":
            raise ValueError("--model is empty; name a folder or a hub repository.")
        return str(self.embedded()) if self.model is None else self.model

    def embedded(self) -> Path:
        """The model to take where none is named."""
        return SUDOKU

    def writing(self, model: Any) -> Writing:
        """The tokenizer beside the model or its backbone, wherever they came from; boards or ids without one."""
        beside = next(filter(has_tokenizer, folders(self.source(), self.backbone)), None)
        return writing_for(beside, model.facts.vocab_size, own_length(model))

    def writing_of_text(self, model: Any) -> Text:
        """The same, of a model that must know text."""
        writing = self.writing(model)
        if not isinstance(writing, Text):
            raise ValueError(
                f"{self.source()} has no tokenizer, so it cannot read text; name a model of text, with its tokenizer's files "
                "beside its weights."
            )
        return writing


def embedded_for(text: str) -> Path:
    """The embedded model to read it: Sudoku's if it is written as boards are, be it a cell too short, else the stories'."""
    return SUDOKU if re.fullmatch(r"[0-9._,\s]+", text) else STORIES


@dataclass(frozen=True, kw_only=True)
class WithCorrector(WithModel):
    corrector: str | None = None
    """A folder or hub name of a model tuned with PRISM that judges what --model writes, which then needs no head of its own.
    Both must have the same tokenizer. Every step takes two forward passes."""

    def load_for(self, *methods: Method) -> Any:
        """The model, judged by the corrector where there is one; refused where a method lacks a head or none asks for it."""
        if self.corrector is not None and not any(method.needs_head for method in methods):
            names = ", ".join(method.name for method in methods)
            raise ValueError(
                f"--corrector: the policy {names} asks for no quality; leave it out, or take --policy prism."
            )
        model = self.load()
        if self.corrector is not None:
            model = self._judged(model, self.corrector)
        for method in methods:
            require_head(model, method)
        return model

    def _judged(self, writer: Any, corrector: str) -> Judged:
        if not corrector:
            raise ValueError("--corrector is empty; name a folder or a hub repository.")
        judge = WithModel(model=corrector, mask_id=self.mask_id, device=self.device, dtype=self.dtype).load()
        try:
            both = Judged(writer, judge)
        except ValueError as error:
            raise ValueError(f"--corrector {corrector}: {error}") from error
        ours, theirs = _tokenizer_of(self.source(), self.backbone), _tokenizer_of(corrector)
        if ours is not None and theirs is not None and ours != theirs:
            raise ValueError(
                f"--corrector {corrector}: its tokenizer is not that of {self.source()}, so the same ids are other words to "
                "it; take a corrector for this tokenizer."
            )
        return both


def _tokenizer_of(model: str, backbone: str | None = None) -> str | None:
    """What tells the model's tokenizer from others; None where none lies beside it."""
    folder = next(filter(has_tokenizer, folders(model, backbone)), None)
    return None if folder is None else fingerprint(load_tokenizer(folder))


def own_length(model: Any) -> int | None:
    """The length of the sequences the model was trained for, where it says so."""
    writer = model.writer if isinstance(model, Judged) else model
    backbone = writer if isinstance(writer, Backbone) else writer.backbone
    return getattr(getattr(backbone, "config", None), "length", None)


def warn_of_length(model: Any, tokens: int) -> None:
    """Say so if sequences of so many tokens are longer than any the model was trained on."""
    known = own_length(model)
    if known is not None and tokens > known:
        console.print(
            f"{tokens} tokens are more than the {known} the model was trained for; expect little of the rest.",
            soft_wrap=True,
        )


def warn_of_idleness(sampling: Sampling, free: int) -> None:
    """Say so if a method that takes tokens back has no room to, the number being nobody's choice."""
    if (why := sampling.idle(free)) is not None:
        console.print(f"[yellow]{why}[/yellow]", soft_wrap=True)


def require_head(model: Any, method: Method) -> None:
    if method.needs_head and getattr(model, "quality_head", None) is None:
        raise ValueError(
            f"The policy {method.name!r} needs a quality head and this model has none; attach one with prism finetune, name a "
            "--corrector where the command has one, or pick a training-free policy such as --policy vanilla."
        )


@contextmanager
def progress(what: str, total: int, *, shown: bool = True) -> Iterator[Any]:
    """A bar on the terminal; call what it yields with the number done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def show_record(record: Record, before: str = "") -> None:
    """One line under a result: enough to say what it came from."""
    commit, dtype = record.commit or "none", "" if record.dtype is None else f"{record.dtype} · "
    console.print(
        f"[dim]{before}{record.command} · seed {record.seed} · {record.device} · {dtype}"
        f"commit {commit[:12]}{'+' * commit.endswith('+')} · {record.wall_seconds:.1f} s[/dim]",
        soft_wrap=True,
    )


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
