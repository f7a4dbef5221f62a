"""What must hold on a GPU: the same numbers, the same tokens, a training run that ends. Run with `pytest -m gpu`, and what
compiles with `pytest -o addopts=--import-mode=importlib tests/test_gpu.py`, without the shape checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from stand_ins import tiny_truth

import prism
from prism.data.shards import Stream
from prism.data.writing import Numbers
from prism.models.cached import Cached
from prism.models.causal import Causal
from prism.models.folding import for_sampling
from prism.noise import Purpose

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch 2.11's compiler looks at it wherever a compiled piece is given what another one made
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
compiles = pytest.mark.skipif(
    hasattr(prism.generate, "__wrapped__"), reason="torch.compile does not see through the shape checks of the test run"
)


def tiny(dropout: float = 0.1, vocabulary: int = 11) -> prism.PrismModel:
    torch.manual_seed(0)
    config = prism.DiTConfig(
        vocab_size=vocabulary, mask_id=0, length=32, hidden_size=64, blocks=2, heads=4, dropout=dropout
    )
    backbone = prism.DiT(config)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return prism.attach(backbone, prism.FinalLayerConfig(64), tune_backbone=True).eval()


def test_noise_is_the_same_on_every_device() -> None:
    here = prism.Noise.rows(3, 5).at(2).uniform(Purpose.TOKEN, 100)
    there = prism.Noise.rows(3, 5, device="cuda").at(2).uniform(Purpose.TOKEN, 100)
    assert torch.equal(here, there.cpu())


def test_text_read_ahead_is_the_same_on_the_gpu() -> None:
    stream = Stream(tuple(np.arange(start, start + 10_000, dtype="<u2") for start in (0, 10_000, 20_000)))
    here, there = (prism.TextWindows(stream, length=96) for _ in range(2))
    for step in range(40):
        rows = range(step * 16, step * 16 + 16)
        batch = there.batch(rows, torch.device("cuda"))
        assert torch.equal(batch.tokens.cpu(), here.read(rows))


@pytest.mark.parametrize(("rough", "error"), [(False, 1e-4), (True, 3e-2)])
def test_a_recorded_truth_writes_what_it_says(rough: bool, error: float) -> None:
    """Two batches, so that the recording is replayed; a vocabulary long enough for the kernel that draws."""
    truth = tiny_truth(5_000)
    truth = Causal(truth.llama.cuda(), truth.start)
    batches = (prism.Noise.rows(0, 64, first=first, device="cuda") for first in (0, 64))
    for tokens, logs in truth.writing(batches, truth.llama.config.length, prism.Draw(), rough=rough):
        torch.testing.assert_close(truth.log_likelihood(tokens), logs, atol=error, rtol=0)
        assert len(tokens.unique(dim=0)) == 64


@pytest.mark.parametrize("method", prism.METHODS, ids=lambda method: method.name)
def test_every_method_writes_the_same_tokens_on_the_gpu(method: prism.sampling.policies.Method) -> None:
    # half of it given: in a sequence of masks alone all positions are alike, and rounding would choose between them
    tokens = torch.randint(1, 11, (4, 32), generator=torch.Generator().manual_seed(0)) * (torch.arange(32) % 2)
    model = tiny().double()
    policy = method.build(prism.Settings(amount=prism.Fixed(2)))
    here = prism.generate(model, prism.start(tokens, 0), policy, steps=8, noise=prism.Noise.rows(1, 4))
    model, noise = model.cuda(), prism.Noise.rows(1, 4, device="cuda")
    there = prism.generate(model, prism.start(tokens.cuda(), 0), policy, steps=8, noise=noise)
    assert torch.equal(here.tokens, there.tokens.cpu())


@pytest.mark.parametrize("vocabulary", [11, 300])
@pytest.mark.parametrize("method", prism.METHODS, ids=lambda method: method.name)
def test_a_recorded_sampler_is_the_loop(method: prism.sampling.policies.Method, vocabulary: int) -> None:
    model = tiny(vocabulary=vocabulary).double().cuda()
    policy = method.build(prism.Settings(amount=prism.Fixed(2)))
    draw = prism.Draw(nucleus=0.9)
    prepared = prism.Prepared(model, policy, steps=8, draw=draw)
    for seed in (0, 1):
        tokens = torch.randint(1, 11, (4, 32), generator=torch.Generator().manual_seed(seed)) * (torch.arange(32) % 2)
        state, noise = prism.start(tokens.cuda(), 0), prism.Noise.rows(seed, 4, device="cuda")
        found = prepared(state, noise)
        expected = prism.generate(model, state, policy, steps=8, noise=noise, draw=draw)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.forwards, expected.forwards)


@compiles
@pytest.mark.parametrize("name", ["vanilla", "prism", "remdm-cap", "p2-self"])
def test_a_compiled_sampler_is_the_loop(name: str) -> None:
    """Its 64-bit noise too, which the compiler for CPUs gets wrong."""
    model = tiny(vocabulary=300).double().cuda()
    policy = next(method for method in prism.METHODS if method.name == name).build(
        prism.Settings(amount=prism.Fixed(2))
    )
    tokens = torch.randint(1, 11, (4, 32), generator=torch.Generator().manual_seed(0)) * (torch.arange(32) % 2)
    state, noise = prism.start(tokens.cuda(), 0), prism.Noise.rows(0, 4, device="cuda")
    found = prism.Prepared(model, policy, steps=8, compiled=True)(state, noise)
    assert torch.equal(found.tokens, prism.generate(model, state, policy, steps=8, noise=noise).tokens)


@compiles
def test_odds_read_by_the_kernel() -> None:
    """In float32 and a vocabulary that is not small: as on a CPU, and in a compiled sampler."""
    judged = prism.attach(tiny(vocabulary=300).detach(), prism.OddsConfig(64, heads=2)).eval()
    assert judged.quality_head is not None
    for weight in judged.quality_head.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(0))
    x = torch.randint(1, 300, (4, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = judged.predict(x).quality_logits
        judged.cuda()
        torch.testing.assert_close(judged.predict(x.cuda()).quality_logits.cpu(), expected, atol=1e-2, rtol=1e-2)
    state, noise = prism.start(torch.zeros_like(x).cuda(), 0), prism.Noise.rows(0, 4, device="cuda")
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(2)))
    found = prism.Prepared(for_sampling(judged, torch.bfloat16), policy, steps=8, compiled=True)(state, noise)
    assert (found.tokens > 0).all()
    assert (found.remasks > 0).all()


def test_a_folded_model_in_bf16_is_close() -> None:
    model = tiny().cuda()
    folded = for_sampling(model, torch.bfloat16)
    x = torch.randint(11, (4, 32), device="cuda")
    everywhere = torch.ones_like(x, dtype=torch.bool)
    with torch.no_grad():
        with torch.autocast("cuda", torch.bfloat16):
            expected = (
                model.predict(x).logits(everywhere).float()[:, 1:]
            )  # the mask is forbidden in one and not in the other
        error = (folded.predict(x).logits(everywhere).float()[:, 1:] - expected).abs().mean()
    assert error < 0.02 * expected.abs().mean()


def few_rows(rows: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and uniform numbers of rows flat and sharp, with the smallest and the largest number, and padding."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.3, 6.0, rows)[:, None]
    logits = (spread * torch.randn(rows, vocabulary, generator=generator)).bfloat16()
    uniforms = torch.rand(rows, dtype=torch.float64, generator=generator)
    uniforms[0], uniforms[1], uniforms[2] = 2.0**-53, 1 - 2.0**-53, -1.0
    logits[3, : vocabulary // 2] = -torch.inf  # pieces that weigh nothing
    return logits.cuda(), uniforms.cuda()


@compiles
@pytest.mark.parametrize("rows", [5, 400])  # 400 rows in pieces are more programs than the chip has places for
@pytest.mark.parametrize(("vocabulary", "nucleus"), [(300, 0.9), (5_001, 0.9), (50_258, 0.9), (50_258, 1.0)])
def test_rows_in_pieces_draw_the_same_tokens(vocabulary: int, nucleus: float, rows: int) -> None:
    """Also where pieces have no block of their own."""
    from prism.sampling.kernel import _launch

    logits, uniforms = few_rows(rows, vocabulary, seed=0)
    drawn = uniforms >= 0
    expected = prism.Draw(nucleus=nucleus).tokens(logits, uniforms)
    whole, log_probabilities = _launch(logits, uniforms, 1.0, nucleus, False, 1)
    assert torch.equal(whole[drawn], expected[drawn])
    for pieces in (2, 6, 8):
        tokens, found = _launch(logits, uniforms, 1.0, nucleus, False, pieces)
        assert torch.equal(tokens[drawn], expected[drawn]), (pieces, tokens, expected)
        assert ((tokens >= 0) & (tokens < vocabulary)).all()
        torch.testing.assert_close(found[drawn], log_probabilities[drawn])


@compiles
def test_rows_in_pieces_can_be_recorded() -> None:
    """What the pieces meet by begins anew in every replay."""
    from prism.sampling.kernel import _pieces, draw

    logits, uniforms = few_rows(20, 50_258, seed=0)
    assert 1 < _pieces(logits) <= 16
    draw(logits, uniforms, 1.0, 0.9, False)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = draw(logits, uniforms, 1.0, 0.9, False)
        again, _ = draw(logits, uniforms, 1.0, 0.9, False)
    for seed in (1, 2):
        others, numbers = few_rows(20, 50_258, seed)
        logits.copy_(others)
        uniforms.copy_(numbers)
        graph.replay()
        drawn = uniforms >= 0
        expected = prism.Draw(nucleus=0.9).tokens(logits, uniforms)
        assert torch.equal(tokens[drawn], expected[drawn])
        assert torch.equal(again[drawn], expected[drawn])


@compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # float32 is what makes the two comparable
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # dynamo looks at it, and hides the warning unless it is an error
def test_a_recorded_step_is_the_step(tmp_path: Path) -> None:
    """The same losses and weights as launching every kernel."""
    settings = prism.Optimisation(steps=6, batch=32, lr=1e-3, muon_lr=1e-3, log_every=1)
    examples = prism.Shuffled(torch.randint(1, 11, (256, 32), generator=torch.Generator().manual_seed(0)))
    runs = {}
    for name, compiled in (("plain", False), ("recorded", True)):
        model = tiny(dropout=0.0)
        folder = tmp_path / name
        trained = prism.train(
            model, prism.PrismLoss(k=2), examples, replace(settings, compile=compiled), folder=folder, progress=False
        )
        runs[name] = [line["loss"] for line in trained.history], [p.detach().clone() for p in model.parameters()]
    assert runs["recorded"][0] == pytest.approx(runs["plain"][0], rel=1e-3)
    for one, other in zip(runs["recorded"][1], runs["plain"][1], strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)


@compiles
def test_training_in_bf16_and_compiled(tmp_path: Path) -> None:
    model = tiny()
    settings = prism.Optimisation(steps=20, batch=64, precision=prism.Precision.BF16, compile=True, log_every=5)
    examples = prism.Shuffled(torch.randint(1, 11, (256, 32)))
    trained = prism.train(model, prism.PrismLoss(k=2), examples, settings, folder=tmp_path / "run", progress=False)
    first = next(line["loss"] for line in trained.history if "loss" in line)
    assert trained.last("loss") < first
    assert next(model.parameters()).is_cuda


def test_bf16_sampling_ends_without_masks() -> None:
    model = tiny().to("cuda", torch.bfloat16)
    state = prism.start(torch.zeros(16, 32, dtype=torch.long, device="cuda"), 0)
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(2)))
    result = prism.generate(model, state, policy, steps=16, noise=prism.Noise.rows(0, 16, device="cuda"))
    assert not (result.tokens == 0).any()


def llama(layers: int = 3) -> prism.PrismModel:
    """A small LLaDA with LoRA and a head that are not zero, and a vocabulary too large to be read everywhere."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "heads": 4, "kv_heads": 4, "intermediate_size": 96, "head_size": 16}
    backbone = prism.Llama(prism.LlamaConfig(vocab_size=300, mask_id=0, length=64, layers=layers, **sizes))
    targets = ("q_proj", "k_proj", "v_proj")
    model = prism.attach(backbone, prism.ProjectionConfig(64), lora=prism.Lora(4, 4.0, targets))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.15)
    return model.cuda().eval()


def half_given(seed: int) -> prism.State:
    tokens = torch.randint(1, 300, (4, 32), generator=torch.Generator().manual_seed(seed))
    return prism.start((tokens * (torch.arange(32) < 12)).cuda(), 0)


CORRECTING = prism.Pair(prism.Counted(prism.Confidence()), prism.LowQuality(prism.Centred(3)))


@pytest.mark.parametrize("refresh", [None, 3])
def test_a_recorded_cache_is_the_loop_s(refresh: int | None) -> None:
    """Two recordings that share memory, run after run."""
    model = for_sampling(llama(), torch.float64)
    options = {"steps": 20, "block": 5, "draw": prism.Draw(temperature=0.0)}
    prepared = prism.Prepared(Cached(model, refresh=refresh), CORRECTING, **options)
    for seed in (0, 1, 2):
        state, noise = half_given(seed), prism.Noise.rows(seed, 4, device="cuda")
        found = prepared(state, noise)
        expected = prism.generate(Cached(model, refresh=refresh), state, CORRECTING, noise=noise, **options)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.forwards, expected.forwards)
        assert torch.equal(found.remasks, expected.remasks)


@pytest.mark.parametrize("look_back", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_recorded_steps_write_the_same_texts(cached: bool, look_back: bool) -> None:
    """Prompts of unequal length, and blocks that take up earlier ones again."""
    model = for_sampling(llama(), torch.float64)
    policy = prism.Revisiting(CORRECTING, 2) if look_back else CORRECTING
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12], [13]]
    written = []
    for recorded in (False, True):
        writer = prism.Writer(
            Cached(model) if cached else model,
            Numbers(300),
            policy,
            new_tokens=20,
            block=5,
            draw=prism.Draw(temperature=0.0),
            recorded=recorded,
            device="cuda",
        )
        written.append([(w.tokens, w.forwards, w.remasks) for w in writer(prompts)])
    assert written[0] == written[1]


def test_a_fused_llama_in_bf16_is_close() -> None:
    model = llama()
    x = torch.randint(300, (4, 32), device="cuda")
    with torch.no_grad():
        expected = model.predict(x).hidden
        found = for_sampling(model, torch.bfloat16).predict(x).hidden.float()
    assert (found - expected).abs().mean() < 0.02 * expected.abs().mean()


@compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_compiled_and_recorded_cache_is_close_to_the_loop_s() -> None:
    """The pieces of all layers compiled once, and the decision; kernels round otherwise, so a token may be another."""
    model = for_sampling(llama(layers=10), torch.float32)
    options = {"steps": 20, "block": 5, "draw": prism.Draw(temperature=0.0)}
    state, noise = half_given(0), prism.Noise.rows(0, 4, device="cuda")
    expected = prism.generate(Cached(model), state, CORRECTING, noise=noise, **options)
    torch.compiler.reset()
    model.backbone.compile(dynamic=False)
    found = prism.Prepared(Cached(model), CORRECTING, compiled=True, **options)(state, noise)
    assert not (found.tokens == 0).any()
    assert (found.tokens == expected.tokens).float().mean() > 0.9


@compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("recompute", [False, True])
def test_layers_compiled_one_by_one_train_alike(tmp_path: Path, recompute: bool) -> None:
    examples = prism.Shuffled(torch.randint(1, 300, (64, 32), generator=torch.Generator().manual_seed(0)))
    settings = prism.Optimisation(steps=4, batch=8, lr=1e-3, ema=None, log_every=1)
    losses = []
    for number, how in enumerate(({}, {"compile": True, "recompute": recompute})):
        own = replace(settings, **how)
        trained = prism.train(
            llama(10), prism.PrismLoss(k=2), examples, own, folder=tmp_path / str(number), progress=False
        )
        losses.append([line["loss"] for line in trained.history if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
