"""Conversations: from lines to rows of tokens, prompts kept out of the game."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import Flat
from texts import LLADA_SPECIAL, chat_tokenizer, write_conversations

from prism.data.conversations import (
    Conversation,
    Conversations,
    Encoded,
    Padding,
    TooLong,
    conversations,
    encode,
)
from prism.data.text import TextError, dataset_rows, json_lines
from prism.losses.masking import ByProbability
from prism.losses.prism import PrismLoss
from prism.noise import Noise

BOS, EOS, HEADER, HEADER_END, EOT, MASK = range(len(LLADA_SPECIAL))
CPU = torch.device("cpu")
TURNS = "{% for m in messages %}<|start_header_id|>{{ m.role }}\n{{ m.content }}<|eot_id|>\n{% endfor %}"
OPENING = "{{ '<|start_header_id|>assistant\n' }}"
CHATML = TURNS + "{% if add_generation_prompt %}" + OPENING + "{% endif %}"
ALWAYS_OPEN = TURNS + OPENING  # whether an answer is wanted or not


def ask(prompt: str, answer: str) -> Conversation:
    return Conversation(({"role": "user", "content": prompt},), answer, "here")


def read(path: Path, **fields: str) -> list[Conversation]:
    return list(conversations(json_lines(path), **fields))


def encoded(*found: Conversation, template: Any = ..., **options: Any) -> Encoded:
    tokenizer = chat_tokenizer() if template is ... else chat_tokenizer(template)
    return encode(found, tokenizer, **{"length": 64, **options})


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    lines = [{"prompt": "2+2?", "completion": "4"}, {"messages": messages}, {"instruction": "2+2?", "output": "4"}]
    for number, line in enumerate(lines):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(line) + "\n")
    pair, chat = (read(tmp_path / f"{number}.jsonl")[0] for number in (0, 1))
    named = read(tmp_path / "2.jsonl", prompt="instruction", completion="output")[0]
    assert pair.prompt == chat.prompt == named.prompt == ({"role": "user", "content": "2+2?"},)
    assert pair.answer == chat.answer == named.answer == "4"
    assert pair.where == f"{tmp_path / '0.jsonl'}, line 1"


def test_both_forms_in_one_dataset(tmp_path: Path) -> None:
    """Where every row has every column, None where it had none."""
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    lines = [{"prompt": "2+2?", "completion": "4"}, {"messages": messages}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pair, chat = conversations(dataset_rows(str(tmp_path), None, "train"))
    assert (pair.prompt, pair.answer) == (chat.prompt, chat.answer)
    with pytest.raises(TextError, match="no messages; it has other"):
        list(conversations([("here", {"prompt": None, "completion": None, "messages": None, "other": "x"})]))


def test_the_last_answer_is_the_one_to_learn() -> None:
    turns = [("system", "be brief"), ("user", "a?"), ("assistant", "b"), ("user", "c?"), ("assistant", "d")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (found,) = conversations([("here", row)])
    assert found.answer == "d"
    assert [message["content"] for message in found.prompt] == ["be brief", "a?", "b", "c?"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a"', "line 2 is not JSON"),
        ('["a", "b"]', "line 2 is no object"),
        ('{"prompt": "a"}', "line 2 has no text under 'completion', and no messages; it has prompt"),
        ('{"question": "a", "completion": "b"}', "no text under 'prompt'"),
        ('{"prompt": 3, "completion": "b"}', "no text under 'prompt'"),
        ('{"prompt": "a", "completion": " \\n"}', "line 2: the completion is empty"),
        ('{"messages": []}', "line 2: messages must be a list of two or more"),
        (
            '{"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]}',
            "message 1 needs a role and a content",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}',
            "the last message is of 'user'",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}',
            "the completion is empty",
        ),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(f'{{"prompt": "a", "completion": "b"}}\n{line}\n')
    with pytest.raises(TextError, match=said) as told:
        read(path)
    assert str(path) in str(told.value)


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_llada_s_own_writing() -> None:
    tokenizer = chat_tokenizer()
    (row,) = encoded(ask(" the cat?", " sat \n")).exchanges
    prompt = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nthe cat?<|eot_id|>"
    prompt += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert tokenizer.decode(row.tokens[: row.prompt]) == prompt
    assert tokenizer.decode(row.tokens[row.prompt :]) == "sat<|eot_id|><|endoftext|>"
    expected = tokenizer.apply_chat_template([{"role": "user", "content": "the cat?"}], add_generation_prompt=True)
    assert row.tokens[: row.prompt].tolist() == expected["input_ids"]


@pytest.mark.parametrize("template", [CHATML, ALWAYS_OPEN])
def test_what_comes_after_the_turn_is_not_learned(template: str) -> None:
    """ChatML's newline, or the header of a turn nobody takes."""
    (row,) = encoded(ask("a?", "b"), template=template).exchanges
    assert chat_tokenizer().decode(row.tokens[row.prompt :]) == "b<|eot_id|><|endoftext|>"
    assert row.tokens[row.prompt - 1] not in (EOT, EOS)


def test_without_a_template_the_texts_stand_side_by_side() -> None:
    (row,) = encoded(ask("the ", "cat"), template=None).exchanges
    assert chat_tokenizer().decode(row.tokens) == "the cat<|endoftext|>"
    several = Conversation(({"role": "system", "content": "x"}, {"role": "user", "content": "a"}), "b", "line 7")
    with pytest.raises(TextError, match="line 7 has several messages and the tokenizer no chat template"):
        encoded(several, template=None)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only system messages') }}", "the chat template refuses it: only system messages"),
        ("{{ messages | length }}{{ messages[-1].content }}", "writes prompt or answer differently"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "writes prompt or answer differently"),
    ],
)
def test_templates_that_do_not_do(template: str, said: str) -> None:
    with pytest.raises(TextError, match=f"here.*{said}"):
        encoded(ask("a", "b"), template=template)


def test_a_mask_in_the_text_is_refused() -> None:
    with pytest.raises(TextError, match=rf"here holds the mask \({MASK}\)"):
        encoded(ask("what is <|mdm_mask|>?", "a mask"), mask_id=MASK)
    with pytest.raises(TextError, match=r"here holds token \d+, unknown to the model"):
        encoded(ask("a", "the cat"), vocab_size=100)


def test_too_long_rows_are_counted() -> None:
    fits, long, hopeless = ask("a", "b"), ask("a", "x y z " * 30), ask("x y z " * 30, "b")
    dropped = encoded(fits, long, hopeless, length=40)
    assert (len(dropped.exchanges), dropped.dropped, dropped.truncated) == (1, 2, 0)
    cut = encoded(fits, long, hopeless, length=40, too_long=TooLong.TRUNCATE)
    assert (len(cut.exchanges), cut.dropped, cut.truncated) == (2, 1, 1)
    assert len(cut.exchanges[1].tokens) == 40
    assert EOS not in cut.exchanges[1].tokens


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.data.conversations.AT_ONCE", 2)
    told: list[int] = []
    found = encoded(*[ask("a", str(number)) for number in range(5)], report=told.append)
    assert told == [2, 4, 5]
    assert len({tuple(exchange.tokens.tolist()) for exchange in found.exchanges}) == 5


# ── examples ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rows(tmp_path: Path) -> Conversations:
    found = read(write_conversations(tmp_path / "chat.jsonl", 30))
    return Conversations(encoded(*found, length=80).exchanges, length=80, end=EOS)


def test_prompts_are_never_masked_and_padding_is_what_was_asked_for(rows: Conversations) -> None:
    learned = rows.batch(range(30), CPU)
    assert learned.attend is None
    unseen = Conversations(rows.exchanges, 80, EOS, Padding.UNSEEN).batch(range(30), CPU)
    assert torch.equal(learned.tokens, unseen.tokens)
    assert torch.equal(learned.maskable, unseen.maskable)
    opened = learned.tokens == HEADER_END
    begins = 79 - opened.flip(1).int().argmax(1) + 2  # two newlines after the last header
    for row, begin in enumerate(begins.tolist()):
        end = 1 + learned.tokens[row].tolist().index(EOS)
        assert not learned.free[row, :begin].any()
        assert learned.free[row, begin + 1 :].all()
        assert unseen.attend[row].tolist() == [place < end for place in range(80)]
        assert unseen.free[row].sum() == learned.free[row, :end].sum()
    for batch in (learned, unseen):
        masked = ByProbability()(batch, MASK, Noise.rows(0, 30))
        assert torch.equal(masked.tokens[~batch.free], batch.tokens[~batch.free])


def test_nothing_of_a_prompt_or_of_unseen_padding_is_scored(rows: Conversations) -> None:
    """Both passes of the loss see them as they are, and so nothing there can be drawn or asked about."""
    batch = Conversations(rows.exchanges, 80, EOS, Padding.UNSEEN).batch(range(4), CPU)
    seen: list[torch.Tensor] = []

    class Watch(Flat):
        def predict(self, tokens: torch.Tensor, attend: torch.Tensor | None = None) -> Any:
            seen.append(tokens)
            return super().predict(tokens, attend)

    PrismLoss(k=3)(Watch(320), batch, MASK, Noise.rows(0, 4))
    assert len(seen) == 2
    for tokens in seen:
        assert torch.equal(tokens[~batch.free], batch.tokens[~batch.free])


def test_a_row_is_the_same_wherever_it_is_asked_for(rows: Conversations) -> None:
    whole = rows.batch(range(70), CPU)
    part = rows.batch(range(20, 45), CPU)
    assert torch.equal(whole.tokens[20:45], part.tokens)
    assert torch.equal(whole.maskable[20:45], part.maskable)
    epochs = [sorted(map(tuple, whole.tokens[at : at + 30].tolist())) for at in (0, 30)]
    assert epochs[0] == epochs[1]


def test_the_digest_sees_every_token_and_every_prompt(rows: Conversations) -> None:
    last = rows.exchanges[-1]
    for other in (replace(last, prompt=last.prompt + 1), replace(last, tokens=last.tokens[:-1])):
        assert replace(rows, exchanges=[*rows.exchanges[:-1], other]).digest() != rows.digest()
    assert replace(rows, exchanges=list(rows.exchanges)).digest() == rows.digest()


def test_the_split_loses_and_repeats_nothing(rows: Conversations) -> None:
    learn, aside = rows.split(7, seed=3)
    assert (len(learn), len(aside)) == (23, 7)
    parts = [tuple(e.tokens.tolist()) for side in (learn, aside) for e in side.exchanges]
    assert sorted(parts) == sorted(tuple(e.tokens.tolist()) for e in rows.exchanges)
    again, _ = rows.split(7, seed=3)
    assert learn.batch(range(23), CPU).tokens.tolist() == again.batch(range(23), CPU).tokens.tolist()
    for held_out in (0, 30):
        with pytest.raises(ValueError, match=f"held_out={held_out} leaves none"):
            rows.split(held_out)


def test_rows_that_do_not_fit(rows: Conversations) -> None:
    with pytest.raises(ValueError, match="more than length=10"):
        Conversations(rows.exchanges, length=10, end=EOS)
