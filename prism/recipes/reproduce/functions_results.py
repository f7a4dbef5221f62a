"""What the study of functions asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from prism.evaluation.corrections import corrections, page, summary
from prism.evaluation.functions import FunctionsRun
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import paired_difference
from prism.recipes.reproduce.functions import FunctionsStudy
from prism.recipes.reproduce.sudoku_results import name_of
from prism.recipes.sampling import Sampling

ORDERS = ("random", "confidence")


def contenders(study: FunctionsStudy) -> tuple[Sampling, ...]:
    """All on the same weights; counted ones take back as many tokens as PRISM's strongest."""
    most = max(study.scale.ks)
    return (
        Sampling("vanilla"),
        Sampling("remdm-cap"),
        Sampling("remdm-conf"),
        Sampling("remdm-conf-topk", k=most),
        Sampling("p2-self", k=most),
        *(Sampling("prism", k=k) for k in study.scale.ks),
    )


def training(study: FunctionsStudy) -> dict[str, Any]:
    """How the models learnt, and what was chosen."""
    paths = (study.pretrained(), study.conditioned(), study.tuned())
    return {
        "models": {path.parent.name: study.workshop.story(path) for path in paths},
        "corpus": study.corpus.manifest["splits"],
    }


def originals(study: FunctionsStudy) -> dict[str, Any]:
    """The bodies people wrote, judged like any others: what there is to reach."""
    functions, _ = study.test
    return FunctionsRun.of(functions, [function.body for function in functions]).summary()


def methods(steps: int) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """Every method at N = `steps`, in both orders, on the same functions with the same weights."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for order in ORDERS:
            vanilla = study.write(path, Sampling("vanilla", order=order, steps=steps))
            for contender in contenders(study):
                sampling = replace(contender, order=order, steps=steps)
                run = study.write(path, sampling)
                gain = paired_difference(_sound(run), _sound(vanilla))
                row = {"method": name_of(sampling), "order": order, "steps": steps, **run.summary()}
                rows.append({**row, "gain": gain.value, "gain_interval": [gain.low, gain.high]})
                study.workshop.tell(f"  {order} order, {name_of(sampling)}: sound {run.share(attrgetter('sound'))}")
        record = clock.record("reproduce functions", study.scale, seed=0, model=study.load(path))
        return {"rows": rows, "record": plain(record)}

    measure.__doc__ = f"Every method with {steps} forward passes, in both orders, with the same weights."
    return measure


def corrected(steps: int) -> Callable[[FunctionsStudy], dict[str, Any]]:
    """What PRISM changes of what vanilla writes; the diffs go to a page of their own."""

    def measure(study: FunctionsStudy) -> dict[str, Any]:
        clock, rows, path = Stopwatch(), [], study.tuned()
        for order in ORDERS:
            before = study.write(path, Sampling("vanilla", order=order, steps=steps))
            for sampling in (Sampling("prism", k=k, order=order, steps=steps) for k in study.scale.ks):
                pairs = corrections(before, study.write(path, sampling))
                name = f"corrections_{steps}_{order}_{sampling.k}.md"
                title = f"Vanilla and {name_of(sampling)}, {order} order, {steps} forward passes"
                (study.workshop.results / name).write_text(page(title, pairs), encoding="utf-8")
                rows.append(
                    {"method": name_of(sampling), "order": order, "steps": steps, "page": name, **summary(pairs)}
                )
        record = clock.record("reproduce functions", study.scale, seed=0, model=study.load(path))
        return {"rows": rows, "record": plain(record)}

    measure.__doc__ = f"What PRISM mends and what it breaks of what vanilla writes, with {steps} forward passes."
    return measure


def _sound(run: FunctionsRun) -> np.ndarray:
    return np.array([verdict.sound for verdict in run.verdicts], float)


def results_of(study: FunctionsStudy) -> dict[str, Callable[[FunctionsStudy], dict[str, Any]]]:
    """All results by the name of their file."""
    return {
        "training": training,
        "originals": originals,
        **{f"methods_{steps}": methods(steps) for steps in study.scale.steps},
        **{f"corrections_{steps}": corrected(steps) for steps in study.scale.steps},
    }
