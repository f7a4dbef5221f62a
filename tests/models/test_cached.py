"""Caches: exact where they must be, and never a mask left where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_llama import SCALING, VOCABULARY, both_ways
from torch import Tensor

import prism
from prism.models.backbone import Cache
from prism.models.cached import Cached
from prism.state import State

MASK = 3


def model(*, shifted: bool = False, odds: bool = False) -> prism.PrismModel:
    backbone = both_ways(shifted=shifted)
    judged = prism.attach(backbone, prism.OddsConfig(24, heads=2) if odds else prism.ProjectionConfig(24))
    for weight in judged.quality_head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return judged.eval()


def coupled(*, shifted: bool) -> prism.PrismModel:
    """One in which every token matters to every other, so that what is computed too seldom or too often shows."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "layers": 3, "heads": 4, "kv_heads": 4, "intermediate_size": 32, "head_size": 8}
    backbone = prism.Llama(prism.LlamaConfig(vocab_size=VOCABULARY, mask_id=MASK, length=32, shifted=shifted, **sizes))
    judged = prism.attach(backbone, prism.ProjectionConfig(32))
    for weight in judged.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.5)
    return judged.eval().double()


def gaps() -> State:
    """Every other position to be filled, of a short row and a long one: no two of a block are neighbours."""
    tokens = torch.randint(4, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(1))
    tokens[0, 1:14:2] = tokens[1:, 1::2] = MASK
    return prism.start(tokens, MASK)


def prompts() -> State:
    """Unequal prompts, one of them with a gap to be filled, and one row padded."""
    tokens = torch.randint(4, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(0))
    tokens[0, 5:] = MASK
    tokens[1, 9:] = MASK
    tokens[2, 2:4] = tokens[2, 12:18] = MASK
    return prism.start(tokens, MASK, lengths=torch.tensor([20, 20, 18]))


POLICY = prism.Pair(prism.Counted(prism.Margin()), prism.LowQuality(prism.Centred(3)))


def generated(denoiser: object, block: int | None = 4) -> Tensor:
    return prism.generate(denoiser, prompts(), POLICY, steps=16, block=block, noise=prism.Noise.rows(0, 3)).tokens


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "rope_scaling": SCALING}], ids=str)
def test_computing_every_position_against_a_cache_is_computing_everything(changes: dict[str, Any]) -> None:
    """In any order, each row its own."""
    backbone = both_ways(**changes)
    x = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    attend = torch.arange(9) < torch.tensor([[9], [7], [4]])
    cache = Cache()
    backbone(torch.randint(VOCABULARY, (3, 9)), attend, cache)
    cache.positions = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(row)) for row in range(3)])
    torch.testing.assert_close(backbone(x, attend, cache)[attend], backbone(x, attend)[attend], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("block", [4, None])
@pytest.mark.parametrize("odds", [False, True])
def test_refreshed_at_every_step_it_is_the_uncached_run(block: int | None, shifted: bool, odds: bool) -> None:
    judged = model(shifted=shifted, odds=odds)
    assert torch.equal(generated(Cached(judged, refresh=1), block), generated(judged, block))


def test_one_block_needs_no_cache() -> None:
    """Everything that can change is computed at every step."""
    free = prism.start(torch.full((2, 12), MASK), MASK)
    found, expected = (
        prism.generate(denoiser, free, POLICY, steps=6, noise=prism.Noise.rows(0, 2)).tokens
        for denoiser in (Cached(model()), model())
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("suffix", [False, True])
def test_a_cached_run_ends_without_masks_and_can_be_repeated(suffix: bool, shifted: bool) -> None:
    """Also with the same object, whose cache then holds another run."""
    cached = Cached(model(shifted=shifted), suffix=suffix)
    first = generated(cached)
    assert not ((first == MASK) & ~prompts().frozen).any()
    assert torch.equal(generated(cached), first)
    assert torch.equal(generated(Cached(model(shifted=shifted), suffix=suffix)), first)


def test_only_the_block_is_computed() -> None:
    """All of it when a block begins, its four positions in between."""
    widths: list[int] = []
    judged = model()
    judged.backbone.layers[0].register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
    tokens = torch.full((2, 20), MASK)
    tokens[:, :4] = 7
    prism.generate(Cached(judged), prism.start(tokens, MASK), POLICY, steps=16, block=4, noise=prism.Noise.rows(0, 2))
    assert widths == [20, 4, 4, 4] * 4


SURE = prism.Pair(prism.Threshold(0.02), prism.LowQuality(prism.Centred(1)))


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("refresh", [None, 1, 3])
@pytest.mark.parametrize("odds", [False, True])
def test_a_prepared_cache_is_the_loop_s(refresh: int | None, shifted: bool, odds: bool) -> None:
    """Without counting positions, as on a GPU; batch after batch, and rows that finish their blocks at different steps."""
    judged = model(shifted=shifted, odds=odds).double()
    for policy in (POLICY, SURE):
        same_as_the_loop(judged, policy, prompts(), refresh)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("policy", [POLICY, SURE, prism.Revisiting(POLICY, 2)], ids=["prism", "sure", "revisiting"])
def test_a_prepared_cache_is_the_loop_s_wherever_the_masks_are(policy: prism.Policy, shifted: bool) -> None:
    """Prompts, then gaps, of which a block takes more positions: each with the one to its left."""
    same_as_the_loop(coupled(shifted=shifted), policy, prompts(), None, gaps())


def same_as_the_loop(
    judged: prism.PrismModel, policy: prism.Policy, first: State, refresh: int | None, *more: State
) -> None:
    options = {"steps": 16, "block": 4, "draw": prism.Draw(temperature=0.0)}
    prepared = prism.Prepared(Cached(judged, refresh=refresh), policy, waits=False, **options)
    for seed, state in enumerate((first, first, *more)):
        noise = prism.Noise.rows(seed, 3)
        found = prepared(state, noise)
        expected = prism.generate(Cached(judged, refresh=refresh), state, policy, noise=noise, **options)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.forwards, expected.forwards)
        assert torch.equal(found.remasks, expected.remasks)


@pytest.mark.parametrize("suffix", [False, True])
def test_a_row_knows_no_more_in_company(suffix: bool) -> None:
    """Blocks begin together, and the last one of the second row is shorter."""
    judged, tokens = coupled(shifted=False), torch.randint(4, VOCABULARY, (2, 20))
    tokens[0, 8:] = tokens[1, 10:] = MASK
    options = {"steps": 12, "block": 4, "draw": prism.Draw(temperature=0.0)}
    noise = prism.Noise.rows(0, 2)

    def written(rows: slice) -> Tensor:
        state = prism.start(tokens[rows], MASK)
        return prism.generate(
            Cached(judged, suffix=suffix), state, POLICY, noise=prism.Noise(noise.keys[rows]), **options
        ).tokens

    assert torch.equal(written(slice(2)), torch.cat([written(slice(1)), written(slice(1, 2))]))


def test_a_prepared_cache_computes_the_block_alone() -> None:
    widths: list[int] = []
    judged = model()
    judged.backbone.layers[0].register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
    tokens = torch.full((2, 20), MASK)
    tokens[:, :4] = 7
    prism.Prepared(Cached(judged), POLICY, steps=16, block=4)(prism.start(tokens, MASK), prism.Noise.rows(0, 2))
    assert widths == [20, 4, 4, 4] * 4


def test_a_block_reads_no_vocabulary_outside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may be counted, a block's size is bound enough; for the quality head too."""
    rows: list[int] = []
    judged = model()
    unembed = judged.backbone.unembed
    monkeypatch.setattr(judged.backbone, "unembed", lambda hidden: (rows.append(len(hidden)), unembed(hidden))[1])
    monkeypatch.setattr("prism.state.SMALL_VOCABULARY", 1)
    state = prism.start(torch.full((2, 20), MASK), MASK)
    policy = prism.Pair(prism.Counted(prism.Confidence()), prism.LowQuality(prism.Centred(1)))
    judged.quality_head.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[:2].numel()))
    prism.Prepared(judged, policy, steps=20, block=4, waits=False)(state, prism.Noise.rows(0, 2))
    assert set(rows) == {2 * 4}


def test_what_has_no_cache_says_so() -> None:
    with pytest.raises(ValueError, match="This model keeps no cache"):
        Cached(prism.DiT(prism.DiTConfig(vocab_size=5, mask_id=0, length=4, hidden_size=8, blocks=1, heads=2)))
    with pytest.raises(ValueError, match="This Cached computes more at one step and less at another"):
        prism.Prepared(Cached(model(), suffix=True), POLICY, steps=4)
    with pytest.raises(ValueError, match="refresh=0 must be at least 1"):
        Cached(model(), refresh=0)
