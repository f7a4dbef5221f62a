"""A causal model and a corpus brought together: the same tokenizer, and a token for the mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prism.data.shards import Corpus
from prism.data.text import load_tokenizer, vocabulary_size
from prism.data.writing import has_tokenizer
from prism.models.adapt import adapt
from prism.models.hub import locate
from prism.models.llama import Llama


def adapt_to(corpus: Corpus, tokenizer: Any, base: str, *, shifted: bool, length: int) -> Llama:
    """The causal model of that folder, hub name or GGUF file, to be trained on the corpus, whose `tokenizer` has a mask.

    In float32: half precision would lose the small steps of training.
    """
    source = Path(base)
    if source.suffix == ".gguf" or has_tokenizer(source := locate(base)):
        corpus.require_tokenizer(load_tokenizer(source), f"that of {base}")
    mask, known = tokenizer.mask_token_id, vocabulary_size(tokenizer)
    return adapt(base, shifted=shifted, mask_id=mask, known=known, length=length).float()
