"""The laws of writing text: what is given stays, nothing is left masked, rows do not meet, an end is an end."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import tiny_dit
from test_llama import VOCABULARY, both_ways
from texts import LETTERS, write_letters
from torch import Tensor
from transformers import AutoTokenizer

import prism
from prism import Draw, End, Eos, Noise, Pair, Settings, Writer, Written
from prism.data.writing import Numbers, Text
from prism.models.cached import Cached
from prism.state import Prediction

MASK, END, TURN = 3, 0, 1
GREEDY = Draw(temperature=0.0)
PLAIN = Pair(prism.Counted(prism.Margin()))
PRISM = Pair(prism.Counted(prism.Margin()), prism.LowQuality(prism.Centred(3)))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text(AutoTokenizer.from_pretrained(write_letters(tmp_path_factory.mktemp("letters"))))


@functools.cache
def model() -> prism.PrismModel:
    judged = prism.attach(both_ways(), prism.ProjectionConfig(24))
    torch.nn.init.normal_(judged.quality_head.score.weight, std=0.5)
    return judged.eval()


class Speller:
    """Writes "abcdefgh…" from the end of the prompt on, whatever else stands there, and `wanted` at the places that has."""

    forwards = 1
    facts = prism.Facts(mask_id=MASK, vocab_size=VOCABULARY, hidden_size=VOCABULARY)

    def __init__(self, prompt: int, wanted: dict[int, int] | None = None) -> None:
        self.prompt, self.wanted, self.calls = prompt, wanted or {}, 0

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        self.calls += 1
        chosen = [self.wanted.get(place, 4 + place % 26) for place in range(-self.prompt, 100)][: tokens.shape[1]]
        logits = 9.0 * torch.nn.functional.one_hot(torch.tensor(chosen), VOCABULARY).float()
        return Prediction(logits.expand(len(tokens), -1, -1), lambda rows: rows, forbidden=torch.tensor([MASK]))


def ids(word: str) -> list[int]:
    return [LETTERS[letter] for letter in word]


def same(one: Written, other: Written) -> bool:
    return replace(one, seconds=0.0) == replace(other, seconds=0.0)


PROMPTS = [ids("hello"), ids("a"), ids("abcdefghij"), ids("xyz"), []]


@pytest.mark.parametrize("method", prism.METHODS, ids=lambda method: method.name)
def test_every_policy_writes(method: Any, text: Text) -> None:
    """The prompt stands, no mask is left, the same seed gives the same text."""
    policy = method.build(Settings(amount=prism.Fixed(1)))
    writer = Writer(model(), text, policy, new_tokens=8, steps=8, block=4, eos=Eos(stops=False))
    written = writer(PROMPTS, Noise.rows(1, 5))
    for prompt, found in zip(PROMPTS, written, strict=True):
        assert found.prompt == prompt
        assert len(found.tokens) == 8
        assert MASK not in found.tokens
        assert found.end is End.LENGTH
        assert found.text == text.continuation(prompt, found.tokens)
    assert all(map(same, written, writer(PROMPTS, Noise.rows(1, 5))))
    greedy = isinstance(policy, Pair) and not hasattr(policy.unmasker, "order")
    assert greedy or not all(map(same, written, writer(PROMPTS, Noise.rows(2, 5))))


@pytest.mark.parametrize(
    "policy", [PLAIN, PRISM, Pair(prism.Threshold(0.5)), prism.ReMDMCap()], ids=lambda p: str(p)[:40]
)
@pytest.mark.parametrize("draw", [Draw(temperature=0.7, nucleus=0.9), Draw()])
@pytest.mark.parametrize("batch", [2, 4])
def test_a_prompt_alone_gives_what_it_gives_in_a_batch(policy: Any, draw: Draw, batch: int, text: Text) -> None:
    """Also where others end earlier and the batch shrinks."""
    prompts = PROMPTS[:4]  # an empty one makes all masks alike, and which of equals comes first is a matter of rounding
    writer = Writer(model(), text, policy, new_tokens=16, block=4, draw=draw, stop=("vm", "e", "k"), batch=batch)
    keys = Noise.rows(0, 4).keys
    together = writer(prompts, Noise(keys))
    assert len({found.forwards for found in together}) > 1
    for number, prompt in enumerate(prompts):
        (alone,) = writer([prompt], Noise(keys[number : number + 1]))
        assert same(alone, together[number])


@pytest.mark.parametrize(
    "policy", [PRISM, Pair(prism.Threshold(0.5)), prism.Revisiting(PRISM, 1)], ids=["prism", "threshold", "revisiting"]
)
@pytest.mark.parametrize("cached", [False, True])
def test_recorded_steps_write_the_same(policy: Any, cached: bool, text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that end early, a batch that shrinks, and a run that finds too little room and begins again."""
    monkeypatch.setattr("prism.sampling.prepared._ROOM", 0)
    monkeypatch.setattr("prism.writer.Prepared", Blind)
    written = []
    for recorded in (False, True):
        denoiser = Cached(model()) if cached else model()
        writer = Writer(
            denoiser,
            text,
            policy,
            new_tokens=16,
            block=4,
            draw=Draw(nucleus=0.9),
            stop=("vm", "e", "k"),
            batch=4,
            recorded=recorded,
        )
        Blind.made = 0
        written.append(writer(PROMPTS[:4], Noise.rows(0, 4)))
        assert (Blind.made > 0) == recorded
    assert len({found.forwards for found in written[0]}) > 1
    assert all(map(same, *written))


class Blind(prism.Prepared):
    """Counts no positions, as on a GPU; how many of it were made."""

    made = 0

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, waits=False, **settings)
        Blind.made += 1


@pytest.mark.parametrize("policy", [PLAIN, PRISM, prism.ReMDMCap()], ids=lambda p: str(p)[:40])
@pytest.mark.parametrize("block", [None, 4])
def test_it_is_the_one_loop(policy: Any, block: int | None, text: Text) -> None:
    """Where nothing ends early, `Writer` is `generate` on a prompt and masks."""
    writer = Writer(model(), text, policy, new_tokens=12, steps=9, block=block, eos=Eos(stops=False))
    (found,) = writer([ids("hello")], Noise.rows(3, 1))
    state = prism.start(torch.tensor([ids("hello") + [MASK] * 12]), MASK)
    expected = prism.generate(model(), state, policy, steps=9, block=block, noise=Noise.rows(3, 1))
    assert found.prompt + found.tokens == expected.tokens[0].tolist()
    assert (found.forwards, found.remasks) == (int(expected.forwards), int(expected.remasks))


def test_steps_are_counted_over_generated_tokens(text: Text) -> None:
    """However long the prompt; K a block, centred in it."""
    for prompt in PROMPTS:
        speller = Speller(len(prompt))
        policy = Pair(prism.Counted(prism.Margin()), prism.Anywhere(prism.Centred(2)))
        (found,) = Writer(speller, text, policy, new_tokens=16, steps=12, block=4)([prompt])
        assert (found.forwards, speller.calls, found.remasks) == (12, 12, 4 * 1)  # three steps a block: one can remask
        (found,) = Writer(speller, text, policy, new_tokens=16, steps=16, block=4)([prompt])
        assert (found.forwards, found.remasks) == (16, 4 * 2)
        assert found.text == "abcdefghijklmnop"


@pytest.mark.parametrize("end", [END, TURN])
def test_a_text_is_over_with_the_block_of_its_end(end: int, text: Text) -> None:
    speller = Speller(5, {5: end, 6: end})
    writer = Writer(speller, text, PLAIN, new_tokens=16, block=4)
    (found,) = writer.write(["hello"])
    assert (found.text, found.tokens, found.end) == ("abcde", [*ids("abcde"), end], End.EOS)
    assert found.forwards == speller.calls == 8  # two of the four blocks
    (on,) = replace(writer, eos=Eos(stops=False)).write(["hello"])
    assert (on.text, len(on.tokens), on.end, on.forwards) == ("abcdehijklmnop", 16, End.LENGTH, 16)


def test_an_end_can_be_forbidden_for_a_while(text: Text) -> None:
    """At the positions named, and at no other."""
    speller = Speller(5, {2: END, 8: TURN, 9: END})
    (found,) = Writer(speller, text, PLAIN, new_tokens=16, block=4, draw=GREEDY, eos=Eos(least=9)).write(["hello"])
    assert (len(found.tokens), found.tokens[-1], found.end) == (10, END, End.EOS)
    assert not {END, TURN} & set(found.tokens[:-1])
    (never,) = Writer(speller, text, PLAIN, new_tokens=16, block=4, eos=Eos(least=16)).write(["hello"])
    assert never.end is End.LENGTH


@pytest.mark.parametrize("shifted", [False, True])
def test_forbidding_is_a_matter_of_position(shifted: bool) -> None:
    backbone = both_ways(shifted=shifted)
    x = torch.full((2, 6), MASK)
    where = torch.tensor([[True, False] * 3, [False, False, True] * 2])
    everywhere = torch.ones_like(where)
    free, barred = backbone.predict(x), backbone.predict(x).without(torch.tensor([5, 7]), where)
    for read in (lambda p: p.read(everywhere).log_probabilities, lambda p: p.log_probabilities(everywhere)):
        expected = read(free).exp().view(2, 6, -1)
        expected[..., [5, 7]] *= ~where[..., None]
        expected = expected / expected.sum(-1, keepdim=True)
        torch.testing.assert_close(read(barred).exp().view(2, 6, -1), expected)


def test_a_stop_string_is_cut_off(text: Text) -> None:
    """Across blocks too, and the first of several counts."""
    speller = Speller(5)
    writer = Writer(speller, text, PLAIN, new_tokens=16, block=4, stop=("zz", "hi", "fg"))
    (found,) = writer.write(["hello"])
    assert (found.text, found.tokens, found.end, found.forwards) == ("abcde", ids("abcdefg"), End.STOP, 8)
    (across,) = replace(writer, stop=("de", "m")).write(["hello"])
    assert (across.text, across.end, across.forwards) == ("abc", End.STOP, 8)
    (prompted,) = replace(writer, stop=("hello",)).write(["hello"])
    assert prompted.end is End.LENGTH  # the prompt's own words end nothing
    first = Speller(5, {2: END})
    (ended,) = replace(writer, model=first, stop=("d",)).write(["hello"])
    assert (ended.text, ended.end) == ("ab", End.EOS)


def test_the_batch_shrinks_with_those_who_are_done(text: Text) -> None:
    """The model sees fewer rows once half of the texts are over."""
    rows = []

    class Watched(Speller):
        def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
            rows.append(len(tokens))
            prediction = super().predict(tokens, attend)
            short = (tokens[:, 0] == ids("s")[0])[:, None, None]
            return Prediction(
                torch.where(short, 9.0 * torch.nn.functional.one_hot(torch.tensor(END), VOCABULARY), prediction.hidden),
                lambda rows: rows,
                forbidden=torch.tensor([MASK]),
            )

    written = Writer(Watched(1), text, PLAIN, new_tokens=12, block=4).write(["s", "l", "s", "s"])
    assert rows == [4] * 4 + [1] * 8
    assert [found.forwards for found in written] == [4, 12, 4, 4]
    assert written[1].text == "abcdefghijkl"


@pytest.mark.parametrize("block", [None, 2])
def test_masks_in_a_prompt_are_filled_and_nothing_else(block: int | None, text: Text) -> None:
    prompts = [text.prompt("he<|mask|>lo"), text.prompt("<|mask|>b<|mask|><|mask|>e<|mask|>gh<|mask|>")]
    assert [prompt.count(MASK) for prompt in prompts] == [1, 5]
    writer = Writer(model(), text, PRISM, new_tokens=6, block=block, eos=Eos(stops=False))
    for prompt, found in zip(prompts, writer(prompts), strict=True):
        filled = iter(found.tokens)
        whole = [next(filled) if token == MASK else token for token in prompt]
        assert found.text == text.continuation([], whole)
        assert MASK not in whole
        assert next(filled, None) is None
        assert found.forwards == prompt.count(MASK)


@pytest.mark.parametrize("suffix", [False, True])
@pytest.mark.parametrize("policy", [PLAIN, PRISM])
def test_a_cache_refreshed_at_every_step_changes_nothing(policy: Any, suffix: bool, text: Text) -> None:
    writer = Writer(model(), text, policy, new_tokens=12, block=4, stop=("e", "k"))
    cached = replace(writer, model=Cached(model(), refresh=1, suffix=suffix))
    assert all(map(same, writer(PROMPTS), cached(PROMPTS)))


@pytest.mark.parametrize("suffix", [False, True])
@pytest.mark.parametrize("block", [None, 4])
def test_a_cache_keeps_nothing_of_another_run(block: int | None, suffix: bool, text: Text) -> None:
    """The same prompt again, whose blocks lie where the last one's lay."""
    cached = Cached(model(), suffix=suffix, refresh=3)
    writer = Writer(cached, text, PRISM, new_tokens=11, block=block, eos=Eos(stops=False, least=2))
    first = writer.write(["hello", "abc"], Noise.rows(7, 2))
    assert MASK not in [token for found in first for token in found.tokens]
    writer.write(["hello", "abc"], Noise.rows(8, 2))
    assert all(map(same, first, writer.write(["hello", "abc"], Noise.rows(7, 2))))


def test_absolute_positions_do_not_notice_padding() -> None:
    """What left padding would break."""
    dit = tiny_dit(length=12)
    writer = Writer(dit, Numbers(6), Pair(prism.Counted(prism.RandomOrder())), new_tokens=4)
    prompts = [[1, 2, 3, 4, 5, 1], [2], [3, 3]]
    together = writer(prompts, Noise.rows(0, 3))
    alone = [writer([prompt], Noise.rows(0, 1, first=number))[0] for number, prompt in enumerate(prompts)]
    assert all(map(same, together, alone))


def test_chat(text: Text) -> None:
    speller = Speller(8)
    writer = Writer(speller, text, PLAIN, new_tokens=4)
    (found,) = writer.chat([[{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]])
    assert found.prompt == [*ids("be"), TURN, 2, *ids("hi"), TURN]
    text_without = Text(AutoTokenizer.from_pretrained(text.tokenizer.name_or_path))
    text_without.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        replace(writer, writing=text_without).chat([[{"role": "user", "content": "hi"}]])
    with pytest.raises(ValueError, match="no tokenizer"):
        replace(writer, writing=Numbers(30)).chat([[{"role": "user", "content": "hi"}]])


def test_texts_come_as_they_are_done(text: Text) -> None:
    writer = Writer(Speller(1), text, PLAIN, new_tokens=4, batch=1)
    prompts = [ids("ab"), ids("a"), ids("abc")]
    assert [number for number, _ in writer.each(prompts)] == [1, 0, 2]  # short prompts first
    assert len(list(writer.steps_of(prompts))) == 12


def test_every_step_says_whose_its_rows_are(text: Text) -> None:
    """Also where prompts are sorted, and where the batch has shrunk; what is over was written by those very steps."""
    prompts = PROMPTS[:4]
    writer = Writer(model(), text, PRISM, new_tokens=16, block=4, stop=("vm", "e", "k"), batch=4)
    steps = list(writer.steps_of(prompts, Noise.rows(0, 4)))
    assert len({len(progress.numbers) for progress in steps}) > 1
    for progress in steps:
        assert progress.step is not None
        for number, row in zip(progress.numbers, progress.step.after.tokens.tolist(), strict=True):
            assert row[: len(prompts[number])] == prompts[number]
            if number in progress.over:
                sequence = progress.over[number].sequence
                assert row[: len(sequence)] == sequence
    over = {number: found for progress in steps for number, found in progress.over.items()}
    assert all(map(same, writer(prompts, Noise.rows(0, 4)), (over[number] for number in range(4))))


def test_what_cannot_be_is_refused(text: Text) -> None:
    writer = Writer(model(), text, PLAIN, new_tokens=4)
    for changes, message in (
        ({"new_tokens": -1}, "new_tokens=-1"),
        ({"batch": 0}, "batch=0"),
        ({"stop": ("a", "")}, "empty stop string"),
        ({"writing": Numbers(30), "eos": Eos(least=3)}, "least=3: this tokenizer names no token"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(writer, **changes)
    with pytest.raises(ValueError, match="least=-1"):
        Eos(least=-1)
    with pytest.raises(ValueError, match="leaves nothing to generate"):
        replace(writer, new_tokens=0).write(["hello"])
    with pytest.raises(ValueError, match="The noise is for 2 rows and there are 1 prompts"):
        writer.write(["hello"], Noise.rows(0, 2))
    with pytest.raises(ValueError, match="a prompt with masks is filled in wherever it ends"):
        replace(writer, stop=("a",)).write(["hello", "he<|mask|>lo"])


def test_a_stop_string_alone_is_refused(text: Text) -> None:
    """Of which "" is a part, as of every string. The checker of types that tests run with would be first to complain."""
    writer = Writer(model(), text, PLAIN, new_tokens=4)
    object.__setattr__(writer, "stop", "abc")
    with pytest.raises(ValueError, match=r"stop='abc': expected a tuple of strings; write stop=\('abc',\)"):
        writer.__post_init__()


def test_ends_are_read_off_the_tokenizer(text: Text, tmp_path: Path) -> None:
    assert text.ends == (END, TURN)
    assert text.continuation(ids("ab"), [*ids("cd"), END]) == "cd"
