"""A causal language model as a judge of text: generative perplexity, and features for MAUVE.

Texts are read as text, with the judge's own tokenizer, so that any model may judge any other. The conventions are those of
MDLM, ReMDM and PRISM, and where a judge is not GPT-2 the nearest thing to them:

- A text is cut to the judge's context (1024 tokens for GPT-2).
- A judge whose tokenizer puts a start token in front gets it (Llama, Gemma, which is lost without), and then scores every
  token of the text; GPT-2 gets none, and its first token is not scored, there being nothing before it.
- Text holds documents one after another. The writer's end-of-text mark is made the judge's, unless the judge knows it. The
  first in a text is scored, further ones are not. (In the published code the first may also be one of padding; here padding
  is never scored.)
- Features are the last hidden state, after the final norm, at the last token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from prism.data.text import load_tokenizer
from prism.models.folder import Folder, ModelError, first_line, no_bars
from prism.models.hub import locate
from prism.models.masked_lm import max_length

FALLBACK_CONTEXT = 1024
"""For models that set no limit."""


class Featuriser(ABC):
    """Makes a vector of a text."""

    batch: int
    """Texts at once."""

    @abstractmethod
    def read(self, text: str) -> list[int]:
        """The text as this model sees it, cut to its context."""

    @abstractmethod
    def features(self, texts: Sequence[str], *, most: int | None = None) -> list[Float[np.ndarray, " d"]]:
        """One vector a text, of its first `most` tokens if given."""


class Judge(Featuriser):
    def __init__(
        self, model: Any, tokenizer: Any, *, begin: int | None, context: int, batch: int = 8, end: str | None = None
    ) -> None:
        self.model, self.tokenizer, self.batch = model.eval().requires_grad_(False), tokenizer, batch
        self.begin, self.context = begin, context
        self.end = end
        """How the texts mark the end of a document; None where they do not."""
        known = end is not None and end in tokenizer.get_vocab()
        self.own_end = end if known else tokenizer.eos_token
        """How the judge does."""

    def read(self, text: str) -> list[int]:
        return ([] if self.begin is None else [self.begin]) + self.whole(text)[: self.room]

    def whole(self, text: str) -> list[int]:
        """All of the text in the judge's tokens, however long, and its start token not among them."""
        if self.end is not None and self.own_end is not None:
            text = text.replace(self.end, self.own_end)
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @property
    def room(self) -> int:
        """Tokens of a text it reads."""
        return self.context - (self.begin is not None)

    @torch.no_grad()
    def likelihood(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        """-log p of each text in nats, and of how many tokens."""
        found = []
        for tokens, attend in self._batches(texts, most=None):
            if tokens.shape[1] < 2:
                found += [(0.0, 0)] * len(tokens)
                continue
            logits = self.model(input_ids=tokens, attention_mask=attend.long(), use_cache=False).logits
            scored = self._scored(tokens, attend)
            for row, wanted, where in zip(
                logits, tokens[:, 1:], scored, strict=True
            ):  # a row at a time: vocabularies are wide
                loss = F.cross_entropy(row[:-1].float(), wanted, reduction="none")
                found.append((float(loss[where].double().sum()), int(where.sum())))
        return found

    def features(self, texts: Sequence[str], *, most: int | None = None) -> list[Float[np.ndarray, " d"]]:
        return [last for last, _ in self.states(texts, most=most)]

    @torch.no_grad()
    def states(
        self, texts: Sequence[str], *, most: int | None = None
    ) -> list[tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]]:
        """The last hidden state of every text, MAUVE's published feature, and the mean of them all."""
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for tokens, attend in self._batches(texts, most):
            reading = self.model.base_model(input_ids=tokens, attention_mask=attend.long(), use_cache=False)
            hidden, last = reading.last_hidden_state.float(), (attend.sum(1) - 1).clamp_min(0)
            lasts, means = hidden[torch.arange(len(last)), last], _mean(hidden, attend)
            found += zip(lasts.cpu().numpy(), means.cpu().numpy(), strict=True)
        return found

    def _scored(self, tokens: Int[Tensor, "b l"], attend: Bool[Tensor, "b l"]) -> Bool[Tensor, "b k"]:
        """Which tokens after the first count."""
        ends = tokens == (-1 if self.own_end is None else self.tokenizer.convert_tokens_to_ids(self.own_end))
        if self.begin is not None:
            ends[:, 0] = False  # in some models the same token begins and ends
        first = ends & (ends.cumsum(1) == 1)
        return (attend & (~ends | first))[:, 1:]

    def _batches(self, texts: Sequence[str], most: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        return padded([self.read(text)[:most] for text in texts], self.batch, self.model.device)

    def describe(self) -> dict[str, Any]:
        """The conventions, for a results file."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        return {"context": self.context, "start_token": self.begin, "end_of_text": self.own_end, "dtype": dtype}


class Encoder(Featuriser):
    """A model that sees a text as a whole, such as a sentence encoder: the mean of its last hidden states."""

    def __init__(self, model: Any, tokenizer: Any, *, context: int, batch: int = 32) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.context, self.batch = context, batch

    def read(self, text: str) -> list[int]:
        return self.tokenizer(text, truncation=True, max_length=self.context)["input_ids"]

    @torch.no_grad()
    def features(self, texts: Sequence[str], *, most: int | None = None) -> list[Float[np.ndarray, " d"]]:
        found = []
        for tokens, attend in padded([self.read(text)[:most] for text in texts], self.batch, self.model.device):
            hidden = self.model(input_ids=tokens, attention_mask=attend.long()).last_hidden_state.float()
            found += list(_mean(hidden, attend).cpu().numpy())
        return found


def _mean(hidden: Float[Tensor, "b l d"], attend: Bool[Tensor, "b l"]) -> Float[Tensor, "b d"]:
    """Over what is no padding."""
    return (hidden * attend[..., None]).sum(1) / attend.sum(1, keepdim=True).clamp_min(1)


def padded(rows: Sequence[list[int]], batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and which of them are no padding, `batch` rows at a time and the last time what is left."""
    for first in range(0, len(rows), batch):
        some = rows[first : first + batch]
        lengths = torch.tensor([len(row) for row in some])
        tokens = torch.zeros(len(some), max(1, int(lengths.max())), dtype=torch.long)
        for place, row in enumerate(some):
            tokens[place, : len(row)] = torch.tensor(row, dtype=torch.long)
        attend = torch.arange(tokens.shape[1]) < lengths[:, None]
        yield tokens.to(device), attend.to(device)


def load_judge(
    name: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    context: int | None = None,
    begins: bool | None = None,
    batch: int = 8,
    end: str | None = None,
) -> Judge:
    """A causal model of transformers from a folder, the hub or a GGUF file. `context` may shorten what it reads; `begins`
    overrules whether it gets its start token."""
    from transformers import AutoModelForCausalLM

    model, tokenizer = _load(AutoModelForCausalLM, name, device, dtype)
    longest = _context(model)
    if context is not None and not 2 <= context <= longest:
        raise ValueError(f"A context of {context} tokens: {name} reads 2..{longest}.")
    begin = tokenizer.bos_token_id
    if begins and begin is None:
        raise ValueError(f"The tokenizer of {name} has no start token; leave it out.")
    wants = _begins(tokenizer, model.config.model_type) if begins is None else begins
    return Judge(model, tokenizer, begin=begin if wants else None, context=context or longest, batch=batch, end=end)


def load_encoder(
    name: str, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, batch: int = 32
) -> Encoder:
    """An encoder of transformers from a folder or the hub."""
    from transformers import AutoModel

    model, tokenizer = _load(AutoModel, name, device, dtype)
    # The config of RoBERTa and MPNet counts two positions that are no place in a text.
    positions = max_length(model) or _context(model)
    return Encoder(model, tokenizer, context=min(positions, tokenizer.model_max_length), batch=batch)


def _load(kind: Any, name: str, device: torch.device | str, dtype: torch.dtype) -> tuple[Any, Any]:
    source = Path(name)
    if source.suffix == ".gguf":
        Folder(source.parent).file(source.name)
        place, inside = source.parent, {"gguf_file": source.name}
    else:
        source = place = locate(name)
        inside = {}
    try:
        with no_bars():
            model = kind.from_pretrained(place, dtype=dtype, use_safetensors=None if inside else True, **inside)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name} cannot be loaded as a {kind.__name__}: {first_line(error)}") from error
    return model.to(device), load_tokenizer(source)


def _context(model: Any) -> int:
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or FALLBACK_CONTEXT)


def _begins(tokenizer: Any, kind: str) -> bool:
    """Whether the model was trained with its start token in front; tokenizers out of GGUF files may forget it."""
    begin = tokenizer.bos_token_id
    if begin is None:
        return False
    told = tokenizer("a")["input_ids"][:1] == [begin] or bool(getattr(tokenizer, "add_bos_token", False))
    return told or kind.startswith("gemma")
