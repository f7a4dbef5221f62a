"""Conversations to fine-tune on: {prompt, completion} or {messages}, turned into tokens by the model's own chat template.

A row is a prompt, which is never masked and never scored, and an answer, which ends with the end-of-text token. Of several
turns the last answer is the one that is learned: attention goes both ways, and an earlier one could be read off what was said
after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32

from prism.data.text import Row, TextError, end_of_text
from prism.losses.masking import Batch
from prism.models.folder import first_line
from prism.training.examples import Examples, shuffled

Message = dict[str, str]
"""role and content."""
FORMS = '{"prompt": …, "completion": …} or {"messages": [{"role": …, "content": …}, …]}'
"""What a line may hold."""
AT_ONCE = 1000
"""Conversations tokenized together: the tokenizer spreads them over the cores."""


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Conversation:
    prompt: tuple[Message, ...]
    answer: str
    where: str
    """The line it stands on, for complaints."""


def conversations(
    rows: Iterable[tuple[str, Row]], *, prompt: str = "prompt", completion: str = "completion"
) -> Iterator[Conversation]:
    """Rows with `messages`, or with a text under each of two names. In a table that has both, what a row lacks is None."""
    for where, row in rows:
        if row.get("messages") is not None:
            yield _of_messages(where, row["messages"])
        else:
            asked, answer = _text(where, row, prompt), _text(where, row, completion)
            yield _checked(Conversation(({"role": "user", "content": asked},), answer, where))


def _of_messages(where: str, messages: Any) -> Conversation:
    if not isinstance(messages, list) or len(messages) < 2:
        raise TextError(f"{where}: messages must be a list of two or more, the last of them the assistant's.")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise TextError(f"{where}: message {number} needs a role and a content, both of them text.")
    if messages[-1]["role"] != "assistant":
        raise TextError(f"{where}: the last message is of {messages[-1]['role']!r}; it must be the assistant's.")
    return _checked(Conversation(tuple(messages[:-1]), messages[-1]["content"], where))


def _text(where: str, row: Row, field: str) -> str:
    if not isinstance(row.get(field), str):
        there = [name for name, value in row.items() if value is not None]
        raise TextError(
            f"{where} has no text under {field!r}, and no messages; it has {', '.join(there) or 'nothing'}. "
            "Name the fields that hold prompt and completion."
        )
    return row[field]


def _checked(conversation: Conversation) -> Conversation:
    if not conversation.answer.strip():
        raise TextError(f"{conversation.where}: the completion is empty, so there is nothing to learn; take it out.")
    return conversation


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class TooLong(Enum):
    """What becomes of a conversation longer than the rows."""

    DROP = "it is left out"
    TRUNCATE = "its answer is cut short, without an end; left out all the same if the prompt alone fills the row"


class Padding(Enum):
    """What fills a row after its answer."""

    LEARNED = (
        "end-of-text tokens like any other, seen, masked and learned: how LLaDA's SFT teaches the length of an answer"
    )
    UNSEEN = "nothing: never attended to, masked or learned"


@dataclass(frozen=True)
class Exchange:
    """A conversation as tokens."""

    tokens: Int32[np.ndarray, " n"]
    prompt: int
    """How many of them are the prompt."""


@dataclass(frozen=True)
class Encoded:
    exchanges: list[Exchange]
    dropped: int
    truncated: int


def encode(
    found: Sequence[Conversation],
    tokenizer: Any,
    *,
    length: int,
    too_long: TooLong = TooLong.DROP,
    mask_id: int | None = None,
    vocab_size: int | None = None,
    report: Callable[[int], object] = lambda done: None,
) -> Encoded:
    """The conversations as at most `length` tokens each; `report` hears how many are done.

    With `mask_id` and `vocab_size`, the model's, text that spells the mask and tokens the model does not know are refused.
    """
    end, chat = end_of_text(tokenizer), _Chat(tokenizer)
    exchanges: list[Exchange] = []
    truncated = 0
    for first in range(0, len(found), AT_ONCE):
        some = found[first : first + AT_ONCE]
        for conversation, (prompt, answer) in zip(some, chat.tokens(some), strict=True):
            tokens = prompt + answer + ([] if answer[-1] == end else [end])
            if mask_id in tokens or (vocab_size is not None and max(tokens) >= vocab_size):
                wrong = f"the mask ({mask_id})" if mask_id in tokens else f"token {max(tokens)}, unknown to the model"
                raise TextError(f"{conversation.where} holds {wrong}; take it out, or check the tokenizer.")
            if len(tokens) > length:
                if too_long is TooLong.DROP or len(prompt) >= length:
                    continue
                truncated += 1
            exchanges.append(Exchange(np.array(tokens[:length], np.int32), len(prompt)))
        report(first + len(some))
    return Encoded(exchanges, len(found) - len(exchanges), truncated)


class _Chat:
    """Writes prompts and answers as the model is used to; without a chat template one straight after the other."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.closings: dict[str, list[int]] = {}

    def tokens(self, some: Sequence[Conversation]) -> Iterator[tuple[list[int], list[int]]]:
        """Prompt and answer are tokenized apart, as they are when the model is asked and answers."""
        texts = [self._texts(conversation) for conversation in some]
        prompts, answers = (self._ids([text[i] for text in texts]) for i in (0, 1))
        for prompt, answer, (_, _, after) in zip(prompts, answers, texts, strict=True):
            yield prompt, answer + self._closing(after)

    def _texts(self, conversation: Conversation) -> tuple[str, str, str]:
        """The prompt, the answer, and what the template writes after it."""
        if self.tokenizer.chat_template is None:
            return self._plain_prompt(conversation), conversation.answer, ""
        prompt = self._written(conversation, list(conversation.prompt), add_generation_prompt=True)
        answered = [*conversation.prompt, {"role": "assistant", "content": conversation.answer}]
        whole = self._written(conversation, answered, add_generation_prompt=False)
        answer = conversation.answer.strip()  # which templates do themselves, or leave to us
        begin = whole.find(answer, len(prompt))
        if not whole.startswith(prompt) or begin < 0:
            raise TextError(
                f"{conversation.where}: the chat template writes prompt or answer differently once they stand together, so "
                "where the answer begins cannot be told; mend the template."
            )
        return prompt, whole[len(prompt) : begin] + answer, whole[begin + len(answer) :]

    def _plain_prompt(self, conversation: Conversation) -> str:
        if len(conversation.prompt) > 1:
            raise TextError(
                f"{conversation.where} has several messages and the tokenizer no chat template; give it one, or give "
                "prompt and completion as text."
            )
        return conversation.prompt[0]["content"]

    def _written(self, conversation: Conversation, messages: list[Message], *, add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except TemplateError as error:
            raise TextError(f"{conversation.where}: the chat template refuses it: {first_line(error)}") from error

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def _closing(self, after: str) -> list[int]:
        """The token that ends a turn: the first special one, if any. What follows it belongs to the next turn."""
        if after not in self.closings:
            special = self.tokenizer.added_tokens_decoder
            self.closings[after] = [token for token in self._ids([after])[0] if token in special][:1]
        return self.closings[after]


# ── examples ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Conversations(Examples):
    """Exchanges in a fresh order every epoch, filled up to rows of `length` when they are asked for."""

    exchanges: Sequence[Exchange] = field(repr=False)
    length: int
    end: int
    """The end-of-text token."""
    padding: Padding = Padding.LEARNED
    seed: int = 0

    def __post_init__(self) -> None:
        if longer := [len(exchange.tokens) for exchange in self.exchanges if len(exchange.tokens) > self.length]:
            raise ValueError(f"An exchange has {longer[0]} tokens, more than length={self.length}; encode it shorter.")

    def __len__(self) -> int:
        return len(self.exchanges)

    def batch(self, rows: range, device: torch.device) -> Batch:
        return self.read(shuffled(rows, len(self), self.seed, torch.device("cpu")).tolist()).to(device)

    def read(self, numbers: Iterable[int]) -> Batch:
        """The exchanges of those numbers."""
        some = [self.exchanges[number] for number in numbers]
        tokens = torch.full((len(some), self.length), self.end)
        for row, exchange in zip(tokens, some, strict=True):
            row[: len(exchange.tokens)] = torch.from_numpy(exchange.tokens)
        place = torch.arange(self.length)
        begins = torch.tensor([exchange.prompt for exchange in some])[:, None]
        ends = torch.tensor([len(exchange.tokens) for exchange in some])[:, None]
        return Batch(tokens, place >= begins, None if self.padding is Padding.LEARNED else place < ends)

    def digest(self) -> str:
        """A sha256 of all exchanges."""
        digest = hashlib.sha256()
        for exchange in self.exchanges:
            digest.update(f"{len(exchange.tokens)} {exchange.prompt} ".encode() + exchange.tokens.tobytes())
        return digest.hexdigest()

    def split(self, held_out: int, seed: int = 0) -> tuple[Conversations, Conversations]:
        """To learn from, and `held_out` drawn at random to measure on."""
        if not 0 < held_out < len(self):
            raise ValueError(f"There are {len(self)} rows; held_out={held_out} leaves none on one side.")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        sides = sorted(order[held_out:]), sorted(order[:held_out])
        learn, aside = (replace(self, exchanges=[self.exchanges[number] for number in side]) for side in sides)
        return learn, aside
