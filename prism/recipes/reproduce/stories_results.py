"""What the study of known truth asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prism.evaluation.known_truth import blank
from prism.evaluation.mauve import mauve, require_mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import difference
from prism.evaluation.text import TextRun, figure
from prism.recipes.reproduce.knowledge import knowledge_of
from prism.recipes.reproduce.stories import MAIN, VARIANTS, StoriesStudy
from prism.recipes.reproduce.strengths import NUCLEI, best_of, counted, prism, training_free, with_steps
from prism.recipes.reproduce.texts import about, mauve_rows
from prism.recipes.sampling import Sampling


def likelihood(steps: int) -> Iterator[Sampling]:
    yield from (counted(name, steps, 2.56) for name in ("prism-likelihood", "prism-entropy"))


def sweep(steps: int) -> Callable[[StoriesStudy], dict[str, Any]]:
    def measure(study: StoriesStudy) -> dict[str, Any]:
        wanted = [
            (weights, replace(sampling, steps=steps, nucleus=nucleus))
            for weights, contenders in _contenders(study, steps)
            for nucleus in NUCLEI
            for sampling in contenders
        ]
        return _measured(study, wanted)

    measure.__doc__ = f"Every method at every strength with {steps} forward passes, on the same weights."
    return measure


def _contenders(study: StoriesStudy, steps: int) -> Iterator[tuple[Path, list[Sampling]]]:
    yield study.tuned(), [*training_free(steps), *prism(steps)]
    yield study.likelihood_tuned(), list(likelihood(steps))
    yield study.likelihood_tuned(longer=True), list(likelihood(steps))


def methods(steps: int) -> Callable[[StoriesStudy], dict[str, Any]]:
    def measure(study: StoriesStudy) -> dict[str, Any]:
        swept = study.scale.steps[1]
        rows = study.workshop.result(f"sweep_{swept}", lambda: sweep(swept)(study))["rows"]
        own = study.own().summary()["entropy"]
        wanted = []
        for weights, contenders in _contenders(study, steps):
            names = dict.fromkeys(contender.policy for contender in contenders)
            for name in names:
                of_it = [row for row in rows if row["method"] == name and row["weights"] == weights.parent.name]
                wanted.append((weights, with_steps(Sampling(**best_of(of_it, own)["sampling"]), steps)))
        return _measured(study, wanted)

    measure.__doc__ = f"Every method with {steps} forward passes, at the strength that was best with fewer."
    return measure


def _measured(study: StoriesStudy, wanted: Sequence[tuple[Path, Sampling]]) -> dict[str, Any]:
    clock, rows, own = Stopwatch(), [], study.own()
    for weights, sampling in wanted:
        model = study.load(weights)
        run = study.write(model, sampling)
        rows.append(_row(study, run, own, sampling, weights.parent.name))
        row = rows[-1]
        study.workshop.tell(
            f"  {row['name']}: excess {row['excess']:.3f}, entropy {row['entropy']:.3f}, {row['seconds']:.1f} s"
        )
    record = clock.record("reproduce known-truth", study.scale, seed=0, model=model)
    return {"truth": own.summary(), "rows": rows, "record": plain(record)}


def _row(study: StoriesStudy, run: TextRun, own: TextRun, sampling: Sampling, weights: str) -> dict[str, Any]:
    described = about(weights, sampling)
    study.kept.write(described["name"], run.tokens, study.features(run.tokens))
    return {**described, **run.summary(), **figure("excess", difference(run.nll, own.nll))}


def mauve_scores(study: StoriesStudy) -> dict[str, Any]:
    """MAUVE of every run so far against the truth's own texts, from the features that were kept; delete its file after more."""
    require_mauve()
    clock, own = Stopwatch(), study.features(study.own().tokens)
    rows = mauve_rows(study.workshop, study.kept, own)
    ceiling = mauve(own, study.features(study.own(seed=7).tokens)).score
    record = clock.record("reproduce known-truth", study.scale, seed=0)
    return {"truth": figure("mauve", ceiling), "rows": rows, "record": plain(record)}


def equal_remasks(study: StoriesStudy) -> dict[str, Any]:
    """Strengths set so that every method takes back as many tokens as PRISM with η = 2.56/N."""
    steps, model = study.scale.steps[1], study.load(study.tuned())
    few = min(study.scale.samples, study.scale.at_once)
    by_count = [
        replace(counted(name, steps, 2.56), steps=steps, nucleus=0.9)
        for name in ("prism", "random", "remdm-conf-topk", "p2-self")
    ]
    target = float(study.write(model, by_count[0], samples=few).remasks.mean())
    set_to_it = [
        _with_remasks(study, model, Sampling(name, steps=steps, nucleus=0.9), target, few)
        for name in ("remdm-cap", "remdm-loop", "remdm-rescale")
    ]
    return {"target": target, **_measured(study, [(study.tuned(), one) for one in (*by_count, *set_to_it)])}


def _with_remasks(study: StoriesStudy, model: Any, sampling: Sampling, target: float, few: int) -> Sampling:
    """The strength η at which the method takes back `target` tokens, by bisection; the strongest if none does."""
    low, high = 0.0, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        remasks = study.write(model, replace(sampling, eta=middle), samples=few).remasks.mean()
        low, high = (middle, high) if remasks < target else (low, middle)
    return replace(sampling, eta=(low + high) / 2)


def knowledge(study: StoriesStudy) -> dict[str, Any]:
    """Does the head know? Quality against the likelihood it estimates, by time; who finds tokens that are not the text's."""
    clock, model = Stopwatch(), study.load(study.tuned(), compiled=False)
    steps, scale = study.scale.steps[-1], study.scale
    samplings = {"vanilla": Sampling("vanilla"), "prism": counted("prism", steps, 2.56)}
    masks = blank(study.truth, scale.witnesses, scale.length, study.device)
    found = knowledge_of(model, samplings, masks, study.held_out(), MAIN, steps=steps)
    record = clock.record("reproduce known-truth", study.scale, seed=0, model=model)
    return {**found, "record": plain(record)}


def ablations(study: StoriesStudy) -> dict[str, Any]:
    """One thing changed at a time, on short fine-tunings of the same backbone."""
    wanted = []
    for name in VARIANTS:
        path = study.variant(name)
        for steps in study.scale.steps[:2]:
            wanted += [(path, replace(counted("prism", steps, 2.56), steps=steps, nucleus=0.9))]
    return _measured(study, wanted)


def phases(study: StoriesStudy) -> dict[str, Any]:
    """When remasking begins (l_on), and η held fixed instead of falling with N."""
    wanted, fixed = [], 2.56 / study.scale.steps[1]
    for steps in study.scale.steps:
        for on in (0.0, 0.25, 0.5, 0.75):
            wanted.append(replace(counted("prism", steps, 2.56, on), steps=steps, nucleus=0.9))
        wanted.append(replace(counted("prism", steps, fixed * steps), steps=steps, nucleus=0.9))
    return _measured(study, [(study.tuned(), sampling) for sampling in dict.fromkeys(wanted)])


def training(study: StoriesStudy) -> dict[str, Any]:
    """How the models were made, and how far the backbone is from the truth."""
    stories = {path.parent.name: study.workshop.story(path) for path in (study.pretrained(), study.tuned())}
    return {
        "corpus": {"sequences": study.scale.sequences, "tokens": study.scale.sequences * study.scale.length},
        "truth": study.own().summary(),
        "models": {
            name: {"chosen": story["chosen"], "history": story["history"], "record": story["record"]}
            for name, story in stories.items()
        },
    }


def results_of(study: StoriesStudy) -> dict[str, Callable[[StoriesStudy], dict[str, Any]]]:
    """All results by the name of their file, the most wanted first."""
    few, many = study.scale.steps[:2], study.scale.steps[2:]
    return {
        "training": training,
        **{f"sweep_{steps}": sweep(steps) for steps in few},
        "knowledge": knowledge,
        "equal_remasks": equal_remasks,
        **{f"methods_{steps}": methods(steps) for steps in many},
        "ablations": ablations,
        "phases": phases,
        "mauve": mauve_scores,
    }
