"""The DiT against an independent implementation, its parameter counts and its padding."""

import math

import pytest
import torch
from tiny_models import MASK, VOCAB, dit, padding, tokens
from torch import Tensor

from prism.models.dit import DiT, DiTConfig


def reference(weights: dict[str, Tensor], row: Tensor, heads: int, sigma: float) -> tuple[Tensor, Tensor]:
    """One unpadded sequence through MDLM's DiT (Sahoo et al. 2024), written out with loops: (hidden, logits)."""

    def linear(name: str, x: Tensor) -> Tensor:
        bias = weights.get(f"{name}.bias")
        product = torch.einsum("...i,oi->...o", x, weights[f"{name}.weight"])
        return product if bias is None else product + bias

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]

    def silu(x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))

    def gelu_tanh(x: Tensor) -> Tensor:
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def turned(vector: Tensor, position: int) -> Tensor:
        size = len(vector)
        out = torch.empty_like(vector)
        for pair in range(size // 2):
            angle = position * 10_000 ** (-2 * pair / size)
            a, b = vector[pair], vector[pair + size // 2]
            out[pair] = a * math.cos(angle) - b * math.sin(angle)
            out[pair + size // 2] = a * math.sin(angle) + b * math.cos(angle)
        return out

    features = [math.cos(sigma * 10_000 ** (-i / 128)) for i in range(128)]
    features += [math.sin(sigma * 10_000 ** (-i / 128)) for i in range(128)]
    condition = silu(linear("sigma_map.mlp.2", silu(linear("sigma_map.mlp.0", torch.tensor(features)))))

    x = weights["vocab_embed.embedding"][row]
    if "position_embed.embedding" in weights:
        x = x + weights["position_embed.embedding"][: len(row)]
    length, d = x.shape
    size = d // heads
    blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    for block in range(blocks):
        shift1, scale1, gate1, shift2, scale2, gate2 = linear(f"blocks.{block}.adaLN_modulation", condition).split(d)
        qkv = linear(f"blocks.{block}.attn_qkv", norm(f"blocks.{block}.norm1", x) * (1 + scale1) + shift1)
        mixed = torch.zeros(length, d)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            q = torch.stack([turned(qkv[i, :d][part], i) for i in range(length)])
            k = torch.stack([turned(qkv[i, d : 2 * d][part], i) for i in range(length)])
            scores = torch.einsum("ie,je->ij", q, k) / math.sqrt(size)
            attention = torch.exp(scores - scores.max(1, keepdim=True).values)
            attention = attention / attention.sum(1, keepdim=True)
            mixed[:, part] = torch.einsum("ij,je->ie", attention, qkv[:, 2 * d :][:, part])
        x = x + gate1 * linear(f"blocks.{block}.attn_out", mixed)
        inner = norm(f"blocks.{block}.norm2", x) * (1 + scale2) + shift2
        x = x + gate2 * linear(f"blocks.{block}.mlp.2", gelu_tanh(linear(f"blocks.{block}.mlp.0", inner)))
    shift, scale = linear("output_layer.adaLN_modulation", condition).split(d)
    hidden = norm("output_layer.norm_final", x) * (1 + scale) + shift
    return hidden, linear("output_layer.linear", hidden)


@torch.no_grad()
@pytest.mark.parametrize("learned_positions", [False, True])
@pytest.mark.parametrize("time_conditioning", [False, True])
@pytest.mark.parametrize("lengths", [None, [10, 7, 4]])
def test_an_independent_implementation_agrees(lengths, time_conditioning, learned_positions):
    model = dit(time_conditioning=time_conditioning, learned_positions=learned_positions)
    x = tokens()
    x[0, 2:6] = x[1, 3:5] = x[1, 8:] = MASK
    attend = None if lengths is None else padding(lengths)
    hidden = model(x, attend)
    logits = model.unembed(hidden)
    for row, length in enumerate(lengths or [10, 10, 10]):
        share = float((x[row, :length] == MASK).double().mean())
        sigma = -math.log(1 - share) if time_conditioning else 0.0
        expected_hidden, expected = reference(model.state_dict(), x[row, :length], model.config.heads, sigma)
        torch.testing.assert_close(hidden[row, :length], expected_hidden, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits[row, :length], expected, atol=1e-5, rtol=1e-5)


def test_a_position_it_never_learned():
    with pytest.raises(ValueError, match=r"11 tokens .* it knows 10"):
        dit(learned_positions=True, length=10)(tokens(length=11))


@torch.no_grad()
def test_padding_holds_anything_and_changes_nothing():
    model, x, attend = dit(), tokens(), padding([10, 7, 4])
    y = torch.where(attend, x, tokens(seed=9))
    assert torch.equal(model(x, attend)[attend], model(y, attend)[attend])
    alone = model(x[1:2, :7])
    torch.testing.assert_close(model(x, attend)[1:2, :7], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "count"), [(DiTConfig.sudoku(), 28_558_091), (DiTConfig.owt(), 169_627_218)], ids=["sudoku", "owt"]
)
def test_parameter_counts_of_the_paper(config, count):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in DiT(config).parameters()) == count


def test_a_new_model_predicts_uniformly():
    """adaLN-zero and a zero output projection: at the start every logit is 0."""
    fresh = DiT(DiTConfig(vocab_size=VOCAB, mask_id=MASK, length=12, hidden_size=16, blocks=2, heads=2, cond_size=6))
    x = tokens()
    assert not fresh.predict(x).logits(torch.ones_like(x, dtype=torch.bool)).any()


@torch.no_grad()
@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [("cpu", torch.float64, 1e-5), pytest.param("cuda", torch.bfloat16, 0.05, marks=pytest.mark.gpu)],
)
def test_other_dtypes_and_devices_agree_with_float32(device, dtype, tolerance):
    model, x, attend = dit(), tokens(), padding([10, 7, 4])
    exact = model(x, attend)
    other = model.to(device, dtype)(x.to(device), attend.to(device))
    assert other.dtype == dtype
    assert (other.float().cpu() - exact)[attend].abs().mean() < tolerance * exact.abs().mean()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"hidden_size": 18}, "multiple of 2·heads"), ({"mask_id": VOCAB}, "outside the vocabulary")],
)
def test_impossible_configs_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        dit(**settings)


def test_it_keeps_no_cache():
    from prism.models.backbone import Cache

    with pytest.raises(ValueError, match="cache=None"):
        dit()(tokens(), None, Cache())


@pytest.mark.parametrize("time_conditioning", [False, True])
@pytest.mark.parametrize("learns", [True, False])
def test_settled_weights_learn_the_same(time_conditioning, learns):
    """Two passes, each with its way back at once; with a condition that follows the time, or nothing to learn, they are just
    passes. Afterwards the weights are made anew."""
    model = dit(time_conditioning=time_conditioning).double().requires_grad_(learns)
    model.vocab_embed.requires_grad_()
    first, second = tokens(3, 6), tokens(2, 6)

    def loss(x: Tensor) -> Tensor:
        return model(x).square().sum()

    (loss(first) + loss(second)).backward()
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    with model.settled() as made:
        assert bool(made) is not time_conditioning
        loss(first).backward()
        loss(second).backward()
    assert not made
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name])
    before = loss(first)
    with torch.no_grad():
        model.blocks[0].attn_out.weight.mul_(2)
    assert not torch.equal(loss(first), before)
