"""What the study of known truth asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prism.evaluation.known_truth import blank, own_texts
from prism.evaluation.mauve import require_mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import difference
from prism.evaluation.text import TextRun, figure
from prism.recipes.knowledge import knowledge_of
from prism.recipes.reproduce.stories import AT_RANDOM, TRUTH_SEED, VARIANTS, StoriesStudy
from prism.recipes.reproduce.strengths import best_of, counted, prism, training_free, with_steps
from prism.recipes.reproduce.texts import about, mauve_of, mauve_rows, runs_so_far
from prism.recipes.sampling import Sampling

NUCLEI = (0.85, 0.9, 0.8, 0.7, 1.0)
"""Those that matter most first, in case time runs out. Of 0.85, 0.9 and 1 ten of twelve rivals did best with the smallest, so
smaller ones are tried."""
TIMES = (1.28, 2.56)
"""How often a token goes back in a run (`strengths`): the paper's, and half of it. Twice as often, in an earlier sweep, gained
0.04 nats at most among settings as diverse as the data."""
LIKELIHOOD = ("prism-likelihood", "prism-entropy")
"""The methods that read a vocabulary head tuned to judge."""
OTHER_SEED = 7
"""Of texts of the truth that are compared with other texts of the truth: the most there is to reach."""
SHOWN = 3
"""Texts of a run to read."""
RIVALS, RACE_SEED = 3, 1
"""Of PRISM in the race, and the seed of its texts: others than those that settings were chosen by."""


def sweep(steps: int) -> Callable[[StoriesStudy], dict[str, Any]]:
    def measure(study: StoriesStudy) -> dict[str, Any]:
        wanted = _in_full([*prism(steps, TIMES), *training_free(steps, TIMES)], steps)
        return _measured(study, [(study.tuned(), one) for one in wanted])

    measure.__doc__ = f"Every method at every strength with {steps} forward passes, on the same weights."
    return measure


def _in_full(samplings: Sequence[Sampling], steps: int) -> list[Sampling]:
    return [replace(sampling, steps=steps, nucleus=nucleus) for nucleus in NUCLEI for sampling in samplings]


def heads(study: StoriesStudy) -> dict[str, Any]:
    """Which masks the head learnt to doubt: the most confident ones, as in the sweeps, or any, as here."""
    weights = study.tuned("S-at-random")
    wanted = [one for steps in study.scale.steps[:2] for one in _in_full([*prism(steps, TIMES)], steps)]
    return {**_measured(study, [(weights, one) for one in wanted]), "models": _stories(study, weights)}


def methods(steps: int) -> Callable[[StoriesStudy], dict[str, Any]]:
    def measure(study: StoriesStudy) -> dict[str, Any]:
        swept = study.scale.steps[1]
        rows = study.workshop.result(f"sweep_{swept}", lambda: sweep(swept)(study))["rows"]
        return _measured(study, _best_with(study, rows, steps))

    measure.__doc__ = f"Every method with {steps} forward passes, at the strength that was best with fewer."
    return measure


def _best_with(study: StoriesStudy, rows: Sequence[dict[str, Any]], steps: int) -> list[tuple[Path, Sampling]]:
    """Every method's best setting, carried over to so many steps."""
    best = _best(rows, study.own().summary()["entropy"])
    return [(study.tuned(row["weights"]), with_steps(Sampling(**row["sampling"]), steps)) for row in best]


def _best(rows: Sequence[dict[str, Any]], entropy: float) -> list[dict[str, Any]]:
    """Of each method, on each weights, the best row."""
    of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["weights"], row["method"]), []).append(row)
    return [best_of(some, entropy) for some in of.values()]


def race(steps: int) -> Callable[[StoriesStudy], dict[str, Any]]:
    def measure(study: StoriesStudy) -> dict[str, Any]:
        clock, samples = Stopwatch(), study.scale.raced
        swept = study.workshop.result(f"sweep_{steps}", lambda: sweep(steps)(study))["rows"]
        best, own = _best(swept, study.own().summary()["entropy"]), study.own(samples)
        rivals = sorted((row for row in best if row["method"] != "prism"), key=lambda row: row["nll"])
        ours = next(row for row in best if row["method"] == "prism")
        rows = []
        for row in (ours, *rivals[:RIVALS]):
            sampling = replace(Sampling(**row["sampling"]), seed=RACE_SEED)
            rows.append(_row(study, study.tuned(row["weights"]), sampling, own, samples=samples))
        study.own_features(samples)  # MAUVE's, while there is a GPU
        return {**_recorded(study, clock, rows, study.load(study.tuned())), "truth": own.summary()}

    measure.__doc__ = (
        f"PRISM and the best others with {steps} forward passes at their best settings: new texts, and more of them."
    )
    return measure


def likelihood(study: StoriesStudy) -> dict[str, Any]:
    """Tuned with the likelihood loss instead of a head, for as many steps as PRISM and for twice as many (Appendix D.6)."""
    clock, few, many, rows = Stopwatch(), study.scale.steps[:2], study.scale.steps[2:], []
    for weights in (study.tuned("likelihood"), study.tuned("likelihood-twice")):
        tried = [
            (weights, sampling)
            for steps in few
            for sampling in _in_full([counted(name, steps, 2.56) for name in LIKELIHOOD], steps)
        ]
        swept = _rows(study, tried)
        last = [row for row in swept if row["steps"] == few[-1]]
        rows += [*swept, *_rows(study, [one for steps in many for one in _best_with(study, last, steps)])]
    return _recorded(study, clock, rows, study.load(weights))


def _measured(study: StoriesStudy, wanted: Sequence[tuple[Path, Sampling]]) -> dict[str, Any]:
    clock, rows = Stopwatch(), _rows(study, wanted)
    return _recorded(study, clock, rows, study.load(wanted[-1][0]))


def _recorded(study: StoriesStudy, clock: Stopwatch, rows: list[dict[str, Any]], model: Any) -> dict[str, Any]:
    made = study.workshop.story(study.pretrained())
    backbone = {"trained": made["record"]["date"], "held_out_loss": made["chosen"]["loss"]}
    record = clock.record("reproduce known-truth", study.scale, seed=0, model=model, backbone=backbone)
    return {"truth": study.own().summary(), "rows": rows, "record": plain(record)}


def _rows(
    study: StoriesStudy, wanted: Sequence[tuple[Path, Sampling]], *, compiled: bool = True
) -> list[dict[str, Any]]:
    return [_row(study, weights, sampling, study.own(), compiled=compiled) for weights, sampling in wanted]


def _row(
    study: StoriesStudy,
    weights: Path,
    sampling: Sampling,
    own: TextRun,
    *,
    samples: int | None = None,
    compiled: bool = True,
) -> dict[str, Any]:
    described = about(weights.parent.name, sampling)

    def measure() -> dict[str, Any]:
        run = study.write(study.load(weights, compiled=compiled), sampling, samples=samples)
        study.kept.write(described["name"], run.tokens, study.features(run.tokens))
        return {**described, **run.summary(), **figure("excess", difference(run.nll, own.nll))}

    row = study.workshop.row(described["name"], measure)
    told = f"excess {row['excess']:.3f}, entropy {row['entropy']:.3f}, {row['seconds']:.1f} s"
    study.workshop.tell(f"  {row['name']}: {told}")
    return row


def mauve_scores(study: StoriesStudy) -> dict[str, Any]:
    """MAUVE of every run so far against the truth's own texts, from the features that were kept; delete its file after more."""
    require_mauve()
    clock, samples = Stopwatch(), study.scale.samples
    rows = mauve_rows(study.workshop, study.kept, study.own_features)
    ceiling = mauve_of(study.own_features(samples), study.own_features(samples, seed=OTHER_SEED))
    record = clock.record("reproduce known-truth", study.scale, seed=0)
    return {"truth": ceiling, "rows": rows, "record": plain(record)}


def texts(study: StoriesStudy) -> dict[str, Any]:
    """Texts to read: the first ones of the truth, and of every run so far that was kept; delete its file after more."""
    clock = Stopwatch()
    make = own_texts(study.truth, study.writing.text, length=study.scale.length, seed=TRUTH_SEED, batch=SHOWN)
    runs = {
        name: list(map(study.writing.text, kept[:SHOWN].tolist()))
        for name in runs_so_far(study.workshop)
        if (kept := study.kept.tokens(name)) is not None
    }
    record = clock.record("reproduce known-truth", study.scale, seed=0)
    return {"truth": [row.text for row in make(0, SHOWN)], "runs": runs, "record": plain(record)}


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


def ordered(study: StoriesStudy) -> dict[str, Any]:
    """Masks committed in order of confidence, as P2's joint ranking does, by the methods that take back the worst."""
    wanted = []
    for steps in study.scale.steps[:2]:
        wanted += [Sampling("p2-joint", steps=steps), Sampling("vanilla", steps=steps, order="confidence")]
        for name in ("prism", "p2-self", "remdm-conf-topk"):
            strengths = [counted(name, steps, times, on=0.0) for times in TIMES]
            wanted += [replace(one, steps=steps, order="confidence") for one in strengths]
    return _measured(study, [(study.tuned(), one) for one in wanted])


def knowledge(name: str) -> Callable[[StoriesStudy], dict[str, Any]]:
    def measure(study: StoriesStudy) -> dict[str, Any]:
        clock, model = Stopwatch(), study.load(study.tuned(name), compiled=False)
        steps, scale = study.scale.steps[-1], study.scale
        samplings = {"vanilla": Sampling("vanilla"), "prism": counted("prism", steps, 2.56)}
        masks = blank(study.truth, scale.witnesses, scale.length, study.device)
        found = knowledge_of(model, samplings, masks, study.held_out(), AT_RANDOM, steps=steps)
        record = clock.record("reproduce known-truth", study.scale, seed=0, model=model)
        return {**found, "record": plain(record)}

    measure.__doc__ = (
        f"Does the head of {name} know? Quality against the likelihood it estimates; who finds what is wrong."
    )
    return measure


def ablations(study: StoriesStudy) -> dict[str, Any]:
    """Other ways to tune, on short fine-tunings of the same backbone. P2-self needs no head: it is run once on the backbone as
    it was, and on each that was tuned."""
    clock, rows = Stopwatch(), []
    for name, variant in VARIANTS.items():  # one after the other, so that what was measured is kept when it is stopped
        weights = study.variant(name)
        tried = [("prism", 2.56, 0.0), ("prism", 1.28, 0.0), ("prism", 2.56, 0.5)]
        if name == "S at random" or variant.tune_backbone:
            tried.append(("p2-self", 2.56, 0.0))
        samplings = [
            replace(counted(policy, steps, times, on), steps=steps, nucleus=0.9)
            for steps in study.scale.steps[:2]
            for policy, times, on in tried
        ]
        rows += _rows(study, [(weights, one) for one in samplings], compiled=False)  # each model writes little
    return _recorded(study, clock, rows, study.load(weights, compiled=False))


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
    return {
        "corpus": {"sequences": study.scale.sequences, "tokens": study.scale.sequences * study.scale.length},
        "truth": study.own().summary(),
        "models": _stories(study, study.pretrained(), study.tuned()),
    }


def _stories(study: StoriesStudy, *models: Path) -> dict[str, Any]:
    stories = {path.parent.name: study.workshop.story(path) for path in models}
    return {
        name: {what: story[what] for what in ("chosen", "history", "loss", "record")} for name, story in stories.items()
    }


def results_of(study: StoriesStudy) -> dict[str, Callable[[StoriesStudy], dict[str, Any]]]:
    """All results by the name of their file, the most wanted first."""
    few, many = study.scale.steps[:2], study.scale.steps[2:]
    return {
        "training": training,
        **{f"sweep_{steps}": sweep(steps) for steps in few},
        "knowledge": knowledge("prism"),
        **{f"race_{steps}": race(steps) for steps in few},
        "equal_remasks": equal_remasks,
        "ordered": ordered,
        "heads": heads,
        "knowledge_at_random": knowledge("S-at-random"),
        "likelihood": likelihood,
        **{f"methods_{steps}": methods(steps) for steps in many},
        "ablations": ablations,
        "phases": phases,
        "mauve": mauve_scores,
        "texts": texts,
    }
