from __future__ import annotations

import pytest
import torch
from torch import Tensor

import prism.vocabulary
from prism.state import SMALL_VOCABULARY, Draft, Edit, Prediction, start


def test_start_freezes_what_is_given() -> None:
    state = start(torch.tensor([[9, 3, 9, 4]]), 9)
    assert state.frozen.tolist() == [[False, True, False, True]]
    assert state.masked.tolist() == [[True, False, True, False]]
    assert not state.committed.any()
    assert state.attend is None


def test_given_tokens_may_be_left_free() -> None:
    state = start(torch.tensor([[9, 3, 9, 4]]), 9, frozen=torch.tensor([[False, False, False, True]]))
    assert state.committed.tolist() == [[False, True, False, False]]


def test_padding_is_frozen_whatever_it_holds() -> None:
    state = start(torch.tensor([[9, 3, 9, 4], [9, 9, 9, 9]]), 9, lengths=torch.tensor([2, 4]))
    assert state.attend is not None
    assert state.attend.tolist() == [[True, True, False, False], [True] * 4]
    assert state.masked.tolist() == [[True, False, False, False], [True] * 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_id": -1}, "mask_id=-1"),
        ({"frozen": torch.tensor([[True, True]])}, "frozen position holds the mask"),
        ({"lengths": torch.tensor([3])}, r"1\.\.2"),
        ({"lengths": torch.tensor([0])}, r"1\.\.2"),
    ],
)
def test_bad_starts(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(torch.tensor([[9, 3]]), **{"mask_id": 9, **arguments})  # type: ignore[arg-type]


def test_after() -> None:
    state = start(torch.tensor([[9, 9, 5, 6]]), 9, frozen=torch.tensor([[False, False, False, True]]))
    draft = Draft(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    edit = Edit(torch.tensor([[True, False, False, False]]), torch.tensor([[False, False, True, False]]))
    after = state.after(edit, draft)
    assert after.tokens.tolist() == [[1, 9, 9, 6]]
    torch.testing.assert_close(after.confidence, torch.tensor([[0.1, 1, 1, 1]]))
    assert state.tokens.tolist() == [[9, 9, 5, 6]]


@pytest.mark.parametrize("vocabulary", [2, SMALL_VOCABULARY + 1], ids=["read everywhere", "read where asked"])
def test_a_reading_is_laid_out_where_it_was_asked_for(vocabulary: int) -> None:
    """A small vocabulary is read at all positions, and nobody can tell."""
    hidden = torch.tensor([[[0.0, 1.0], [2.0, 0.0]], [[5.0, 5.0], [0.0, 3.0]]])
    where = torch.tensor([[True, False], [False, True]])
    tokens = torch.tensor([[1, 0], [7, 0]])  # 7 is no token of the vocabulary, and nobody asks about it
    reading = Prediction(hidden, lambda rows: rows, vocabulary=vocabulary).read(where)
    assert len(reading.log_probabilities) == (4 if vocabulary == 2 else 2)
    own = reading.spread(reading.of(tokens), fill=-1.0)
    expected = hidden.log_softmax(-1)
    wanted = torch.tensor([[float(expected[0, 0, 1]), -1], [-1, float(expected[1, 1, 0])]])
    torch.testing.assert_close(own, wanted)
    assert reading.spread(reading.take(tokens), fill=9).tolist() == [[1, 9], [9, 0]]


@pytest.mark.parametrize("most", [3, 4, 6])
def test_a_bounded_reading_is_the_same(most: int) -> None:
    """Position 0, which fills the places that are left, was not asked for."""
    torch.manual_seed(0)
    hidden = torch.randn(2, 3, SMALL_VOCABULARY + 1)
    prediction = Prediction(hidden, lambda rows: rows, vocabulary=SMALL_VOCABULARY + 1)
    where = torch.tensor([[False, True, False], [True, False, True]])
    tokens = torch.randint(SMALL_VOCABULARY, (2, 3))
    bounded, asked = prediction.read(where, most), prediction.read(where)
    assert len(bounded.rows) == most
    assert torch.equal(bounded.spread(bounded.of(tokens), 7.0), asked.spread(asked.of(tokens), 7.0))


def test_chunks_change_nothing_and_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    table = torch.randn(300, 8, dtype=torch.float64, requires_grad=True)
    tokens, where = torch.randint(300, (2, 5)), torch.rand(2, 5) < 0.7
    found = []
    for at_once in (1 << 20, 600):
        monkeypatch.setattr(prism.vocabulary, "LOGITS_AT_ONCE", at_once)
        hidden = torch.linspace(-1, 1, 80, dtype=torch.float64).view(2, 5, 8).requires_grad_()
        sizes: list[int] = []

        def unembed(rows: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(len(rows))
            return rows @ table.T

        reading = Prediction(hidden, unembed, vocabulary=300).read(where)
        logs = reading.of(tokens)
        gradients = torch.autograd.grad(logs.square().sum(), [hidden, table])
        assert max(sizes) == (int(where.sum()) if at_once > 600 else 2)
        found.append((logs, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def rows_asked(calls: list[int]) -> Prediction:
    hidden = torch.arange(6.0).reshape(1, 3, 2)

    def unembed(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows @ torch.eye(2, 4)

    return Prediction(hidden, unembed, forbidden=torch.tensor([3]))


def test_prediction_is_lazy() -> None:
    calls: list[int] = []
    prediction = rows_asked(calls)
    assert calls == []
    logs = prediction.log_probabilities(torch.tensor([[False, True, True]]))
    assert calls == [2]
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(2))
    assert (logs[:, 3] == -torch.inf).all()
    assert not prediction.has_quality


def test_raw_logits_are_not_filtered() -> None:
    assert rows_asked([]).logits(torch.tensor([[True, False, False]])).tolist() == [[0, 1, 0, 0]]


def test_a_shifted_model_predicts_the_next_token() -> None:
    hidden = torch.tensor([[[1.0], [2.0], [3.0]]])
    prediction = Prediction(hidden, lambda rows: rows.expand(-1, 2), shift=1)
    assert prediction.logits(torch.ones(1, 3, dtype=torch.bool))[:, 0].tolist() == [1, 1, 2]


def test_quality_is_computed_once_and_only_when_asked_for() -> None:
    calls = []

    def quality_logits() -> Tensor:
        calls.append(1)
        return torch.zeros(1, 3)

    prediction = Prediction(torch.zeros(1, 3, 1), lambda rows: rows, quality_logits=quality_logits)
    assert not calls
    assert prediction.quality.tolist() == [[0.5] * 3]
    assert prediction.quality_logits.tolist() == [[0] * 3]
    assert calls == [1]


def test_no_head_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="attach"):
        _ = rows_asked([]).quality
