"""A corpus as examples for training: windows of its tokens, read ahead while the device works, or all of them at once."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from prism.data.shards import Stream
from prism.losses.masking import Batch
from prism.state import Tokens
from prism.training.examples import Examples, shuffled


class TextWindows(Examples):
    """The stream cut into sequences of `length` tokens, each once an epoch, in a fresh order every epoch.

    Documents run on from one window into the next; what is left over at the end of the stream is never seen. With `end`, an
    id, every sequence begins and ends with it, wherever its document does: so MDLM's checkpoints learned OpenWebText.
    """

    def __init__(self, stream: Stream, length: int, seed: int = 0, *, end: int | None = None) -> None:
        self.stream, self.length, self.seed, self.end = stream, length, seed, end
        self._inside = length if end is None else length - 2
        if self._inside < 1:
            raise ValueError(f"length={length} leaves no room between two ends; take at least 3.")
        self.count = len(stream) // self._inside
        if self.count == 0:
            raise ValueError(
                f"length={length} is more than the {len(stream):,} tokens there are; take shorter sequences."
            )
        self._last: range | None = None
        self._ahead: tuple[range, Future[Tokens]] | None = None

    def batch(self, rows: range, device: torch.device) -> Batch:
        pinned = device.type == "cuda"
        expected, reading = self._ahead or (None, None)
        tokens = reading.result() if reading is not None and expected == rows else self.read(rows, pinned=pinned)
        stride = rows.start - self._last.start if self._last is not None else len(rows)
        self._last, following = rows, range(rows.start + stride, rows.stop + stride)
        pool = ThreadPoolExecutor(1)
        self._ahead = following, pool.submit(self.read, following, pinned=pinned)
        pool.shutdown(wait=False)  # the thread ends with this one task, so there is nothing to close
        return Batch(tokens.to(device, non_blocking=True))

    def read(self, rows: range, *, pinned: bool = False) -> Tokens:
        """The rows, in memory a GPU can fetch them from by itself if `pinned`."""
        tokens = torch.empty(len(rows), self.length, dtype=torch.long, pin_memory=pinned)
        windows = shuffled(rows, self.count, self.seed, torch.device("cpu")).tolist()
        if self.end is not None:
            tokens[:, [0, -1]] = self.end
        inside = tokens if self.end is None else tokens[:, 1:-1]
        for window, row in zip(windows, inside.numpy(), strict=True):
            self.stream.read(window * self._inside, row)
        return tokens


def document_windows(stream: Stream, length: int, end: int) -> Int32[Tensor, "n l"]:
    """A sequence for every document: it, and of those behind it as much as has room. A model that learns them begins where
    documents begin. In memory, so for a corpus that has room there."""
    tokens = torch.from_numpy(np.concatenate([np.zeros(0, "<u2"), *stream.files]).astype(np.int32))
    begins = torch.cat([torch.zeros(1, dtype=torch.long), 1 + (tokens == end).nonzero()[:, 0]])
    begins = begins[begins + length <= len(tokens)]
    if len(begins) == 0:
        raise ValueError(f"length={length} is more than the {len(tokens):,} tokens there are; take shorter sequences.")
    return tokens.unfold(0, length, 1)[begins]
