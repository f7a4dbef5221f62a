"""Samples made by one process or by many, kept in a file as they are made.

The file is JSON lines in the order of the samples' numbers, and beside it stand the settings they were made with. A sample
depends on its number and on nothing else: more processes make the same file, and an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from prism.evaluation.record import Stopwatch
from prism.models.folder import alone, write_whole
from prism.noise import Noise
from prism.sampling.prepared import Prepared
from prism.state import State

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Written:
    """One sample, as a line of the file holds it."""

    row: int
    text: str
    tokens: list[int]
    forwards: int
    remasks: int
    flipflops: int
    seconds: float
    """Its share of the time its batch took."""
    nll: float | None = None
    """-log p per token under the truth, in nats, where that is known."""


Make = Callable[[int, int], list[Written]]
"""The samples from one number to another, the last not among them."""


class Together:
    """The processes of one `accelerate launch`; a process alone is the same with nobody to share with."""

    def __init__(self) -> None:
        from accelerate import PartialState

        state = PartialState(cpu=not torch.accelerator.is_available())
        self.rank, self.size = state.process_index, state.num_processes

    @property
    def is_main(self) -> bool:
        """Whether this process is the one to write and print."""
        return self.rank == 0

    def gathered(self, mine: list[Made]) -> list[Made]:
        """What all have, in the order of the processes; all must ask."""
        from accelerate.utils import gather_object

        return list(gather_object(mine))

    def each(self, items: Sequence[Item], work: Callable[[Sequence[Item]], list[Made]]) -> list[Made]:
        """What `work` makes of the items, one thing of each; every process does its share of them and gets all."""
        first, last = (len(items) * part // self.size for part in (self.rank, self.rank + 1))
        return self.gathered(work(items[first:last]))


def begun(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether there is something in the file. What it is made with, all that decides what it holds, stands in a file beside it
    and is written there if there is nothing yet; a file of other settings, or of none, is refused."""
    beside, settings = path.with_name(f"{path.name}.settings.json"), json.loads(json.dumps(settings))
    if not path.exists() or path.stat().st_size == 0:
        write_whole(beside, json.dumps(settings, indent=2) + "\n")
        return False
    if not beside.exists():
        raise ValueError(f"{path} exists and {beside.name} does not: it is another file; choose another name.")
    before = json.loads(beside.read_text(encoding="utf-8"))
    for name in sorted(before.keys() | settings.keys()):
        if before.get(name) != settings.get(name):
            raise ValueError(
                f"{path} was begun with {name}={before.get(name)}, not {settings.get(name)}; "
                "go on with the settings it has, or choose another file."
            )
    return True


class SampleFile:
    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """`settings`, values JSON can hold, are all that decides what the samples are."""
        self.path, self.settings = path, settings

    def alone(self) -> AbstractContextManager[None]:
        """For as long as it is written: two processes that append to it would both ruin it."""
        return alone(self.path, "choose another file")

    def begin(self) -> list[Written]:
        """What there is already. A file from other settings is refused, half a line of a killed process is cut off."""
        if not begun(self.path, self.settings):
            self.path.touch()
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        return [self._read(number, line) for number, line in enumerate(whole.splitlines())]

    def append(self, rows: Iterable[Written]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(_line(row), ensure_ascii=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, number: int, line: bytes) -> Written:
        try:
            row = Written(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.path}, line {number + 1} is no sample; restore the file or remove it.") from error
        if row.row != number:
            raise ValueError(f"{self.path}, line {number + 1} is sample {row.row}; restore the file or remove it.")
        return row


def _line(row: Written) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if value is not None}


def write_samples(
    prepared: Prepared,
    blank: Callable[[int], State],
    text: Callable[[list[int]], str],
    *,
    samples: int,
    seed: int,
    batch: int,
    file: SampleFile | None = None,
    together: Together | None = None,
    done: Callable[[int], object] | None = None,
) -> list[Written]:
    """All samples, on every process. `blank(count)` is what so many of them start from, `text` reads the tokens of one; `batch`
    are made at once by each process, and the last time what is left."""
    make = partial(sampled, prepared, blank, text, seed)
    return make_all(make, samples=samples, batch=batch, file=file, together=together, done=done)


def make_all(
    make: Make,
    *,
    samples: int,
    batch: int,
    file: SampleFile | None = None,
    together: Together | None = None,
    done: Callable[[int], object] | None = None,
) -> list[Written]:
    """All that `make` is asked for, on every process: what the file lacks, `batch` at once by each process."""
    together = together or Together()
    writes = file if together.is_main else None
    with nullcontext() if writes is None else writes.alone():
        rows = together.gathered([] if writes is None else writes.begin())
        while len(rows) < samples:
            first = min(len(rows) + together.rank * batch, samples)
            last = min(first + batch, samples)
            made = together.gathered(make(first, last) if first < last else [])
            if writes is not None:
                writes.append(made)
            rows += made
            if done is not None:
                done(len(rows))
    return rows[:samples]


def sampled(
    prepared: Prepared,
    blank: Callable[[int], State],
    text: Callable[[list[int]], str],
    seed: int,
    first: int,
    last: int,
) -> list[Written]:
    """The samples from `first` to `last`, the latter not among them."""
    clock, state = Stopwatch(), blank(last - first)
    noise = Noise.rows(seed, last - first, first=first, device=state.tokens.device)
    with torch.no_grad():
        found = prepared(state, noise)
    tokens = found.tokens.tolist()
    counts = zip(found.forwards.tolist(), found.remasks.tolist(), found.flipflops.tolist(), strict=True)
    share = clock.seconds / (last - first)
    return [
        Written(first + place, text(row), row, *count, share)
        for place, (row, count) in enumerate(zip(tokens, counts, strict=True))
    ]


def costs(rows: Sequence[Written]) -> dict[str, Any]:
    """What the samples took to make, on average but for the seconds."""
    remasks = sum(row.remasks for row in rows)
    return {
        "nfe": sum(row.forwards for row in rows) / len(rows),
        "remasks": remasks / len(rows),
        "flipflop_rate": sum(row.flipflops for row in rows) / remasks if remasks else 0.0,
        "seconds": sum(row.seconds for row in rows),
    }


def weights_digest(model: nn.Module) -> str:
    """A sha256 of a thousand numbers of every weight: tells a model from itself after more training, at no cost."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        some = weight.detach().flatten()[:: max(1, weight.numel() // 1000)]
        digest.update(f"{name} {tuple(weight.shape)}".encode() + some.double().cpu().numpy().tobytes())
    return digest.hexdigest()
