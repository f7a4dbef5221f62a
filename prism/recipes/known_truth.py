"""World A: a corpus written by a causal model, made where it is used and as large as one likes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from numpy.lib.format import write_array_header_1_0
from torch import Tensor

from prism.data.llama2c import Llama2c
from prism.data.writing import Numbers, Writing
from prism.evaluation.samples import begun
from prism.models.causal import Causal
from prism.models.folder import alone
from prism.noise import Noise
from prism.sampling.draw import Draw


def corpus(
    truth: Causal,
    sequences: int,
    length: int,
    *,
    seed: int,
    batch: int,
    draw: Draw | None = None,
    done: Callable[[int], object] | None = None,
) -> Integer[Tensor, "n l"]:
    """`sequences` samples of `length` tokens, the law's own (to 11 binary digits) unless `draw` says otherwise, on its
    device, in the smallest type that holds its vocabulary."""
    rows = torch.empty(sequences, length, dtype=_smallest(truth), device=truth.llama.device)
    for first, page in _pages(truth, range(sequences), length, seed, batch, draw or Draw()):
        rows[first : first + len(page)] = page
        if done is not None:
            done(first + len(page))
    return rows


def write_corpus(
    truth: Causal,
    path: Path,
    settings: Mapping[str, Any],
    sequences: int,
    length: int,
    *,
    seed: int,
    batch: int,
    done: Callable[[int], object] | None = None,
) -> None:
    """A corpus as a .npy file that grows as it is written; it goes on with what is there of the same `settings`, which are all
    that decides what it holds. Until it is whole, numpy does not read it."""
    dtype = np.dtype("<i2" if _smallest(truth) is torch.int16 else "<i4")
    header = BytesIO()
    write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": (sequences, length)})
    begins, row = header.tell(), length * dtype.itemsize
    with ExitStack() as during:
        during.enter_context(alone(path, "choose another file"))
        there = max(0, path.stat().st_size - begins) // row if begun(path, settings) else 0
        path.touch()
        file = during.enter_context(path.open("r+b"))
        file.write(header.getvalue())
        file.truncate(begins + there * row)  # half a batch of a killed process
        file.seek(0, os.SEEK_END)
        for first, page in _pages(truth, range(there, sequences), length, seed, batch, Draw()):
            file.write(page.cpu().numpy().astype(dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
            if done is not None:
                done(first + len(page))


def _pages(
    truth: Causal, numbers: range, length: int, seed: int, batch: int, draw: Draw
) -> Iterator[tuple[int, Integer[Tensor, "b l"]]]:
    """The sequences of these numbers, a batch at a time, each batch with its first number. A sequence depends on its own."""
    firsts = numbers[::batch]
    noises = (Noise.rows(seed, batch, first=first, device=truth.llama.device) for first in firsts)
    for first, (tokens, _) in zip(firsts, truth.writing(noises, length, draw, rough=True), strict=True):
        yield first, tokens[: numbers.stop - first].to(_smallest(truth))


def _smallest(truth: Causal) -> torch.dtype:
    """The type that holds its vocabulary."""
    return torch.int16 if truth.llama.config.vocab_size < 1 << 15 else torch.int32


@torch.no_grad()
def features(
    truth: Causal, tokens: Integer[np.ndarray, "n l"], *, batch: int
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]]:
    """For MAUVE, the truth's hidden states: at the last token, and their mean."""
    found = []
    for part in torch.from_numpy(tokens).split(batch):
        states = truth.llama(part.to(truth.llama.device)).float()
        found.append((states[:, -1].cpu().numpy(), states.mean(1).cpu().numpy()))
    last, mean = map(np.concatenate, zip(*found, strict=True))
    return last, mean


def writing_of(truth: Path, tokenizer: Path | None, vocabulary: int) -> Writing:
    """What reads the texts of a llama2.c checkpoint: the tokenizer that is given, or the one beside it, or ids if there is
    none."""
    beside = truth.with_name("tokenizer.bin")
    path = tokenizer or (beside if beside.is_file() else None)
    if path is None:
        return Numbers(vocabulary + 1)
    writing = Llama2c.load(path)
    if len(writing) != vocabulary:
        raise ValueError(f"{path} has {len(writing)} tokens and the truth {vocabulary}; name its own with --tokenizer.")
    return writing
