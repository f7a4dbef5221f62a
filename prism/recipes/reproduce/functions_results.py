"""What the study of functions asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from prism.data.code import Task
from prism.evaluation.corrections import by_task, corrections, page, summary
from prism.evaluation.functions import FunctionsRun
from prism.evaluation.record import Stopwatch, plain
from prism.models.cached import Cached
from prism.models.folder import Folder
from prism.recipes.reproduce.functions import NOTHING, FunctionsStudy, Lens
from prism.recipes.reproduce.sudoku_results import name_of
from prism.recipes.sampling import Sampling

ORDERS = ("random", "confidence")
COUNTED = ("random", "remdm-conf-topk", "p2-self", "prism")
"""Methods that take back K tokens at each step, whichever they are."""


def contenders(study: FunctionsStudy) -> tuple[Sampling, ...]:
    """All on the same weights; whatever takes back a number of tokens takes back every number."""
    return (
        Sampling("vanilla"),
        Sampling("remdm-cap"),
        Sampling("remdm-conf"),
        *(Sampling(name, k=k) for name in ("remdm-conf-topk", "p2-self", "prism") for k in study.scale.ks),
    )


def training(study: FunctionsStudy) -> dict[str, Any]:
    """How the models learnt, and what was chosen."""
    paths = (study.pretrained(), study.conditioned(), *map(study.tuned, study.scale.variants))
    return {"models": {path.parent.name: study.workshop.story(path) for path in paths}}


def corpus(study: FunctionsStudy) -> dict[str, Any]:
    """Whose functions they are: packages, versions and licences."""
    manifest, told = study.corpus.manifest, ("version", "licence", "side", "functions")
    packages = {
        name: {part: about[part] for part in told} for name, about in manifest["packages"].items() if about["functions"]
    }
    return {**{part: manifest[part] for part in ("splits", "found", "dropped", "left_out")}, "packages": packages}


def originals(study: FunctionsStudy) -> dict[str, Any]:
    """The bodies people wrote, judged like any others: what there is to reach."""
    functions, _ = study.test
    return FunctionsRun.of(functions, [function.body for function in functions]).summary()


def methods(steps: int) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """Every method at N = `steps`, in both orders, on the same functions with the same weights."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for order in ORDERS:
            samplings = [replace(contender, order=order, steps=steps) for contender in contenders(study)]
            rows += _rows(samplings, study.write(path, *samplings))
            for row in rows[-len(samplings) :]:
                study.workshop.tell(f"  {order} order, {row['method']}: sound {row['sound']:.3f}")
        return {"rows": rows, "record": _record(clock, study, path)}

    measure.__doc__ = f"Every method with {steps} forward passes, in both orders, with the same weights."
    return measure


def rivals(study: FunctionsStudy) -> dict[str, Any]:
    """PRISM against every other with the fewest steps: of each the number of tokens with which most bodies parse."""
    clock, rows, path = Stopwatch(), [], study.tuned()
    for steps in sorted(study.scale.steps)[:2]:
        for order in ORDERS:
            best = _best(study, steps, order)
            ours, prism = best.pop("prism")
            for sampling, run in best.values():
                row = {"steps": steps, "order": order, "prism": name_of(ours), "method": name_of(sampling)}
                rows.append({**row, **_gains(run, prism)})
    return {"rows": rows, "record": _record(clock, study, path)}


def asked(study: FunctionsStudy) -> dict[str, Any]:
    """What PRISM would do with a perfect head: the likelihood that its own estimates, asked with a forward pass a token."""
    clock, rows, runs, path = Stopwatch(), [], [], study.tuned()
    for steps in study.scale.asked_steps:
        for order in ORDERS:
            best = _best(study, steps, order)
            ours = best["prism"][0]
            [run] = study.write(path, ours, lens=study.asked())
            about = {"steps": steps, "order": order}
            runs.append({**about, "method": f"{name_of(ours)}, asked", **run.summary()})
            rows += [{**about, "method": name_of(other), **_gains(theirs, run)} for other, theirs in best.values()]
    return {"runs": runs, "rows": rows, "record": _record(clock, study, path)}


def _best(study: FunctionsStudy, steps: int, order: str) -> dict[str, tuple[Sampling, FunctionsRun]]:
    """Of each method the number of tokens with which most bodies parse."""
    samplings = [replace(contender, order=order, steps=steps) for contender in contenders(study)]
    best: dict[str, tuple[Sampling, FunctionsRun]] = {}
    for sampling, run in zip(samplings, study.write(study.tuned(), *samplings), strict=True):
        if sampling.policy not in best or _parsing(run) > _parsing(best[sampling.policy][1]):
            best[sampling.policy] = sampling, run
    return best


def _gains(before: FunctionsRun, after: FunctionsRun) -> dict[str, Any]:
    """More of the second's bodies than of the first's, with intervals."""
    over = summary(corrections(before, after))
    return {name: over[name] for name in over if name.startswith("gain_")}


def heads(study: FunctionsStudy) -> dict[str, Any]:
    """Every way to tune; where the backbone learnt, too, with what others write with it."""
    clock, rows = Stopwatch(), []
    for name, variant in study.scale.variants.items():
        writer = study.tuned() if variant.rank is None else study.tuned(name)
        for steps in sorted(study.scale.steps)[:2]:
            for order in ORDERS:
                vanilla = Sampling("vanilla", order=order, steps=steps)
                prism = [replace(vanilla, policy="prism", k=k) for k in study.scale.ks]
                others = [replace(one, policy="p2-self") for one in prism] if variant.rank is not None else []
                runs = [*study.write(writer, vanilla, *others), *study.write(study.tuned(name), *prism)]
                found = _rows([vanilla, *others, *prism], runs)
                rows += [{"weights": name, **row} for row in (found if others else found[1:])]
    ways = {name: variant.about for name, variant in study.scale.variants.items()}
    return {"ways": ways, "rows": rows, "record": _record(clock, study, study.tuned())}


def _parsing(run: FunctionsRun) -> float:
    return run.share(attrgetter("parses")).value


def sweep(study: FunctionsStudy) -> dict[str, Any]:
    """Every counted method with every K and every N, in random order, with the same weights."""
    clock, rows, path = Stopwatch(), [], study.tuned()
    for steps in study.scale.swept_steps:
        samplings = [
            Sampling("vanilla", order="random", steps=steps),
            *(Sampling(name, k=k, order="random", steps=steps) for name in COUNTED for k in study.scale.swept_ks),
        ]
        found = _rows(samplings, study.write(path, *samplings))
        rows += [
            {**row, "policy": sampling.policy, "k": sampling.k or 0}
            for sampling, row in zip(samplings, found, strict=True)
        ]
    return {"rows": rows, "record": _record(clock, study, path)}


def transfer(study: FunctionsStudy) -> dict[str, Any]:
    """A's quality for what B writes, a backbone its head never saw (the paper's last analysis); two forward passes a step."""
    clock, rows, a, b = Stopwatch(), [], study.tuned(), study.pretrained()
    steps, k = study.scale.transfer_steps, max(study.scale.ks)
    for path in (a, b):
        study.load(path)  # both before any is compiled: loading one drops what is compiled
    for order in ORDERS:
        vanilla = Sampling("vanilla", order=order, steps=steps)
        own, prism = (Sampling(name, k=k, order=order, steps=steps) for name in ("p2-self", "prism"))
        rows += [{"who": "A alone", **row} for row in _rows((vanilla, prism), study.write(a, vanilla, prism))]
        alone, judged = (vanilla, own), (prism, replace(prism, steps=(steps + 1) // 2))
        runs = [*study.write(b, *alone), *study.write(b, *judged, lens=study.judged_by(a))]
        who = ["B alone"] * len(alone) + ["B judged by A"] * len(judged)
        rows += [{"who": one, **row} for one, row in zip(who, _rows((*alone, *judged), runs), strict=True)]
    return {"rows": rows, "record": _record(clock, study, a)}


def blocks(study: FunctionsStudy) -> dict[str, Any]:
    """Bodies written from left to right in blocks, K_block tokens taken back in each (the paper's way with LLaDA)."""
    clock, rows, path = Stopwatch(), [], study.tuned()
    for steps in study.scale.block_steps:
        samplings = _in_blocks(study, steps, ("remdm-conf-topk", "p2-self", "prism"), study.scale.k_blocks)
        rows += _block_rows(samplings, study.write(path, *samplings))
    return {"block": study.scale.block, "rows": rows, "record": _record(clock, study, path)}


def caches(study: FunctionsStudy) -> dict[str, Any]:
    """The same with a cache, which is an approximation: what it costs in quality."""
    clock, rows, path, scale = Stopwatch(), [], study.tuned(), study.scale
    lenses = (
        NOTHING,
        Lens("dual cache", Cached),
        Lens(f"dual cache, all anew every {scale.refresh} steps", partial(Cached, refresh=scale.refresh)),
        Lens("prefix cache", partial(Cached, suffix=True)),
    )
    for sampling in _in_blocks(study, max(scale.block_steps), ("prism",), scale.k_blocks[-1:]):
        runs = [study.write(path, sampling, lens=lens)[0] for lens in lenses]
        found = _block_rows([sampling] * len(runs), runs)
        rows += [{"cache": lens.name or "none", **row} for lens, row in zip(lenses, found, strict=True)]
    return {"block": scale.block, "rows": rows, "record": _record(clock, study, path)}


def _in_blocks(study: FunctionsStudy, steps: int, policies: Sequence[str], k_blocks: Sequence[int]) -> list[Sampling]:
    common: dict[str, Any] = {"order": "confidence", "steps": steps, "block": study.scale.block}
    counted = [Sampling(policy, k_block=k, **common) for policy in policies for k in k_blocks]
    return [Sampling("vanilla", **common), *counted]


def _block_rows(samplings: Sequence[Sampling], runs: Sequence[FunctionsRun]) -> list[dict[str, Any]]:
    return [
        {**row, "policy": sampling.policy, "k_block": sampling.k_block or 0}
        for sampling, row in zip(samplings, _rows(samplings, runs), strict=True)
    ]


def solved(name: str) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """How many of the tasks of that name are solved when the programs are run."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for steps in study.scale.solving_steps:
            for contender in contenders(study):
                sampling = replace(contender, order="confidence", steps=steps)
                run, cost = study.solve(name, path, sampling)
                row = {"tasks_of": name, "method": name_of(sampling), "steps": steps, "asked": len(cost.forwards)}
                rows.append({**row, **run.summary(), **cost.summary()})
                study.workshop.tell(f"  {name}, {row['method']}: {100 * run.pass_at(1).value:.1f} % solved")
        return {"rows": rows, "digest": _digest(study.tasks[name]), "record": _record(clock, study, path)}

    measure.__doc__ = f"How many tasks of {name} are solved when the programs are run."
    return measure


def check_solved(study: FunctionsStudy) -> None:
    """What is there already must tell of these tasks, and not of others in a file of the same name."""
    for name, tasks in study.tasks.items():
        path = study.workshop.results / f"solved_{name}.json"
        if path.is_file() and Folder(path.parent).json(path.name).get("digest") != _digest(tasks):
            raise ValueError(f"{path} tells of other tasks than the {name} given now; rename that, or remove this.")


def _digest(tasks: Sequence[Task]) -> str:
    told = [(task.id, task.prompt, task.tests) for task in tasks]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def corrected(steps: int) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """What PRISM changes of what vanilla writes; the diffs go to a page of their own."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for order in ORDERS:
            samplings = [Sampling("prism", k=k, order=order, steps=steps) for k in study.scale.ks]
            before, *after = study.write(path, Sampling("vanilla", order=order, steps=steps), *samplings)
            for sampling, run in zip(samplings, after, strict=True):
                pairs = corrections(before, run)
                name = f"corrections_{steps}_{order}_{sampling.k}.md"
                title = f"Vanilla and {name_of(sampling)}, {order} order, {steps} forward passes"
                (study.workshop.results / name).write_text(page(title, pairs), encoding="utf-8")
                about = {"method": name_of(sampling), "order": order, "steps": steps, "page": name}
                rows.append({**about, **summary(pairs), "tasks": by_task(pairs)})
        return {"rows": rows, "record": _record(clock, study, path)}

    measure.__doc__ = f"What PRISM mends and what it breaks of what vanilla writes, with {steps} forward passes."
    return measure


def _rows(samplings: Sequence[Sampling], runs: Sequence[FunctionsRun]) -> list[dict[str, Any]]:
    """What each run came to, and what it mends and breaks of the first."""
    rows = []
    for sampling, run in zip(samplings, runs, strict=True):
        mended = summary(corrections(runs[0], run))
        row = {"method": name_of(sampling), "order": sampling.order, "steps": sampling.steps, **run.summary()}
        row |= {"gain": mended["gain_sound"], "gain_interval": mended["gain_sound_interval"]}
        row |= {name: mended[name] for name in ("syntax_errors_before", "syntax_errors_after", "changes")}
        rows.append(row)
    return rows


def _record(clock: Stopwatch, study: FunctionsStudy, path: Path) -> Any:
    return plain(clock.record("reproduce functions", study.scale, seed=0, model=study.load(path)))


def results_of(study: FunctionsStudy) -> dict[str, Callable[[FunctionsStudy], dict[str, Any]]]:
    """All results by the name of their file."""
    return {
        "corpus": corpus,
        "training": training,
        "originals": originals,
        **{f"methods_{steps}": methods(steps) for steps in study.scale.steps},
        "rivals": rivals,
        "heads": heads,
        "asked": asked,
        "sweep": sweep,
        "transfer": transfer,
        "blocks": blocks,
        "caches": caches,
        **{f"solved_{name}": solved(name) for name in study.tasks},
        **{f"corrections_{steps}": corrected(steps) for steps in study.scale.steps},
    }
