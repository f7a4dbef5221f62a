"""How long something takes and how much memory, on whatever device there is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32


def timed(work: Callable[[], object]) -> float:
    wait()
    began = perf_counter()
    work()
    wait()
    return perf_counter() - began


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def in_turns(contenders: dict[str, tuple[Callable[[], object], int]], turns: int) -> dict[str, float]:
    """Milliseconds a step, the contenders taking turns so that a slow minute hits all; each once beforehand to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, (work, steps) in contenders.items():
            spent = timed(work) / steps
            if turn:
                seconds[name].append(spent)
    return {name: 1000 * median(values) for name, values in seconds.items()}


def memory(work: Callable[[], object]) -> float | None:
    """Does the work. GiB at the most, beyond nothing: what a process of its own would need; None where there is no GPU."""
    gc.collect()
    if not ON_GPU:
        work()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated() / 2**30
