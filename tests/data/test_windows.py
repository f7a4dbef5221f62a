"""Windows of text as examples: each once an epoch, the same for every batch size, and no thread left behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.data.shards import Stream
from prism.data.windows import TextWindows, document_windows
from prism.training.examples import Examples

CPU = torch.device("cpu")


def windows(tokens: int = 50, length: int = 4, seed: int = 0, end: int | None = None) -> TextWindows:
    numbers = np.arange(tokens, dtype="<u2")
    parts = tuple(numbers[start : start + 7] for start in range(0, tokens, 7))
    return TextWindows(Stream(parts), length, seed, end=end)


def test_every_window_once_an_epoch_in_a_fresh_order() -> None:
    examples = windows()
    assert isinstance(examples, Examples)
    assert examples.count == 12
    epochs = [examples.batch(range(12 * epoch, 12 * epoch + 12), CPU).tokens for epoch in range(3)]
    for tokens in epochs:
        assert torch.equal(tokens.sort(0).values, torch.arange(48).view(12, 4))
        assert tokens.dtype == torch.long
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    assert not torch.equal(windows(seed=1).batch(range(12), CPU).tokens, epochs[0])
    assert torch.equal(windows().batch(range(12), CPU).tokens, epochs[0])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_row_is_the_same_whenever_and_with_whomever_it_is_asked_for(asked: list[tuple[int, int]]) -> None:
    examples, whole = windows(), windows().read(range(90))
    for start, size in asked:
        assert torch.equal(examples.batch(range(start, start + size), CPU).tokens, whole[start : start + size])


@pytest.mark.parametrize("stride", [5, 20], ids=["alone", "one of four processes"])
def test_the_next_batch_is_read_ahead(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, readers = windows(), {}
    plain = examples.read

    def read(rows: range, *, pinned: bool = False) -> torch.Tensor:
        readers.setdefault(rows.start, threading.current_thread())
        return plain(rows, pinned=pinned)

    monkeypatch.setattr(examples, "read", read)
    for step in range(6):
        examples.batch(range(step * stride, step * stride + 5), CPU)
    ahead = [start for start, thread in readers.items() if thread is not threading.main_thread()]
    assert set(ahead) >= {step * stride for step in range(3, 6)}


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    examples = windows()
    for step in range(20):
        examples.batch(range(step * 5, step * 5 + 5), CPU)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_an_error_while_reading_ahead_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = windows()
    plain = examples.read

    def read(rows: range, *, pinned: bool = False) -> torch.Tensor:
        if rows.start == 5:
            raise OSError("the disk is gone")
        return plain(rows, pinned=pinned)

    monkeypatch.setattr(examples, "read", read)
    examples.batch(range(5), CPU)
    with pytest.raises(OSError, match="the disk is gone"):
        examples.batch(range(5, 10), CPU)


def test_a_window_longer_than_the_text() -> None:
    with pytest.raises(ValueError, match="length=51 is more than the 50 tokens"):
        windows(length=51)


def test_windows_between_two_ends() -> None:
    """As MDLM's: no token is lost to the ends, they stand beside two fewer."""
    examples = windows(length=6, end=99)
    tokens = examples.read(range(examples.count))
    assert (tokens[:, [0, -1]] == 99).all()
    assert torch.equal(tokens[:, 1:-1].sort(0).values, torch.arange(48).view(12, 4))
    with pytest.raises(ValueError, match="length=2 leaves no room between two ends"):
        windows(length=2, end=99)


def test_a_window_begins_with_every_document() -> None:
    tokens = np.array([5, 6, 0, 7, 0, 8, 9, 0, 5, 0], dtype="<u2")
    found = document_windows(Stream((tokens[:7], tokens[7:])), length=4, end=0)
    assert found.tolist() == [[5, 6, 0, 7], [7, 0, 8, 9], [8, 9, 0, 5]]  # the last document has no four tokens
    with pytest.raises(ValueError, match="more than the 10 tokens"):
        document_windows(Stream((tokens,)), length=11, end=0)
