"""Several processes: launched as a user launches them, or as threads that share what processes would."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import prism
from prism.evaluation.samples import Together

ROOT = Path(__file__).resolve().parent.parent
ON_CPU = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
"""What no configuration tells."""


def configuration(way: str) -> tuple[str, str]:
    """One that comes with the package."""
    return "--config_file", str(Path(prism.__file__).parent / "recipes" / "accelerate" / f"{way}.yaml")


def in_two_processes(launch: Sequence[str], words: Sequence[str], folder: Path | None = None, **others: str) -> str:
    """What `accelerate launch` of the words says, with these options, in this folder and with other environment variables."""
    start = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--main_process_port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **others}
    command = [*start, *launch, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


class Share(Together):
    """One of several processes, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


class Threads:
    """Called as `Together` is, by each of several threads: they gather as processes do."""

    def __init__(self, size: int) -> None:
        self.size, self.own = size, threading.local()
        self.there: list[list[Any]] = [[] for _ in range(size)]
        self.barrier = threading.Barrier(size, timeout=60)

    def __call__(self) -> Together:
        return _Thread(self, self.own.rank)

    def run(self, work: Callable[[], Any]) -> list[Any]:
        """What each of them makes, all at once."""

        def ranked(rank: int) -> Any:
            self.own.rank = rank
            try:
                return work()
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(ranked, range(self.size)))


class _Thread(Share):
    def __init__(self, all_: Threads, rank: int) -> None:
        super().__init__(rank, all_.size)
        self.all = all_

    def gathered(self, mine: list[Any]) -> list[Any]:
        self.all.there[self.rank] = mine
        self.all.barrier.wait()
        found = [one for some in self.all.there for one in some]
        self.all.barrier.wait()  # nobody puts more there before all have read
        return found
