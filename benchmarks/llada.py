"""PRISM at the size of LLaDA-8B, with random weights: what loading, one training step, the adapter and writing cost.

The checkpoint is written in the hub's format (sharded safetensors, LLaDA's names) and read by the loader that reads the real
one. Training is the recipe's step (LoRA of rank 256 on q, k and v, projection head, k = 8, λ = 0.5). Writing is PRISM with
K_block = 8, the likeliest token, the surest first, one token a step, in sequences of 1,056 positions of which whole blocks in
the middle are timed, with what a cache computes when they begin.

All of it is measured in one process, and every figure is handed over as soon as it is there.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file

import prism
from benchmarks.timing import DEVICE, DTYPE, ON_GPU, memory, timed
from prism.evaluation.record import plain
from prism.models.cached import Cached
from prism.models.folding import for_sampling
from prism.models.hub import load_backbone

TARGETS = ("q_proj", "k_proj", "v_proj")
LOSS = prism.PrismLoss(k=8, regulariser=0.5, order=prism.TopProbability(), draw=prism.Draw(temperature=0.0))
POLICY = prism.Pair(prism.Counted(prism.Confidence()), prism.LowQuality(prism.Centred(8)))
MASKED = 0.5
"""Of the tokens of a training row, on average: t is uniform."""


@dataclass(frozen=True)
class Size:
    model: prism.LlamaConfig
    rank: int = 256
    rows: int = 4
    """Sequences of a training step."""
    length: int = 1024
    """Tokens of one."""
    training_steps: int = 10
    prompt: int = 32
    new_tokens: int = 1024
    block: int = 32
    blocks: int = 2
    """How many blocks are timed."""
    writing: tuple[int, ...] = (1, 8)
    """Sequences written at once."""
    square: int = 8192
    """Of the matrices whose product tells the chip's rate."""
    layers_in_shard: int = 6


LLADA_8B = Size(
    prism.LlamaConfig(
        vocab_size=126_464,
        mask_id=126_336,
        length=4096,
        hidden_size=4096,
        layers=32,
        heads=32,
        kv_heads=32,
        intermediate_size=12_288,
        head_size=128,
        rope_theta=500_000.0,
    )
)
SMALL = Size(
    replace(
        LLADA_8B.model,
        vocab_size=640,
        mask_id=600,
        hidden_size=64,
        layers=3,
        heads=4,
        kv_heads=4,
        intermediate_size=96,
        head_size=16,
    ),
    rank=4,
    rows=2,
    length=48,
    training_steps=4,
    prompt=8,
    new_tokens=64,
    block=8,
    writing=(1, 2),
    square=256,
    layers_in_shard=2,
)


def measure(size: Size, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """The figures so far, again and again with more of them."""
    found: dict[str, Any] = {"size": plain(size), "parameters": parameters(size.model)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "llada"
        found["checkpoint"] = written(size, folder)
        yield found
        backbone, found["loading"] = loaded(folder)
        found["chip"] = {"bf16_tflops" if ON_GPU else "fp32_tflops": chip(size.square)}
        yield found
        torch.manual_seed(0)
        lora = prism.Lora(size.rank, float(size.rank), TARGETS, dropout=0.1)
        model = prism.attach(backbone, prism.ProjectionConfig(size.model.hidden_size), lora=lora)
        found["training"] = {}
        ways = {"recomputed": {"recompute": True}} | ({"compiled": {"compile": True}} if compiled else {"kept": {}})
        for name, how in ways.items():
            found["training"][name] = attempted(partial(training, size, model, Path(scratch), **how))
            yield found
        writer = for_sampling(model.eval(), DTYPE)
        assert isinstance(writer, prism.PrismModel)
        if compiled:
            writer.backbone.compile(dynamic=False)
        found["writing"] = {}
        for rows in size.writing:
            cases = found["writing"][str(rows)] = {}
            for name, make in samplers(writer, size, compiled=compiled).items():
                if rows == 1 or name in (CACHED, UNCACHED):
                    cases[name] = attempted(lambda make=make, rows=rows: writing(size, rows, make()))  # type: ignore[misc]
                    yield found
            if all("tokens_per_second" in cases[name] for name in (CACHED, UNCACHED)):
                cases["times_faster"] = cases[CACHED]["tokens_per_second"] / cases[UNCACHED]["tokens_per_second"]
            torch.compiler.reset()
        found["adapter"] = attempted(lambda: adapter(size, model, Path(scratch) / "corrector"))
    yield found


def attempted(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work finds, or why it failed: minutes of a borrowed GPU shall not be lost with it."""
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def parameters(config: prism.LlamaConfig) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in prism.Llama(config).parameters())


# ── the checkpoint ──────────────────────────────────────────────────────────────────────────────────────────────────


def written(size: Size, folder: Path) -> dict[str, Any]:
    """A checkpoint under LLaDA's names, shard by shard, each made where the model will be."""
    folder.mkdir()
    placed: dict[str, str] = {}

    def write() -> None:
        torch.manual_seed(0)
        for number, shapes in enumerate(shards(size)):
            shard = f"model-{number:05d}.safetensors"
            save_file({name: weight(shape) for name, shape in shapes.items()}, folder / shard, {"format": "pt"})
            placed.update(dict.fromkeys(shapes, shard))

    seconds = timed(write)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "config.json").write_text(json.dumps(hub_config(size.model)))
    size_on_disk = sum(file.stat().st_size for file in folder.iterdir())
    return {"seconds": seconds, "bytes": size_on_disk, "shards": len(set(placed.values()))}


def weight(shape: tuple[int, ...]) -> torch.Tensor:
    """Norms of one, matrices small enough for 32 layers."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=DTYPE)
    return torch.empty(shape, dtype=DTYPE, device=DEVICE).normal_(std=0.02).cpu()


def shards(size: Size) -> Iterator[dict[str, tuple[int, ...]]]:
    """Names and shapes, a few layers at a time."""
    c, root = size.model, "model.transformer"
    d, f, q, kv = c.hidden_size, c.intermediate_size, c.heads * c.head_size, c.kv_heads * c.head_size
    layer = {
        "attn_norm": (d,),
        "q_proj": (q, d),
        "k_proj": (kv, d),
        "v_proj": (kv, d),
        "attn_out": (d, q),
        "ff_norm": (d,),
        "ff_proj": (f, d),
        "up_proj": (f, d),
        "ff_out": (d, f),
    }
    yield {f"{root}.wte.weight": (c.vocab_size, d)}
    for first in range(0, c.layers, size.layers_in_shard):
        numbers = range(first, min(first + size.layers_in_shard, c.layers))
        yield {f"{root}.blocks.{n}.{name}.weight": shape for n in numbers for name, shape in layer.items()}
    yield {f"{root}.ln_f.weight": (d,), f"{root}.ff_out.weight": (c.vocab_size, d)}


def hub_config(c: prism.LlamaConfig) -> dict[str, Any]:
    return {
        "model_type": "llada",
        "d_model": c.hidden_size,
        "embedding_size": c.vocab_size,
        "vocab_size": c.vocab_size,
        "mask_token_id": c.mask_id,
        "max_sequence_length": c.length,
        "mlp_hidden_size": c.intermediate_size,
        "n_heads": c.heads,
        "n_kv_heads": c.kv_heads,
        "n_layers": c.layers,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "weight_tying": False,
    }


def loaded(folder: Path) -> tuple[prism.Backbone, dict[str, Any]]:
    """By the loader of the hub's checkpoints, from files that were just written: the disk's cache holds them."""
    kept: list[prism.Backbone] = []
    seconds = timed(lambda: kept.append(load_backbone(folder, device=DEVICE)))
    gib = sum(weight.nbytes for weight in kept[0].parameters()) / 2**30
    peak = torch.cuda.max_memory_allocated() / 2**30 if ON_GPU else None
    return kept[0], {"seconds": seconds, "gib": gib, "peak_gib": peak, "from": "the disk's cache"}


def chip(square: int) -> float:
    """TFLOP/s of a product of two square matrices: the best of several, since it stands for what the chip can do."""
    a, b = (torch.randn(square, square, device=DEVICE, dtype=DTYPE) for _ in range(2))
    a @ b
    repeats = 10
    spent = [timed(lambda: [a @ b for _ in range(repeats)]) / repeats for _ in range(5)]
    return 2 * square**3 / min(spent) / 1e12


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


def step_flops(size: Size) -> float:
    """Floating-point operations of one PRISM step, a multiply-add being two.

    Counted: both forward passes, and for each the gradients with respect to what goes into every matrix; gradients of weights
    for LoRA and head alone, since the rest is frozen; attention's two products forward and four backward; the vocabulary once
    forward and once backward, at the masks of the first pass; the head at S. Not counted: what is computed again in the
    backward pass or by a second reading of the same logits, and anything that is no matrix product. The first layer's input
    asks for no gradient.
    """
    c, d = size.model, size.model.hidden_size
    q, kv = c.heads * c.head_size, c.kv_heads * c.head_size
    into_attention = d * (q + 2 * kv)
    frozen = c.layers * (into_attention + q * d + 3 * d * c.intermediate_size)
    lora = c.layers * size.rank * (3 * d + q + 2 * kv)
    attention = c.layers * 2 * size.length * q
    forward = frozen + lora + attention
    backward = frozen + 2 * lora + 2 * attention - (into_attention + 3 * size.rank * d)
    vocabulary = 2 * MASKED * d * c.vocab_size
    head = 3 * (d * d + d) * LOSS.k / size.length
    return 2 * size.rows * size.length * (2 * (forward + backward) + vocabulary + head)


def training(
    size: Size, model: prism.PrismModel, scratch: Path, *, recompute: bool = False, compile: bool = False
) -> dict[str, Any]:
    """The recipe's step at `rows` sequences, as `prism.train` takes it; the first steps, which compile and choose kernels, are
    left out."""
    tokens = torch.randint(0, size.model.mask_id, (8 * size.rows, size.length))
    every = max(1, size.training_steps // 5)
    precision = prism.Precision.BF16 if ON_GPU else prism.Precision.FP32
    settings = replace(
        prism.Optimisation(size.training_steps, size.rows, lr=1e-4, weight_decay=0.1, ema=None, precision=precision),
        log_every=every,
        checkpoint_every=size.training_steps,
        recompute=recompute,
        compile=compile,
    )
    speeds: list[float] = []

    def train() -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as run:
            done = prism.train(model, LOSS, prism.Shuffled(tokens.to(DEVICE)), settings, folder=run, progress=False)
        speeds.extend(line["rows_per_second"] for line in done.history if "rows_per_second" in line)

    gib = memory(train)
    seconds = size.rows / median(speeds[1:])
    flops = step_flops(size)
    how = {"recompute": recompute, "compile": compile}
    return {"seconds_per_step": seconds, "flops": flops, "tflops": flops / seconds / 1e12, "peak_gib": gib, **how}


def adapter(size: Size, model: prism.PrismModel, folder: Path) -> dict[str, Any]:
    """Saved, and loaded onto the backbone it was taken off: the same quality to the last bit."""
    tokens = torch.randint(0, size.model.mask_id, (1, size.length), device=DEVICE)

    def quality(judge: prism.PrismModel) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16) if ON_GPU else nullcontext():
            return judge.eval().predict(tokens).quality

    before = quality(model)
    saving = timed(lambda: model.save(folder, base="random weights"))
    backbone, again = model.detach(), []
    loading = timed(lambda: again.append(prism.load(folder, backbone)))
    return {
        "saving_seconds": saving,
        "loading_seconds": loading,
        "bytes": (folder / "adapter_model.safetensors").stat().st_size,
        "same_quality": torch.equal(before, quality(again[0])),
        "quality_spread": float(before.std()),
    }


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

UNCACHED, CACHED = "no cache", "dual cache"
Sampler = Callable[[prism.State, prism.Noise], object]


def samplers(model: prism.PrismModel, size: Size, *, compiled: bool) -> dict[str, Callable[[], Sampler]]:
    """The first two differ in nothing but what a step computes: both are recorded and launched at once (`Prepared`), without a
    cache everything at every step. Step by step: launched kernel by kernel, nothing compiled, as a `Writer` does it."""
    options: dict[str, Any] = {
        "steps": size.block * size.blocks, "block": size.block, "draw": prism.Draw(temperature=0.0)
    }  # fmt: skip

    def step_by_step(**how: bool) -> Sampler:
        def write(state: prism.State, noise: prism.Noise) -> None:
            with torch.compiler.set_stance("force_eager"):  # every block of a prefix cache has a shape of its own
                prism.generate(Cached(model, **how), state, POLICY, noise=noise, **options)

        return write

    return {
        UNCACHED: lambda: prism.Prepared(Cached(model, refresh=1), POLICY, compiled=compiled, **options),
        CACHED: lambda: prism.Prepared(Cached(model), POLICY, compiled=compiled, **options),
        "dual cache, step by step": step_by_step,
        "prefix cache, step by step": lambda: step_by_step(suffix=True),
    }


def writing(size: Size, rows: int, sampler: Sampler) -> dict[str, Any]:
    """Whole blocks in the middle of the text, where a prefix cache computes half of it; the rest is given. One token a step.

    The memory is that of the process: the trained model's own q, k and v, into which LoRA is not worked, are there as well."""
    length, timed_tokens = size.prompt + size.new_tokens, size.block * size.blocks
    first = size.prompt + (size.new_tokens // size.block - size.blocks) // 2 * size.block
    tokens = torch.randint(0, size.model.mask_id, (rows, length), generator=torch.Generator().manual_seed(0))
    tokens[:, first : first + timed_tokens] = size.model.mask_id
    state, noise = prism.start(tokens.to(DEVICE), size.model.mask_id), prism.Noise.rows(0, rows, device=DEVICE)
    gib = memory(lambda: sampler(state, noise))  # this one compiles and records
    seconds = min(timed(lambda: sampler(state, noise)) for _ in range(2))
    return {
        "seconds": seconds,
        "steps": timed_tokens,
        "blocks": size.blocks,
        "milliseconds_per_step": 1000 * seconds / timed_tokens,
        "tokens_per_second": rows * timed_tokens / seconds,
        "peak_gib": gib,
    }
