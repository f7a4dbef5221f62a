"""What the study of functions asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from prism.data.code import digest_of
from prism.evaluation.corrections import by_task, corrections, page, summary
from prism.evaluation.functions import FunctionsRun
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import Interval, bootstrap_ratio
from prism.models.cached import Cached
from prism.models.folder import Folder
from prism.recipes.reproduce.functions import NOTHING, FunctionsStudy, Lens
from prism.recipes.reproduce.sudoku_results import name_of
from prism.recipes.sampling import Sampling

ORDERS = ("random", "confidence")
HEADLESS = ("remdm-conf-topk", "p2-self")
DOUBTING = (*HEADLESS, "prism")
"""Methods whose score tells a probability; the first need no head for it."""
Amount = dict[str, Any]
"""How much goes back, as settings of `Sampling`."""


def amounts(study: FunctionsStudy, order: str) -> list[Amount]:
    """A number at every step, or whatever is doubtful: those that a method's own is chosen from."""
    return [*({"k": k} for k in study.scale.ks), *({"doubt": doubt} for doubt in study.scale.doubts[order])]


def tried(study: FunctionsStudy, policy: str, order: str, steps: int) -> list[Sampling]:
    """The method with every amount."""
    return [Sampling(policy, order=order, steps=steps, **amount) for amount in amounts(study, order)]


def chosen(study: FunctionsStudy, writer: Path, policy: str, order: str, steps: int) -> Sampling:
    """The method with the amount with which most of the validation functions' bodies parse, written by that model."""
    ways = tried(study, policy, order, steps)
    runs = study.write(writer, *ways, held_out=study.validation)
    return max(zip(ways, runs, strict=True), key=lambda pair: pair[1].share(attrgetter("parses")).value)[0]


def training_free(study: FunctionsStudy, writer: Path, order: str, steps: int) -> list[Sampling]:
    """What needs no head; whatever takes back an amount takes back the one that was chosen for it and the weights."""
    return [
        *(Sampling(name, order=order, steps=steps) for name in ("vanilla", "remdm-cap", "remdm-conf")),
        *(chosen(study, writer, name, order, steps) for name in HEADLESS),
    ]


def contenders(study: FunctionsStudy, writer: Path, order: str, steps: int) -> list[Sampling]:
    """The same and PRISM, on the same weights."""
    return [*training_free(study, writer, order, steps), chosen(study, writer, "prism", order, steps)]


def training(study: FunctionsStudy) -> dict[str, Any]:
    """How the models learnt, and what was chosen."""
    paths = (study.pretrained(), study.conditioned(), *map(study.tuned, study.scale.variants))
    return {"models": {path.parent.name: study.workshop.story(path) for path in paths}}


def corpus(study: FunctionsStudy) -> dict[str, Any]:
    """Whose functions they are: packages, versions and licences."""
    clock, manifest, told = Stopwatch(), study.corpus.manifest, ("version", "licence", "side", "functions")
    packages = {
        name: {part: about[part] for part in told} for name, about in manifest["packages"].items() if about["functions"]
    }
    about = {part: manifest[part] for part in ("splits", "found", "dropped", "left_out")}
    return {**about, "packages": packages, "record": _record(clock, study)}


def originals(study: FunctionsStudy) -> dict[str, Any]:
    """The bodies people wrote, judged like any others: what there is to reach."""
    clock, (functions, _) = Stopwatch(), study.to_write(study.test)
    found = FunctionsRun.of(functions, [function.body for function in functions]).summary()
    return {**found, "record": _record(clock, study)}


def methods(steps: int) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """Every method at N = `steps`, in both orders, on the same functions with the same weights."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for order in ORDERS:
            samplings = contenders(study, path, order, steps)
            rows += _told(study, path, samplings)
            for row in rows[-len(samplings) :]:
                study.workshop.tell(f"  {order} order, {row['method']}: sound {row['sound']:.3f}")
        return {"rows": rows, "record": _record(clock, study, path)}

    measure.__doc__ = f"Every method with {steps} forward passes, in both orders, with the same weights."
    return measure


def rivals(study: FunctionsStudy) -> dict[str, Any]:
    """PRISM against every other with the fewest steps, each with the amount that was chosen for it on the validation side.
    In random order, in which more goes back, on more functions; and there, where the backbone learnt with the head, the others
    write with what it was before, too."""
    clock, rows, runs, path = Stopwatch(), [], [], study.tuned()
    for steps in sorted(study.scale.steps)[:2]:
        for order in ORDERS:
            functions = study.compared if order == "random" else study.test
            *others, ours = contenders(study, path, order, steps)
            [prism] = study.write(path, ours, held_out=functions)
            against = [("the same", path, other) for other in others]
            if order == "random" and _learnt(study, "prism"):
                before = study.before()
                against += [("before tuning", before, one) for one in training_free(study, before, order, steps)]
            for weights, writer, other in against:
                [run] = study.write(writer, other, held_out=functions)
                about = {"steps": steps, "order": order, "weights": weights, "prism": name_of(ours)}
                rows.append({**about, "method": name_of(other), **run.summary(), **_gains(run, prism)})
            runs.append({"steps": steps, "order": order, "method": name_of(ours), **prism.summary()})
    return {"runs": runs, "rows": rows, "record": _record(clock, study, path)}


def _learnt(study: FunctionsStudy, name: str) -> bool:
    """Whether the backbone learnt together with the head of that name."""
    return study.scale.variants[name].rank is not None


def asked(study: FunctionsStudy) -> dict[str, Any]:
    """What PRISM would do with a perfect head: the likelihood that its own estimates, asked with a forward pass a token."""
    clock, rows, runs, path = Stopwatch(), [], [], study.tuned()
    for steps in study.scale.asked_steps:
        for order in ORDERS:
            ways = contenders(study, path, order, steps)
            ours = ways[-1]
            [run] = study.write(path, ours, lens=study.asked())
            about = {"steps": steps, "order": order}
            runs.append({**about, "method": f"{name_of(ours)}, asked", **run.summary()})
            found = zip(ways, study.write(path, *ways), strict=True)
            rows += [{**about, "method": name_of(way), **_gains(before, run)} for way, before in found]
    return {"runs": runs, "rows": rows, "record": _record(clock, study, path)}


def _gains(before: FunctionsRun, after: FunctionsRun) -> dict[str, Any]:
    """More of the second's bodies than of the first's, with intervals: of these functions, and of packages like theirs."""
    over = summary(corrections(before, after))
    packages = _of_packages(before, after)
    gains = {name: over[name] for name in over if name.startswith("gain_")}
    return {**gains, "gain_parses_of_packages_interval": [packages.low, packages.high]}


def _of_packages(before: FunctionsRun, after: FunctionsRun) -> Interval:
    """More that parse, whole packages being drawn: the functions of one are alike, and some packages have many."""
    counts = Counter(function.package for function in before.functions)
    more: dict[str, int] = defaultdict(int)
    for function, was, became in zip(before.functions, before.verdicts, after.verdicts, strict=True):
        more[function.package] += became.parses - was.parses
    return bootstrap_ratio(np.array([more[name] for name in counts], float), np.array(list(counts.values())))


def heads(study: FunctionsStudy) -> dict[str, Any]:
    """Every way to tune, in random order, with the fewest steps; where the backbone learnt, too, with what P2-self writes with
    it; and what the others write with the backbone that all began from. Each with its own amount."""
    clock, rows, order = Stopwatch(), [], "random"
    began = study.conditioned() if _learnt(study, "prism") else study.tuned()  # which are the same weights
    for steps in sorted(study.scale.steps)[:2]:
        vanilla = Sampling("vanilla", order=order, steps=steps)
        free = training_free(study, began, order, steps)
        rows += [{"weights": "before tuning", **row} for row in _told(study, began, free)]
        for name in study.scale.variants:
            learnt, tuned = _learnt(study, name), study.tuned(name)
            policies = ("p2-self", "prism") if learnt else ("prism",)
            ways = [chosen(study, tuned, policy, order, steps) for policy in policies]
            first = study.write(tuned if learnt else began, vanilla)
            found = _rows([vanilla, *ways], [*first, *study.write(tuned, *ways)])
            rows += [{"weights": name, **row} for row in (found if learnt else found[1:])]
    told = {name: variant.about for name, variant in study.scale.variants.items()}
    return {"ways": told, "rows": rows, "record": _record(clock, study, study.tuned())}


def _told(study: FunctionsStudy, writer: Path, samplings: Sequence[Sampling]) -> list[dict[str, Any]]:
    return _rows(samplings, study.write(writer, *samplings))


def sweep(study: FunctionsStudy) -> dict[str, Any]:
    """What every method with an amount writes with every one, on the validation side, with the same weights: by this its own
    is chosen. One that takes back at random beside them."""
    clock, rows, path = Stopwatch(), [], study.tuned()
    for steps, order in product(sorted(study.scale.steps, reverse=True), ORDERS):
        ways = [Sampling("vanilla", order=order, steps=steps)]
        ways += [way for way in tried(study, "random", order, steps) if way.doubt is None]  # it has no score
        ways += [way for policy in DOUBTING for way in tried(study, policy, order, steps)]
        best = [chosen(study, path, policy, order, steps) for policy in DOUBTING]
        told = zip(ways, _rows(ways, study.write(path, *ways, held_out=study.validation)), strict=True)
        rows += [
            {**row, "policy": way.policy, "k": way.k or 0, "doubt": way.doubt or 0, "chosen": way in best}
            for way, row in told
        ]
    return {"rows": rows, "record": _record(clock, study, path)}


def transfer(study: FunctionsStudy) -> dict[str, Any]:
    """A's quality for what B writes, a backbone its head never saw (the paper's last analysis); two forward passes a step."""
    clock, rows, a, b = Stopwatch(), [], study.tuned(), study.before()
    steps = study.scale.transfer_steps
    for path in (a, b):
        study.load(path)  # both before any is compiled: loading one drops what is compiled
    for order in ORDERS:
        vanilla = Sampling("vanilla", order=order, steps=steps)
        prism, own = chosen(study, a, "prism", order, steps), chosen(study, b, "p2-self", order, steps)
        rows += [{"who": "A alone", **row} for row in _told(study, a, (vanilla, prism))]
        alone, judged = (vanilla, own), (prism, replace(prism, steps=(steps + 1) // 2))
        runs = [*study.write(b, *alone), *study.write(b, *judged, lens=study.judged_by(a))]
        who = ["B alone"] * len(alone) + ["B judged by A"] * len(judged)
        rows += [{"who": one, **row} for one, row in zip(who, _rows((*alone, *judged), runs), strict=True)]
    return {"rows": rows, "record": _record(clock, study, a)}


def blocks(study: FunctionsStudy) -> dict[str, Any]:
    """Bodies written from left to right in blocks, K_block tokens taken back in each (the paper's way with LLaDA)."""
    clock, rows, path = Stopwatch(), [], study.tuned()
    for steps in study.scale.block_steps:
        samplings = _in_blocks(study, steps, DOUBTING, study.scale.k_blocks)
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
    for sampling in _in_blocks(study, max(scale.block_steps), ("prism",), [max(scale.k_blocks)]):
        runs = [study.write(path, sampling, lens=lens)[0] for lens in lenses]
        found = _block_rows([sampling] * len(runs), runs)
        rows += [{"cache": lens.name or "none", **row} for lens, row in zip(lenses, found, strict=True)]
    return {"block": scale.block, "rows": rows, "record": _record(clock, study, path)}


def _in_blocks(study: FunctionsStudy, steps: int, policies: Sequence[str], ks: Sequence[int]) -> list[Sampling]:
    vanilla = Sampling("vanilla", order="confidence", steps=steps, block=study.scale.block)
    return [vanilla, *(replace(vanilla, policy=policy, k_block=k) for policy in policies for k in ks)]


def _block_rows(samplings: Sequence[Sampling], runs: Sequence[FunctionsRun]) -> list[dict[str, Any]]:
    return [
        {**row, "policy": sampling.policy, "k_block": sampling.k_block or 0}
        for sampling, row in zip(samplings, _rows(samplings, runs), strict=True)
    ]


def solved(name: str) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """How many of the tasks of that name are solved when the programs are run."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for steps, order in product(study.scale.solving_steps, ORDERS):
            for sampling in contenders(study, path, order, steps):
                run, cost = study.solve(name, path, sampling)
                row = {"tasks_of": name, "method": name_of(sampling), "order": order, "steps": steps}
                rows.append({**row, "asked": len(cost.forwards), **run.summary(), **cost.summary()})
                study.workshop.tell(
                    f"  {name}, {order} order, {row['method']}: {100 * run.pass_at(1).value:.1f} % solved"
                )
        return {"rows": rows, "digest": digest_of(study.tasks[name]), "record": _record(clock, study, path)}

    measure.__doc__ = f"How many tasks of {name} are solved when the programs are run."
    return measure


def check_solved(study: FunctionsStudy) -> None:
    """What is there already must tell of these tasks, and not of others in a file of the same name."""
    for name, tasks in study.tasks.items():
        path = study.workshop.results / f"solved_{name}.json"
        if path.is_file() and Folder(path.parent).json(path.name).get("digest") != digest_of(tasks):
            raise ValueError(f"{path} tells of other tasks than the {name} given now; rename that, or remove this.")


def corrected(steps: int) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """What PRISM changes of what vanilla writes; the diffs go to a page of their own."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for order in ORDERS:
            prism = chosen(study, path, "prism", order, steps)
            pairs = corrections(*study.write(path, Sampling("vanilla", order=order, steps=steps), prism))
            name = f"corrections_{steps}_{order}.md"
            title = f"Vanilla and {name_of(prism)}, {order} order, {steps} forward passes"
            (study.workshop.results / name).write_text(page(title, pairs), encoding="utf-8")
            about = {"method": name_of(prism), "order": order, "steps": steps, "page": name}
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


def _record(clock: Stopwatch, study: FunctionsStudy, path: Path | None = None) -> Any:
    """Of a result for which the model of that folder wrote, or none did."""
    about = {"device": study.device} if path is None else {"model": study.load(path)}
    return plain(clock.record("reproduce functions", study.scale, seed=0, **about))


def results_of(study: FunctionsStudy) -> dict[str, Callable[[FunctionsStudy], dict[str, Any]]]:
    """All results by the name of their file."""
    return {
        "corpus": corpus,
        "training": training,
        "originals": originals,
        **{f"methods_{steps}": methods(steps) for steps in sorted(study.scale.steps)},
        "rivals": rivals,
        "heads": heads,
        **({"asked": asked} if study.scale.asked_steps else {}),
        "sweep": sweep,
        "transfer": transfer,
        "blocks": blocks,
        "caches": caches,
        **{f"solved_{name}": solved(name) for name in study.tasks},
        **{f"corrections_{steps}": corrected(steps) for steps in study.scale.steps},
    }
