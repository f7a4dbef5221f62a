"""What the study of Wikipedia asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prism.evaluation.mauve import require_mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import Written
from prism.evaluation.text import diversity
from prism.recipes.knowledge import knowledge_of
from prism.recipes.reproduce import strengths
from prism.recipes.reproduce.strengths import best_of, counted, with_steps
from prism.recipes.reproduce.texts import about, figures, mauve_of, mauve_rows
from prism.recipes.reproduce.wikipedia import MAIN, VARIANTS, WikipediaStudy
from prism.recipes.sampling import Sampling

TRAINING_FREE = (
    "vanilla",
    "mdlm",
    "remdm-cap",
    "remdm-loop",
    "remdm-conf",
    "remdm-conf-topk",
    "p2-self",
    "forward-backward",
)
"""The main ones; World A tries all."""
NUCLEI = (1.0, 0.9, 0.8)
TIMES = (0.32, 0.64, 1.28, 2.56)
"""How often a token goes back in a run (`strengths`). The paper's 2.56 takes much of the diversity of these texts, which are
less plain than World A's."""
SCREENING_SEED = 1
"""Of the sweeps: other texts than those the best settings are then told by."""
SHOWN = 3
"""Texts of every run that its row holds, for people to read."""
DATA, LEARNT = "held-out text", "text learnt from"
"""What features of the corpus are kept as."""


def evidence(study: WikipediaStudy) -> dict[str, Any]:
    """How to begin: a causal model, shifted or not, or a DiT from nothing; their bounds after equally many tokens."""
    return study.evidence()


def training(study: WikipediaStudy) -> dict[str, Any]:
    """How the models were made: the long training, and PRISM's short one."""
    scale = study.scale
    tokens = {"adapted": scale.tokens(scale.adaptation), "prism": scale.tokens(scale.tuning)}
    stories = {path.parent.name: study.workshop.story(path) for path in (study.adapted(), study.tuned())}
    return {
        "corpus": {name: split.tokens for name, split in study.corpus.splits.items()},
        "models": {
            name: {"tokens": tokens[name], **{part: story[part] for part in ("chosen", "history", "record")}}
            for name, story in stories.items()
        },
    }


def data(study: WikipediaStudy) -> dict[str, Any]:
    """Held-out text judged like any other: the perplexity and the entropy there are to reach."""
    clock = Stopwatch()
    rows, learnt = study.texts(), study.learnt()
    texts = [study.text(row) for row in rows]
    study.keep(DATA, rows, texts)
    study.keep(LEARNT, learnt, [study.text(row) for row in learnt])
    found = study.likelihood(texts).summary() | diversity([np.array(row) for row in rows])
    return {"samples": len(rows), **found, "texts": texts[:SHOWN], **_recorded(study, clock)}


def _entropy(study: WikipediaStudy) -> float:
    """The data's."""
    return float(study.workshop.result("data", lambda: data(study))["entropy"])


def sweep(steps: int) -> Callable[[WikipediaStudy], dict[str, Any]]:
    def measure(study: WikipediaStudy) -> dict[str, Any]:
        clock, weights = Stopwatch(), study.tuned()

        def row(sampling: Sampling) -> dict[str, Any]:
            return _row(study, weights, sampling, study.screen(weights, sampling))

        rows = [_once(study, weights, sampling, partial(row, sampling)) for sampling in _contenders(steps)]
        return {"rows": rows, **_recorded(study, clock)}

    measure.__doc__ = (
        f"Every method at every strength with {steps} forward passes, a few texts each, on the same weights."
    )
    return measure


def _contenders(steps: int) -> Iterator[Sampling]:
    free = [sampling for sampling in strengths.training_free(steps, TIMES) if sampling.policy in TRAINING_FREE]
    for nucleus in NUCLEI:
        for sampling in (*free, *strengths.prism(steps, TIMES)):
            yield replace(sampling, steps=steps, nucleus=nucleus, seed=SCREENING_SEED)


def methods(steps: int) -> Callable[[WikipediaStudy], dict[str, Any]]:
    def measure(study: WikipediaStudy) -> dict[str, Any]:
        chosen = _best_settings(study, steps) if steps in study.scale.swept else _best_two(study, steps)
        return _measured(study, [(study.tuned(), sampling) for sampling in chosen])

    measure.__doc__ = f"The best setting of every method with {steps} forward passes, or of the best ones, all texts."
    return measure


def _best_settings(study: WikipediaStudy, steps: int) -> list[Sampling]:
    """Of every method, among those swept with as many steps."""
    rows = study.workshop.result(f"sweep_{steps}", lambda: sweep(steps)(study))["rows"]
    names = dict.fromkeys(row["method"] for row in rows)
    of_each = ([row for row in rows if row["method"] == name] for name in names)
    return [replace(Sampling(**best_of(some, _entropy(study))["sampling"]), seed=0) for some in of_each]


def _best_two(study: WikipediaStudy, steps: int) -> list[Sampling]:
    """PRISM and the best of all others with fewer steps, at the same strengths."""
    fewer = study.scale.swept[-1]
    rows = _rows(study, fewer)
    rival = best_of([row for row in rows if row["method"] != "prism"], _entropy(study))
    return [with_steps(Sampling(**row["sampling"]), steps) for row in (rival, _prism(rows))]


def _rows(study: WikipediaStudy, steps: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = study.workshop.result(f"methods_{steps}", lambda: methods(steps)(study))["rows"]
    return found


def _prism(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["method"] == "prism")


def ablations(study: WikipediaStudy) -> dict[str, Any]:
    """PRISM tuned in other ways, sampled like the main one; P2-self beside those that changed the backbone."""
    wanted = []
    for name, variant in VARIANTS.items():
        policies = ("prism",) if variant.leaves_backbone else ("prism", "p2-self")
        for steps in study.scale.steps[:2]:
            best = {row["method"]: Sampling(**row["sampling"]) for row in _rows(study, steps)}
            wanted += [(study.tuned(name), best[policy]) for policy in policies]
    return _measured(study, wanted)


def _measured(study: WikipediaStudy, wanted: Sequence[tuple[Path, Sampling]]) -> dict[str, Any]:
    clock = Stopwatch()

    def row(weights: Path, sampling: Sampling) -> dict[str, Any]:
        written = study.write(weights, sampling)
        texts = [one.text for one in written]
        found = _row(study, weights, sampling, written)
        study.keep(found["name"], [one.tokens for one in written], texts)
        return {**found, "texts": texts[:SHOWN]}

    rows = [_once(study, weights, sampling, partial(row, weights, sampling)) for weights, sampling in wanted]
    return {"rows": rows, **_recorded(study, clock)}


def _row(study: WikipediaStudy, weights: Path, sampling: Sampling, written: Sequence[Written]) -> dict[str, Any]:
    likelihood = study.likelihood([one.text for one in written])
    return {**about(weights.parent.name, sampling), **figures(written, likelihood)}


def _once(
    study: WikipediaStudy, weights: Path, sampling: Sampling, measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    row = study.workshop.row(about(weights.parent.name, sampling)["name"], measure)
    cost = f"{row['seconds']:.1f} s"
    study.workshop.tell(f"  {row['name']}: perplexity {row['perplexity']:.1f}, entropy {row['entropy']:.3f}, {cost}")
    return row


def _recorded(study: WikipediaStudy, clock: Stopwatch) -> dict[str, Any]:
    record = clock.record("reproduce wikipedia", study.scale, seed=0, device=study.device)
    return {"judge": {"name": study.judged_by.name, **study.judge.describe()}, "record": plain(record)}


def knowledge(study: WikipediaStudy) -> dict[str, Any]:
    """Does the head know? Quality against the likelihood it estimates, by time; who finds tokens that are not the text's."""
    clock, model = Stopwatch(), study.load(study.tuned(), compiled=False)
    steps = study.scale.steps[-1]
    samplings = {"vanilla": Sampling("vanilla"), "prism": counted("prism", steps, 2.56)}
    found = knowledge_of(model, samplings, study.blank(study.scale.witnesses), study.held_out(), MAIN, steps=steps)
    return {**found, "record": plain(clock.record("reproduce wikipedia", study.scale, seed=0, model=model))}


def mauve_scores(study: WikipediaStudy) -> dict[str, Any]:
    """MAUVE of every run so far against held-out text, from the features that were kept; delete its file after more."""
    require_mauve()
    clock, written, learnt = Stopwatch(), study.kept.features(DATA), study.kept.features(LEARNT)
    if written is None or learnt is None:
        raise ValueError(
            f"{study.kept.folder} has no features of held-out text; make them first (--only data, after deleting "
            f"{study.workshop.results / 'data.json'} if it is there), or copy them from where they were made."
        )
    rows = mauve_rows(study.workshop, study.kept, lambda samples: written)  # all runs write as many
    record = clock.record("reproduce wikipedia", study.scale, seed=0)
    return {"data": mauve_of(written, learnt), "rows": rows, "record": plain(record)}


def results_of(study: WikipediaStudy) -> dict[str, Callable[[WikipediaStudy], dict[str, Any]]]:
    """All results by the name of their file, in the order in which they need each other."""
    return {
        "evidence": evidence,
        "training": training,
        "data": data,
        **{f"sweep_{steps}": sweep(steps) for steps in study.scale.swept},
        **{f"methods_{steps}": methods(steps) for steps in study.scale.steps},
        "knowledge": knowledge,
        "ablations": ablations,
        "mauve": mauve_scores,
    }
