"""World A: a corpus written by a causal model, made where it is used and as large as one likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from prism.data.llama2c import Llama2c
from prism.data.writing import Numbers, Writing
from prism.models.causal import Causal
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
    device, vocabulary = truth.llama.device, truth.llama.config.vocab_size
    dtype = torch.int16 if vocabulary < 1 << 15 else torch.int32
    rows = torch.empty(sequences, length, dtype=dtype, device=device)
    noises = (Noise.rows(seed, batch, first=first, device=device) for first in range(0, sequences, batch))
    for number, (tokens, _) in enumerate(truth.writing(noises, length, draw or Draw(), rough=True)):
        first, last = number * batch, min(sequences, (number + 1) * batch)
        rows[first:last] = tokens[: last - first].to(dtype)
        if done is not None:
            done(last)
    return rows


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
