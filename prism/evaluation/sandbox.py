"""Run Python programs nobody has read, against tests they cannot see, and say what became of them.

Each program gets an interpreter of its own, started with an empty environment and no inherited files, that shuts itself in
before it reads a line of the program; `prism.evaluation.jail` is what runs there and says what it holds out.

What this does not give: a program may read Python's and the system's own libraries, and time spent by the host's other work
counts against its clock. It answers one call after another in one process, so it may remember earlier calls. A hole in the
kernel is a hole in the sandbox.
"""

from __future__ import annotations

import marshal
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType

JAIL = Path(__file__).with_name("jail.py")
START = "import marshal, os; exec(marshal.loads(os.read(0, int.from_bytes(os.read(0, 8), 'little'))))"
GRACE = 60.0  # seconds for the tests' own work; after that and the program's all is killed from outside


class Outcome(Enum):
    PASSED = "passed every test"
    FAILED = "raised an exception or gave a wrong answer"
    EXITED = "ended the process before its tests had run"
    TIMED_OUT = "ran out of time"
    OUT_OF_MEMORY = "ran out of memory"
    TOO_MUCH_OUTPUT = "printed too much"
    KILLED = "was killed by a signal"


class Isolation(Enum):
    """How programs are kept from harm, strongest first."""

    NAMESPACES = "namespaces of their own and a filter on system calls"
    LANDLOCK = "Landlock and a filter on system calls"
    NONE = "limits on time and memory only"


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    seconds: float = 10.0
    """Of the program's own, on the clock and of the processor; its tests' work does not count."""
    memory: int = 1 << 30
    """Bytes of address space."""
    output: int = 1 << 16
    """Bytes printed, stdout and stderr together."""
    disk: int = 16 << 20
    """Bytes in its private folder /tmp, which is in memory. Under Landlock there is none, and nothing can be written."""


@dataclass(frozen=True)
class Program:
    source: str
    tests: str = ""
    """Python that raises where the program is wrong. Names it does not define are looked up in the program."""
    entry_point: str = ""
    """The function under test; it alone may hide a builtin (an MBPP task asks for a function called `sum`)."""


@dataclass(frozen=True)
class Report:
    outcome: Outcome
    detail: str
    """The last line of an exception, a signal, a limit; empty where there is no more to say."""
    wall_seconds: float
    """From the program's first line to the verdict, its tests included."""
    cpu_seconds: float | None
    """Of the program alone; None where the sandbox had to be killed from outside."""
    overhead_seconds: float | None
    """From the start of the jail, when Python itself has started, to the program's first line."""
    output: str

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED


NO_ISOLATION = (
    "This machine can isolate programs neither by namespaces nor by Landlock (Linux 5.13 or later on x86_64 or aarch64)"
)


@cache
def available() -> tuple[Isolation, ...]:
    """What works on this machine, found by trying it, strongest first."""
    return tuple(kind for kind in (Isolation.NAMESPACES, Isolation.LANDLOCK) if _works(kind))


def strongest(unsafe: bool = False) -> Isolation:
    """The best isolation to be had; without any, refuses unless told that it need not be safe."""
    if available():
        return available()[0]
    if unsafe:
        return Isolation.NONE
    raise OSError(f"{NO_ISOLATION}; run on one that can, or pass unsafe=True to run them with your own rights.")


def run(program: Program, limits: Limits | None = None, isolation: Isolation | None = None) -> Report:
    """One program, to its end or to its limits. Nothing of it is left running."""
    limits = limits or Limits()
    isolation = isolation or strongest()
    paths = sysconfig.get_paths()
    packages = list(dict.fromkeys((paths["purelib"], paths["platlib"])))
    settings = {
        "isolation": isolation.name,
        "readable": [os.path.realpath(sys.base_prefix), sys.base_prefix, *packages],
        "packages": packages,
        "seconds": float(limits.seconds),
        "memory": limits.memory,
        "output": limits.output,
        "disk": limits.disk,
    }
    with tempfile.TemporaryFile() as job:  # no pipe to fill, no name to find
        for message in (_jail(), settings, (program.source, program.tests, program.entry_point)):
            content = marshal.dumps(message)
            job.write(len(content).to_bytes(8, "little") + content)
        job.seek(0)
        start = time.monotonic()
        # -P -s with an empty environment is -I, and leaves us the hash seed: sets come in the same order every time.
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", START],
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            cwd="/",
            start_new_session=True,
        )
        try:
            verdict, complaint = process.communicate(timeout=limits.seconds + GRACE)
        except BaseException as error:  # the clock, or the user
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
            process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Report(Outcome.TIMED_OUT, "its tests did not end", time.monotonic() - start, None, None, "")
    if not verdict:
        raise OSError(f"The sandbox ({isolation.value}) did not work: {_last_line(complaint)}")
    try:
        name, detail, wall, cpu, overhead, output = marshal.loads(verdict.removeprefix(b"ready"))
        return Report(Outcome[name], detail, wall, cpu, overhead, output.decode("utf-8", "replace"))
    except (EOFError, ValueError, TypeError, LookupError, AttributeError):
        # a program that manages to bring down its judge must not bring down the evaluation
        return Report(Outcome.KILLED, "its judge too", time.monotonic() - start, None, None, "")


def run_all(
    programs: Sequence[Program],
    limits: Sequence[Limits],
    isolation: Isolation | None = None,
    *,
    workers: int | None = None,
    done: Callable[[int], object] | None = None,
) -> list[Report]:
    """All programs, each within its limits, as many at once as there are cores unless told otherwise.

    `done` hears how many are finished.
    """
    isolation = isolation or strongest()
    with ThreadPoolExecutor(workers or cores()) as pool:
        running = [pool.submit(run, *job, isolation) for job in zip(programs, limits, strict=True)]
        try:
            for count, future in enumerate(as_completed(running), start=1):
                future.result()
                if done is not None:
                    done(count)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in running]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _jail() -> CodeType:
    return compile(JAIL.read_text(encoding="utf-8"), str(JAIL), "exec", dont_inherit=True)  # once, not for each program


def _works(isolation: Isolation) -> bool:
    try:
        return run(Program("pass"), Limits(seconds=20.0), isolation).passed
    except OSError:
        return False


def _last_line(complaint: bytes) -> str:
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a word"
