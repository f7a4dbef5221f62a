"""What the Sudoku study asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from prism.data import sudoku
from prism.evaluation.calibration import Judgements, Witness, auroc, reliability
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import bootstrap_mean, bootstrap_ratio, paired_difference
from prism.evaluation.sudoku import SudokuRun, puzzle_state
from prism.models.judge import Judged
from prism.noise import Noise
from prism.recipes.reproduce.sudoku import VARIANTS, SudokuStudy
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate
from prism.sampling.prepared import Prepared
from prism.state import Step

ORDERS = ("random", "margin")
TRAINING_FREE = (
    Sampling("vanilla"),
    Sampling("random", k=4),
    Sampling("remdm-cap"),
    Sampling("remdm-loop"),
    Sampling("remdm-conf"),
    Sampling("remdm-conf-topk", k=4),
    Sampling("p2-self", k=4),
)
PRISM = tuple(Sampling("prism", k=k) for k in (1, 2, 4, 8))
LIKELIHOOD = (Sampling("vanilla"), Sampling("prism-likelihood", k=4), Sampling("prism-entropy", k=4))


def name_of(sampling: Sampling) -> str:
    parts = [f"K={sampling.k}"] if sampling.k is not None else []
    parts += [f"p<{sampling.doubt:g}"] if sampling.doubt is not None else []
    return " ".join([sampling.policy, *parts])


def _row(
    run: SudokuRun, sampling: Sampling, puzzles: str, baseline: SudokuRun | None = None, **about: Any
) -> dict[str, Any]:
    row = {"puzzles": puzzles, "method": name_of(sampling), "order": sampling.order, "steps": sampling.steps}
    if baseline is not None:
        gain = paired_difference(run.solved.astype(float), baseline.solved.astype(float))
        about |= {"gain": gain.value, "gain_interval": [gain.low, gain.high]}
    return {**row, **run.summary(), **about}


def fine_tuning(study: SudokuStudy) -> dict[str, Any]:
    """Success over the epochs of fine-tuning (the paper's left figure), with what it cost."""
    story, before = study.workshop.story(study.tuned()), study.workshop.story(study.pretrained())
    boards = study.scale.finetuning.batch / study.scale.boards
    points = [
        {"step": line["step"], "epoch": line["step"] * boards}
        | {name.removeprefix("evaluation/"): value for name, value in line.items() if name.startswith("evaluation/")}
        for line in story["history"]
        if "evaluation/loss" in line
    ]
    return {
        "puzzles_per_point": {kind: min(study.scale.watched, len(found)) for kind, found in study.puzzles.items()},
        "points": points,
        "chosen": story["chosen"],
        "record": story["record"],
        "pretraining": {"chosen": before["chosen"], "record": before["record"]},
    }


def methods(steps: int) -> Callable[[SudokuStudy], dict[str, Any]]:
    """Every method at N = `steps`, in both orders, on all puzzles, with the same weights."""

    def measure(study: SudokuStudy) -> dict[str, Any]:
        clock, rows = Stopwatch(), []
        for path, contenders in ((study.tuned(), TRAINING_FREE + PRISM), (study.likelihood_tuned(), LIKELIHOOD)):
            model = study.load(path)
            study.solve(model, study.puzzles["own"][: study.scale.at_once], replace(contenders[0], steps=2))  # compiles
            for kind, order in ((kind, order) for kind in study.puzzles for order in ORDERS):
                baseline = None
                for contender in contenders:
                    sampling = replace(contender, order=order, steps=steps)
                    run = study.solve(model, study.puzzles[kind], sampling)
                    study.workshop.tell(f"  {kind} puzzles, {order} order, {name_of(sampling)}: {run.success}")
                    rows.append(_row(run, sampling, kind, baseline, weights=path.parent.name))
                    baseline = baseline or run
        return {"rows": rows, "record": plain(clock.record("reproduce sudoku", study.scale, seed=0, model=model))}

    measure.__doc__ = (
        f"Every method with {steps} forward passes, in both orders, on all puzzles, with the same weights."
    )
    return measure


def most_likely_digits(study: SudokuStudy) -> dict[str, Any]:
    """Temperature 0: a puzzle has one answer. Beside the methods of before the one that begins again."""
    clock, rows, model = Stopwatch(), [], study.load(study.tuned())
    repairing = (Sampling("vanilla"), Sampling("p2-self", k=4), Sampling("prism", k=4))
    ordered = [replace(sampling, order=order) for order in ORDERS for sampling in repairing]
    for kind in study.puzzles:
        for contender in (*ordered, Sampling("prism-restart")):
            sampling = replace(contender, temperature=0.0, steps=study.scale.blanks)
            run = study.solve(model, study.puzzles[kind], sampling)
            study.workshop.tell(f"  {kind} puzzles, {name_of(sampling)}, {sampling.order} order: {run.success}")
            rows.append(_row(run, sampling, kind))
    return {"rows": rows, "record": plain(clock.record("reproduce sudoku", study.scale, seed=0, model=model))}


def repeated(study: SudokuStudy) -> dict[str, Any]:
    """The same puzzles with eight sets of random numbers, random order, K = 4: failures beside vanilla's and beside those of
    the best remasker that needs no training."""
    rows: list[dict[str, Any]] = []
    clock, model, steps = Stopwatch(), study.load(study.tuned()), study.scale.blanks
    contenders = (Sampling("vanilla"), *(Sampling(name, k=4) for name in ("remdm-conf-topk", "p2-self", "prism")))
    for kind, temperature in ((kind, temperature) for kind in study.puzzles for temperature in (1.0, 0.0)):
        failures = {}
        for contender in contenders:
            sampling = replace(contender, order="random", steps=steps, temperature=temperature)
            runs = [study.solve(model, study.puzzles[kind], sampling, seed=seed).solved for seed in range(8)]
            failures[name_of(sampling)] = 1 - np.mean(runs, axis=0)
            study.workshop.tell(
                f"  {kind} puzzles, temperature {temperature:g}, {name_of(sampling)}: {np.mean(runs):.3f}"
            )
            rows.append(
                {"puzzles": kind, "temperature": temperature, "method": name_of(sampling), "steps": steps}
                | {"solved_by_seed": [int(run.sum()) for run in runs], "boards": len(runs[0])}
            )
        vanilla, *training_free, _ = failures.values()
        best = min(training_free, key=np.mean)
        for row in rows[-len(contenders) :]:
            failed = failures[row["method"]]
            row["success"] = plain(bootstrap_mean(1 - failed))
            row["of_vanilla"] = plain(bootstrap_ratio(failed, vanilla))
            row["of_best_training_free"] = plain(bootstrap_ratio(failed, best))
    return {"rows": rows, "record": plain(clock.record("reproduce sudoku", study.scale, seed=0, model=model))}


def equal_remasks(study: SudokuStudy) -> dict[str, Any]:
    """ReMDM's strengths set so that each takes back as many tokens as PRISM with K = 4 (random order, a step a blank)."""
    clock, rows, model = Stopwatch(), [], study.load(study.tuned())
    target = study.solve(model, study.puzzles["own"][: study.scale.watched], Sampling("prism", k=4)).remasks.mean()
    contenders = [
        replace(_with_remasks(study, model, policy, float(target)), order="random", steps=study.scale.blanks)
        for policy in ("remdm-cap", "remdm-loop", "remdm-rescale")
    ]
    counted = [
        Sampling(policy, k=4, order="random", steps=study.scale.blanks)
        for policy in ("random", "remdm-conf-topk", "p2-self", "prism")
    ]
    for kind in study.puzzles:
        for sampling in (*contenders, *counted):
            run = study.solve(model, study.puzzles[kind], sampling)
            rows.append(_row(run, sampling, kind, eta=sampling.eta))
    record = clock.record("reproduce sudoku", study.scale, seed=0, model=model)
    return {"target": float(target), "rows": rows, "record": plain(record)}


def _with_remasks(study: SudokuStudy, model: Any, policy: str, target: float) -> Sampling:
    """The strength η at which `policy` takes back `target` tokens a board, by bisection; the strongest if none does."""
    low, high, few = 0.0, 1.0, study.puzzles["own"][: min(100, study.scale.watched)]
    for _ in range(10):
        middle = (low + high) / 2
        remasks = study.solve(model, few, Sampling(policy, eta=middle)).remasks.mean()
        low, high = (middle, high) if remasks < target else (low, middle)
    return Sampling(policy, eta=(low + high) / 2)


def cost(study: SudokuStudy) -> dict[str, Any]:
    """Time per step of PRISM over vanilla and over random remasking, compiled as a whole on a GPU, the three taking turns."""
    clock, model = Stopwatch(), study.load(study.tuned(), compiled=False)
    puzzles = study.puzzles["own"][: study.scale.at_once]
    state, noise = puzzle_state(puzzles, study.device), Noise.rows(0, len(puzzles), device=study.device)
    contenders = {
        name_of(sampling): Prepared(
            model, sampling.build_policy(), steps=study.scale.blanks, compiled=study.device.type == "cuda"
        )
        for sampling in (Sampling("vanilla"), Sampling("random", k=4), Sampling("prism", k=4))
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(6):
        for name, sampler in contenders.items():
            started = perf_counter()
            sampler(state, noise).tokens.cpu()  # which waits for the end
            if turn:  # the first one compiles, records and warms up
                seconds[name].append(perf_counter() - started)
    typical = {name: median(times) for name, times in seconds.items()}
    return {
        "boards": len(puzzles),
        "steps": study.scale.blanks,
        "seconds": seconds,
        "extra_over_vanilla": {name: time / typical["vanilla"] - 1 for name, time in typical.items()},
        "record": plain(clock.record("reproduce sudoku", study.scale, seed=0, model=model)),
    }


def knowledge(study: SudokuStudy) -> dict[str, Any]:
    """Does the head know? Quality against the likelihood it estimates and against the truth, and who finds wrong cells."""
    clock = Stopwatch()
    model = study.load(study.tuned(), compiled=False)
    found: dict[str, Any] = {}
    for name, sampling in {"vanilla": Sampling("vanilla"), "prism": Sampling("prism", k=4)}.items():
        seen = _witnessed(study, model, sampling)
        found[name] = {
            "tokens": len(seen.quality),
            "right": float(seen.right.mean()),
            "against_likelihood": reliability(seen.quality, seen.likelihood).summary(),
            "against_truth": reliability(seen.quality, seen.right).summary(),
            "likelihood_against_truth": reliability(seen.likelihood, seen.right).summary(),
            "auroc": {score: _finds(seen, score) for score in ("quality", "own", "confidence", "likelihood")},
        }
    record = clock.record("reproduce sudoku", study.scale, seed=0, model=model)
    return {"runs": found, "board": _telling_board(study, model), "record": plain(record)}


def _witnessed(study: SudokuStudy, model: Any, sampling: Sampling) -> Judgements:
    count = study.scale.watched
    truth = torch.from_numpy(sudoku.to_tokens(study.own.solution[:count])).long().to(study.device)
    witness = Witness(model, truth=lambda state: truth, per_row=2)
    state = puzzle_state(study.own.puzzle[:count], study.device)
    noise = Noise.rows(0, count, device=study.device)
    generate(model, state, sampling.build_policy(), steps=study.scale.blanks, noise=noise, watch=witness)
    return witness.judgements()


def _finds(seen: Judgements, score: str) -> dict[str, Any]:
    """How well a low score points at wrong cells, over all and by how full the board was."""
    values = getattr(seen, score)
    inside = [(low / 5 < seen.filled) & (seen.filled <= (low + 1) / 5) for low in range(5)]
    by_part = [auroc(values[part], seen.right[part]) for part in inside]
    return {"all": auroc(values, seen.right), "by_fifth_filled": [None if np.isnan(a) else a for a in by_part]}


def _telling_board(study: SudokuStudy, model: Any) -> dict[str, Any]:
    """The paper's right figure: a nearly full board with three wrong digits, on the way of the vanilla sampler."""
    best: dict[str, Any] = {}
    count = study.scale.watched
    truth = torch.from_numpy(sudoku.to_tokens(study.own.solution[:count])).long().to(study.device)

    def look(step: Step) -> None:
        state = step.before
        wrong = state.committed & (state.tokens != truth)
        filled = state.committed.sum(1)
        score = filled - 10 * (wrong.sum(1) - 3).abs()
        row = int(score.argmax())
        if float(score[row]) > best.get("score", -np.inf) and bool(wrong[row].any()):
            cells = torch.as_tensor(sudoku.CELLS)
            best.update(
                score=float(score[row]),
                puzzle=row,
                step=int(state.step[row]),
                digits=state.tokens[row].cpu()[cells].tolist(),
                clues=state.frozen[row].cpu()[cells].tolist(),
                wrong=wrong[row].cpu()[cells].tolist(),
                quality=step.prediction.quality[row].detach().cpu()[cells].double().numpy().round(4).tolist(),
            )

    generate(
        model,
        puzzle_state(study.own.puzzle[:count], study.device),
        Sampling("vanilla").build_policy(),
        steps=study.scale.blanks,
        noise=Noise.rows(0, count, device=study.device),
        watch=look,
    )
    return best


def transfer(study: SudokuStudy) -> dict[str, Any]:
    """A's quality for the tokens of a backbone it never saw (the paper's last analysis)."""
    clock, rows, judge = Stopwatch(), [], study.load(study.tuned())
    writers = {"another seed": study.stranger(), "another size": study.stranger(other_size=True)}

    def ask(who: str, model: Any, sampling: Sampling) -> None:
        for kind, puzzles in study.puzzles.items():
            rows.append(_row(study.solve(model, puzzles, sampling), sampling, kind, who=who))

    for order in ORDERS:
        ask("A alone", judge, Sampling("vanilla", order=order, steps=study.scale.blanks))
        ask("A alone", judge, Sampling("prism", k=4, order=order, steps=study.scale.blanks))
        for name, path in writers.items():
            writer = study.load(path)
            ask(f"B ({name}) alone", writer, Sampling("vanilla", order=order, steps=study.scale.blanks))
            ask(f"B ({name}) alone", writer, Sampling("p2-self", k=4, order=order, steps=study.scale.blanks))
            together = Judged(writer, judge)
            ask(f"B ({name}) judged by A", together, Sampling("prism", k=4, order=order, steps=study.scale.blanks))
            ask(
                f"B ({name}) judged by A",
                together,
                Sampling("prism", k=4, order=order, steps=(study.scale.blanks + 1) // 2),
            )
    return {"rows": rows, "record": plain(clock.record("reproduce sudoku", study.scale, seed=0, model=judge))}


def ablation(variant: str) -> Callable[[SudokuStudy], dict[str, Any]]:
    """One thing changed, in a short fine-tuning of the same backbone."""

    def result(study: SudokuStudy) -> dict[str, Any]:
        return _compared(study, {variant: study.variant(variant)})

    result.__doc__ = f"{variant}, in a short fine-tuning of the same backbone."
    return result


def augmentation(study: SudokuStudy) -> dict[str, Any]:
    """The same short pretraining and fine-tuning with and without the symmetries of the game."""
    with_it = study.variant("paper", study.stranger, of="-stranger")
    plain_base = lambda: study.stranger(augment=False)  # noqa: E731
    without = study.variant("paper", plain_base, augment=False, of="-stranger-without-augmentation")
    return _compared(study, {"with symmetries": with_it, "without": without})


def _compared(study: SudokuStudy, variants: Mapping[str, Path]) -> dict[str, Any]:
    clock, rows = Stopwatch(), []
    for name, path in variants.items():
        story = study.workshop.story(path)
        model = study.load(path)
        for sampling in _for_ablations(study):
            for kind, puzzles in study.puzzles.items():
                run = study.solve(model, puzzles[: study.scale.at_once], sampling)
                rows.append(_row(run, sampling, kind, variant=name, held_out=story["chosen"]))
    return {"rows": rows, "record": plain(clock.record("reproduce sudoku", study.scale, seed=0, model=model))}


def _for_ablations(study: SudokuStudy) -> Iterator[Sampling]:
    most, fewest = study.scale.steps[0], study.scale.steps[-1]
    for order, steps in (("random", most), ("random", fewest), ("margin", most)):
        yield Sampling("vanilla", order=order, steps=steps)
        yield Sampling("p2-self", k=4, order=order, steps=steps)
        yield Sampling("prism", k=4, order=order, steps=steps)


def _file(variant: str) -> str:
    name = variant.replace("λ", "lambda").replace("%", "percent")
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def results_of(study: SudokuStudy) -> dict[str, Callable[[SudokuStudy], dict[str, Any]]]:
    """All results by the name of their file, the most wanted first."""
    return {
        "fine_tuning": fine_tuning,
        **{f"methods_{steps}": methods(steps) for steps in study.scale.steps},
        "most_likely_digits": most_likely_digits,
        "repeated": repeated,
        "equal_remasks": equal_remasks,
        "cost": cost,
        "knowledge": knowledge,
        **{f"ablation_{_file(variant)}": ablation(variant) for variant in VARIANTS},
        "transfer": transfer,
        "augmentation": augmentation,
    }
