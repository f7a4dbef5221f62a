"""Processes that help with one's data: they leave Ctrl-C to the process that started them, and do not outlive it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def helpers(
    workers: int, module: str, begin: Callable[..., None] | None = None, given: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool whose processes have imported `module`, and called `begin`, if any, with what was `given`."""
    context = multiprocessing.get_context("forkserver")  # forking this process, which may have threads, could hang
    context.set_forkserver_preload([module])  # so that they do not import torch one by one
    return ProcessPoolExecutor(workers, context, _begin, (begin, given))


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    if begin is not None:
        begin(*given)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
