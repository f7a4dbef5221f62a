"""python -m benchmarks: measure, and write JSON, tables and a plot."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import prism
from benchmarks import llada, recorded
from benchmarks.published import sample_steps, training_loss
from benchmarks.report import write_llada_report, write_report
from benchmarks.timing import DEVICE, DTYPE, ON_GPU, in_turns, memory, timed
from prism.data import sudoku
from prism.evaluation.record import Stopwatch, plain, write_json
from prism.models.folding import for_sampling
from prism.models.heads import HeadConfig
from prism.recording import record
from prism.state import State


@dataclass(frozen=True)
class Sampling:
    name: str
    model: prism.DiTConfig
    rows: int
    steps: int
    nucleus: float
    amount: Any
    eta: float
    """What the slow sampler takes back with."""
    puzzles: bool = False


@dataclass(frozen=True)
class Training:
    name: str
    model: prism.DiTConfig
    head: HeadConfig
    loss: prism.PrismLoss
    rows: int


OWT, SUDOKU = prism.DiTConfig.owt(), prism.DiTConfig.sudoku()
REMASKS = 2.56 / 256
SAMPLING = (
    Sampling("text, 16 sequences", OWT, 16, 256, 0.9, prism.CappedBinomial(REMASKS), REMASKS),
    Sampling("text, 1 sequence", OWT, 1, 256, 0.9, prism.CappedBinomial(REMASKS), REMASKS),
    Sampling("Sudoku, 1000 boards", SUDOKU, 1000, 51, 1.0, prism.Fixed(4), 0.08, puzzles=True),
)
TRAINING = (
    Training("Sudoku, 256 boards", SUDOKU, prism.FinalLayerConfig(512), prism.PrismLoss(k=4, regulariser=5.0), 256),
    Training(
        "text, 16 sequences",
        OWT,
        prism.BlockConfig(768),
        prism.PrismLoss(k=8, ys=4, regulariser=0.5, draw=prism.Draw(nucleus=0.9)),
        16,
    ),
)
LARGE = {"llada": "full_size", "recorded": "recorded"}
"""What has a whole GPU to itself, and the name of its file."""


def small(case: Any) -> Any:
    """The same work in miniature: for a CPU, and for the tests."""
    vocabulary = min(case.model.vocab_size, 8_000)
    length = case.model.length if getattr(case, "puzzles", False) else 64
    case = replace(case, name=f"{case.name} (in miniature)")
    model = replace(
        case.model, vocab_size=vocabulary, mask_id=min(case.model.mask_id, vocabulary - 1), length=length,
        hidden_size=64, blocks=2, heads=2,
    )  # fmt: skip
    if isinstance(case, Sampling):
        return replace(case, model=model, rows=min(case.rows, 8), steps=min(case.steps, 16))
    return replace(
        case, model=model, rows=min(case.rows, 8), head=replace(case.head, hidden_size=64, **_heads(case.head))
    )


def _heads(head: HeadConfig) -> dict[str, int]:
    return {"heads": 2} if isinstance(head, prism.BlockConfig) else {}


def with_head(config: prism.DiTConfig, head: HeadConfig) -> prism.PrismModel:
    """Random weights, none of them zero."""
    torch.manual_seed(0)
    model = prism.attach(prism.DiT(config).to(DEVICE), head, tune_backbone=True)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    return model


def beginning(case: Sampling) -> State:
    if case.puzzles:
        tokens = torch.from_numpy(sudoku.to_tokens(sudoku.puzzles(case.rows, 30, seed=0).puzzle)).long()
    else:
        tokens = torch.full((case.rows, case.model.length), case.model.mask_id)
    return prism.start(tokens.to(DEVICE), case.model.mask_id)


def bare_forward(model: prism.PrismModel, state: State, *, compiled: bool) -> Callable[[], object]:
    """The backbone alone, as fast as we can make it."""
    folded = for_sampling(model.backbone, DTYPE)
    work = torch.compile(folded, dynamic=False) if compiled else folded

    @torch.no_grad()
    def forward() -> None:
        work(state.tokens)

    return record(forward) if ON_GPU else forward


def prepared(
    model: prism.PrismModel, case: Sampling, state: State, remasker: Any, *, compiled: bool
) -> Callable[[], object]:
    policy = prism.Pair(prism.Counted(), remasker)
    sampler = prism.Prepared(
        for_sampling(model, DTYPE), policy, steps=case.steps, draw=prism.Draw(nucleus=case.nucleus), compiled=compiled
    )
    noise = prism.Noise.rows(0, case.rows, device=DEVICE)
    return lambda: sampler(state, noise)


def sampling(case: Sampling, *, compiled: bool, slow: bool = True) -> dict[str, Any]:
    d = case.model.hidden_size
    model, state = with_head(case.model, prism.FinalLayerConfig(d)).eval(), beginning(case)
    block = with_head(case.model, prism.BlockConfig(d, heads=case.model.heads)).eval()
    taking_back = prism.LowQuality(case.amount)
    bare = bare_forward(model, state, compiled=compiled)
    contenders: dict[str, tuple[Callable[[], object], int]] = {
        "bare forward": (lambda: [bare() for _ in range(10)], 10),
        "vanilla": (prepared(model, case, state, prism.Never(), compiled=compiled), case.steps),
        "prism": (prepared(model, case, state, taking_back, compiled=compiled), case.steps),
        "prism, block head": (prepared(block, case, state, taking_back, compiled=compiled), case.steps),
    }
    milliseconds = in_turns(contenders, 3)
    gib = {"prism": memory(contenders["prism"][0])} if ON_GPU else {}
    contenders.clear()
    if slow:
        for name, eta in (("published vanilla", 0.0), ("published prism", case.eta)):
            taken = min(case.steps, 4)
            given = (model, state.tokens, ~state.frozen, taken, case.steps, case.nucleus, eta)
            work = lambda given=given: sample_steps(*given)  # noqa: E731
            milliseconds |= in_turns({name: (work, taken)}, 1)
            gib |= {name: memory(work)} if ON_GPU else {}
    result = {
        "case": plain(case),
        "milliseconds_per_step": milliseconds,
        "gib": gib,
        "over_bare": {name: ms / milliseconds["bare forward"] for name, ms in milliseconds.items()},
        "prism_over_vanilla": milliseconds["prism"] / milliseconds["vanilla"],
        "block_head_over_vanilla": milliseconds["prism, block head"] / milliseconds["vanilla"],
        "forward_passes": case.steps,
        "tokens_per_second": case.rows
        * int((~state.frozen).sum(1).max())
        / (case.steps * milliseconds["prism"] / 1000),
        "seconds_per_batch": case.steps * milliseconds["prism"] / 1000,
    }
    if slow:
        result["published_over_ours"] = milliseconds["published prism"] / milliseconds["prism"]
    return result


def training(case: Training, *, compiled: bool) -> dict[str, Any]:
    tokens = torch.randint(0, case.model.vocab_size, (4 * case.rows, case.model.length)).clamp_min(1)
    tokens[tokens == case.model.mask_id] = 1
    examples = prism.Shuffled(tokens.to(DEVICE))
    steps = 120 if ON_GPU else 4
    settings = prism.Optimisation(
        steps, case.rows, lr=1e-4, ema=0.9999, compile=compiled, log_every=max(1, steps // 4), checkpoint_every=steps,
        precision=prism.Precision.BF16 if ON_GPU else prism.Precision.FP32,
    )  # fmt: skip
    measured: dict[str, list[float]] = {"ours": [], "published": []}

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = with_head(case.model, case.head)
            done = prism.train(model, case.loss, examples, settings, folder=folder, progress=False)
        speeds = [line["rows_per_second"] for line in done.history if "rows_per_second" in line]
        measured["ours"] += [1000 * case.rows / speed for speed in speeds[1:]]  # the first one holds the warm-up

    def published() -> None:
        model = with_head(case.model, case.head).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        batch, loss = tokens[: case.rows].to(DEVICE), case.loss

        def step() -> None:
            given = (model, batch, loss.k, loss.ys, loss.regulariser, loss.draw.nucleus)
            training_loss(*given).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        measured["published"] += [1000 * timed(step) for _ in range(4)][1:]

    gib: dict[str, float | None] = {}
    for _ in range(1 if ON_GPU else 3):  # a CPU may be shared with other work: in turns, so that it hits both
        gib |= {"ours": memory(ours), "published": memory(published)}
    found = {name: median(times) for name, times in measured.items()}
    return {
        "case": plain(case),
        "milliseconds_per_step": found,
        "gib": gib,
        "published_over_ours": found["published"] / found["ours"],
    }


def growth(*, tiny: bool) -> dict[str, Any]:
    """Time of a step against batch, length and vocabulary, beside the bare forward pass; recorded, not compiled."""
    base = small(SAMPLING[0]) if tiny else replace(SAMPLING[0], rows=8, steps=32)
    points = {
        "batch": [replace(base, rows=rows) for rows in ((1, 4) if tiny else (1, 2, 4, 8, 16, 32))],
        "length": [
            replace(base, model=replace(base.model, length=length))
            for length in ((32, 64) if tiny else (128, 256, 512, 1024, 2048))
        ],
        "vocabulary": [
            replace(base, model=replace(base.model, vocab_size=size, mask_id=size - 1))
            for size in ((1_000, 4_000) if tiny else (2_000, 8_000, 32_000, 64_000, 128_000))
        ],
    }
    return {axis: [_point(axis, case) for case in cases] for axis, cases in points.items()}


def _point(axis: str, case: Sampling) -> dict[str, float]:
    model, state = with_head(case.model, prism.FinalLayerConfig(case.model.hidden_size)).eval(), beginning(case)
    bare = bare_forward(model, state, compiled=False)
    every_row = prism.Pair(prism.Counted(prism.Margin()), prism.LowQuality(case.amount))
    all_rows = prism.Prepared(
        for_sampling(model, DTYPE), every_row, steps=case.steps, draw=prism.Draw(nucleus=case.nucleus)
    )
    noise = prism.Noise.rows(0, case.rows, device=DEVICE)
    contenders: dict[str, tuple[Callable[[], object], int]] = {
        "bare forward": (lambda: [bare() for _ in range(10)], 10),
        "prism": (prepared(model, case, state, prism.LowQuality(case.amount), compiled=False), case.steps),
        "prism, margin order": (lambda: all_rows(state, noise), case.steps),
    }
    value = {"batch": case.rows, "length": case.model.length, "vocabulary": case.model.vocab_size}[axis]
    return {"value": value, **in_turns(contenders, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=sys.modules["benchmarks"].__doc__)
    parser.add_argument(
        "--only",
        default="sampling,training,growth",
        help="parts to measure, separated by commas; or llada (20 GB of disk) or recorded, alone: an 8B model with random "
        "weights",
    )
    parser.add_argument(
        "--case", default="", help="only cases whose name contains this; not the growth, which has none"
    )
    parser.add_argument("--small", action="store_true", help="in miniature: minutes on a CPU")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=ON_GPU,
        help="compile our steps (GPU)",
    )
    parser.add_argument(
        "--output", type=Path, help="where JSON, tables and plot go; results/speed or results/llada if left out"
    )
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - {"sampling", "training", "growth", *LARGE}:
        known = ", ".join(("sampling", "training", "growth", *LARGE))
        parser.error(f"--only {','.join(sorted(unknown))}: choose among {known}.")
    if LARGE.keys() & set(parts) and len(parts) > 1:
        parser.error(f"--only {options.only}: {' and '.join(LARGE)} need the whole GPU; measure them alone.")
    measured: list[tuple[str, Any, Callable[..., dict[str, Any]]]] = [
        *(("sampling", case, sampling) for case in SAMPLING if "sampling" in parts),
        *(("training", case, training) for case in TRAINING if "training" in parts),
    ]
    chosen = [one for one in measured if options.case in one[1].name]
    if options.case and not chosen:
        names = "; ".join(case.name for _, case, _ in measured)
        parser.error(f"--case {options.case!r} is in no name: {names or 'there are no cases in ' + options.only}.")
    if options.compile and not ON_GPU:
        parser.error("--compile needs a GPU; leave it out.")
    clock = Stopwatch()
    [part, *_] = parts
    options.output = options.output or Path("results") / ("llada" if part in LARGE else "speed")
    if part in LARGE:
        size = llada.SMALL if options.small else llada.LLADA_8B
        measure_large = llada.measure if part == "llada" else recorded.measure
        figures = measure_large(size, compiled=options.compile)
        for found in figures:
            write_json(options.output / f"{LARGE[part]}.json", found | {"record": _about(clock, options)})
            print(f"{clock.seconds:.0f} s: {', '.join(found)}", flush=True)
        print(f"wrote {write_llada_report(options.output)}")
        return
    if not ON_GPU and not options.small:
        print(
            "There is no GPU here, and the models are of full size: this takes hours; --small takes minutes.",
            flush=True,
        )
    for part, case, measure in chosen:
        print(f"{clock.seconds:.0f} s: {part}, {case.name}", flush=True)
        torch.compiler.reset()
        found = measure(small(case) if options.small else case, compiled=options.compile)
        name = f"{part}_{case.name}".lower().replace(",", "").replace(" ", "_")
        write_json(options.output / f"{name}.json", found | {"record": _about(clock, options)})
        print(name, {key: round(value, 3) for key, value in found["milliseconds_per_step"].items()}, flush=True)
    if "growth" in parts and not options.case:
        print(f"{clock.seconds:.0f} s: growth", flush=True)
        write_json(options.output / "growth.json", growth(tiny=options.small) | {"record": _about(clock, options)})
    print(f"wrote {write_report(options.output)}")


def _about(clock: Stopwatch, options: argparse.Namespace) -> Any:
    record = clock.record("python -m benchmarks", vars(options) | {"output": str(options.output)}, seed=0)
    device = torch.cuda.get_device_name() if ON_GPU else record.device
    return plain(replace(record, device=device, dtype=str(DTYPE).removeprefix("torch.")))


if __name__ == "__main__":
    main()
