"""Work recorded once as a CUDA graph and replayed: small models spend most of their time launching kernels one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP = 3  # rounds in which kernels are compiled and chosen, before the recording


def record(work: Callable[[], None]) -> Callable[[], None]:
    """`work` as one launch. It must always read and write the very same tensors and never ask the device for a number.

    Recording runs it a few times.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
