"""What the study of known truth asks of its models: one function per result file, each a plain table of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prism.evaluation.calibration import Judgements, Witness, auroc, hidden_likelihood, reliability
from prism.evaluation.known_truth import blank
from prism.evaluation.mauve import mauve, require_mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import difference
from prism.evaluation.text import TextRun, figure
from prism.noise import Noise
from prism.recipes.reproduce.stories import MAIN, VARIANTS, StoriesStudy
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate
from prism.state import start

NUCLEI = (1.0, 0.9)
TIMES = (1.28, 2.56, 5.12)
"""How often a token goes back in a run, η = TIMES/N each step: the paper's inverse scheduling, its 2.56 in the middle."""
NEAR = 0.1
"""Nats of unigram entropy within which two samplers are equally diverse."""


def training_free(steps: int) -> Iterator[Sampling]:
    """Every training-free method with every strength that is tried."""
    yield from (Sampling(name) for name in ("vanilla", "mdlm", "remdm-conf", "forward-backward", "dfm", "p2-joint"))
    for times in TIMES:
        yield from (Sampling(name, eta=min(1.0, times / steps)) for name in ("remdm-cap", "remdm-loop"))
        yield from (_counted(name, steps, times) for name in ("random", "remdm-conf-topk", "p2-self"))
    yield from (Sampling("remdm-rescale", eta=eta) for eta in (0.05, 0.15, 0.4))


def prism(steps: int) -> Iterator[Sampling]:
    yield from (_counted("prism", steps, times) for times in TIMES)
    yield _counted("prism", steps, 2.56, on=0.0)


def likelihood(steps: int) -> Iterator[Sampling]:
    yield from (_counted(name, steps, 2.56) for name in ("prism-likelihood", "prism-entropy"))


def _counted(policy: str, steps: int, times: float, on: float = 0.5) -> Sampling:
    return Sampling(policy, eta=min(1.0, times / steps), cap=True, on=on)


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
                best = Sampling(**best_of(of_it, own)["sampling"])
                eta = None if best.eta is None or name == "remdm-rescale" else min(1.0, best.eta * swept / steps)
                wanted.append((weights, replace(best, steps=steps, eta=best.eta if eta is None else eta)))
        return _measured(study, wanted)

    measure.__doc__ = f"Every method with {steps} forward passes, at the strength that was best with fewer."
    return measure


def best_of(rows: Sequence[dict[str, Any]], entropy: float) -> dict[str, Any]:
    """The most likely text among the settings as diverse as the data; where none is, the most diverse setting."""
    near = [row for row in rows if row["entropy"] >= entropy - NEAR]
    return min(near, key=lambda row: row["nll"]) if near else max(rows, key=lambda row: row["entropy"])


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


def _row(
    study: StoriesStudy, run: TextRun, own: TextRun, sampling: Sampling, weights: str, **about: Any
) -> dict[str, Any]:
    strength = "" if sampling.eta is None else f" η={sampling.eta:.4g}"
    late = "" if sampling.on is None else f" on={sampling.on:g}"
    name = f"{weights}: {sampling.policy}{strength}{late} p={sampling.nucleus:g} N={sampling.steps}"
    np.savez(
        _folder(study) / f"{_slug(name)}.npz",
        tokens=run.tokens.astype(np.int32),
        features=study.features(run.tokens).astype(np.float16),
    )
    settings = {key: value for key, value in vars(sampling).items() if value != getattr(Sampling(), key)}
    return {
        "name": name,
        "method": sampling.policy,
        "weights": weights,
        "sampling": {"policy": sampling.policy, **settings},
        "steps": sampling.steps,
        "nucleus": sampling.nucleus,
        **run.summary(),
        **figure("excess", difference(run.nll, own.nll)),
        **about,
    }


def _folder(study: StoriesStudy) -> Path:
    folder = study.workshop.models / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name)


def mauve_scores(study: StoriesStudy) -> dict[str, Any]:
    """MAUVE of every run so far against the truth's own texts, from the features that were kept; delete its file after more."""
    require_mauve()
    clock, own = Stopwatch(), study.features(study.own().tokens)
    ceiling = study.features(study.own(seed=7).tokens)
    rows = []
    for name in sorted(path.stem for path in study.workshop.results.glob("*.json")):
        for row in study.workshop.result(name, dict).get("rows", []):
            kept = _folder(study) / f"{_slug(row['name'])}.npz"
            if kept.is_file():
                score = mauve(own, np.load(kept)["features"].astype(np.float32))
                rows.append({"name": row["name"], "result": name, **figure("mauve", score.score)})
    record = clock.record("reproduce known-truth", study.scale, seed=0)
    return {"truth": figure("mauve", mauve(own, ceiling).score), "rows": rows, "record": plain(record)}


def equal_remasks(study: StoriesStudy) -> dict[str, Any]:
    """Strengths set so that every method takes back as many tokens as PRISM with η = 2.56/N."""
    steps, model = study.scale.steps[1], study.load(study.tuned())
    few = min(study.scale.samples, study.scale.at_once)
    counted = [
        replace(_counted(name, steps, 2.56), steps=steps, nucleus=0.9)
        for name in ("prism", "random", "remdm-conf-topk", "p2-self")
    ]
    target = float(study.write(model, counted[0], samples=few).remasks.mean())
    set_to_it = [
        _with_remasks(study, model, Sampling(name, steps=steps, nucleus=0.9), target, few)
        for name in ("remdm-cap", "remdm-loop", "remdm-rescale")
    ]
    return {"target": target, **_measured(study, [(study.tuned(), one) for one in (*counted, *set_to_it)])}


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
    steps = study.scale.steps[-1]
    found: dict[str, Any] = {}
    for name, sampling in {"vanilla": Sampling("vanilla"), "prism": _counted("prism", steps, 2.56)}.items():
        seen = _witnessed(study, model, sampling, steps)
        by_time = [(low / 5 <= seen.filled) & (seen.filled < (low + 1) / 5 + (low == 4)) for low in range(5)]
        found[name] = {
            "tokens": len(seen.quality),
            "against_likelihood": reliability(seen.quality, seen.likelihood).summary(),
            "by_fifth_filled": [
                reliability(seen.quality[part], seen.likelihood[part]).summary() for part in by_time if part.any()
            ],
            "scatter": {
                part: np.round(getattr(seen, part)[:2000], 4).tolist() for part in ("quality", "entropy", "likelihood")
            },
        }
    record = clock.record("reproduce known-truth", study.scale, seed=0, model=model)
    return {"steps": steps, "runs": found, "detection": _detection(study, model), "record": plain(record)}


def _witnessed(study: StoriesStudy, model: Any, sampling: Sampling, steps: int) -> Judgements:
    count = study.scale.witnesses
    witness = Witness(model, per_row=1, every=max(1, steps // 32))
    state = blank(study.truth, count, study.scale.length, study.device)
    noise = Noise.rows(0, count, device=study.device)
    generate(model, state, sampling.build_policy(), steps=steps, noise=noise, draw=sampling.build_draw(), watch=witness)
    return witness.judgements()


@torch.no_grad()
def _detection(study: StoriesStudy, model: Any) -> dict[str, Any]:
    """Texts of the truth with some tokens drawn anew, as in training: whose score points at those that came out different?"""
    held_out = study.held_out().to(study.device)
    noise = Noise.rows(99, len(held_out.tokens), device=study.device)
    loss = replace(MAIN, ys=1)
    masked = loss.masking(held_out, model.facts.mask_id, noise)
    first = model.predict(masked.tokens)
    y, chosen = loss.unmask(first, held_out, masked, model.facts.mask_id, noise)
    second = model.predict(y)
    right = (y == held_out.tokens)[chosen].cpu().numpy()
    own = second.log_probabilities(chosen).gather(1, y[chosen][:, None])[:, 0].exp()
    hidden = hidden_likelihood(model, start(y, model.facts.mask_id), chosen, batch=1024)
    scores = {"quality": second.quality[chosen], "own": own, "likelihood": hidden}
    return {
        "tokens": len(right),
        "right": float(right.mean()),
        "auroc": {name: auroc(score.double().cpu().numpy(), right) for name, score in scores.items()},
        "against_truth": reliability(scores["quality"].double().cpu().numpy(), right).summary(),
    }


def ablations(study: StoriesStudy) -> dict[str, Any]:
    """One thing changed at a time, on short fine-tunings of the same backbone."""
    wanted = []
    for name in VARIANTS:
        path = study.variant(name)
        for steps in study.scale.steps[:2]:
            wanted += [(path, replace(_counted("prism", steps, 2.56), steps=steps, nucleus=0.9))]
    return _measured(study, wanted)


def phases(study: StoriesStudy) -> dict[str, Any]:
    """When remasking begins (l_on), and η held fixed instead of falling with N."""
    wanted, fixed = [], 2.56 / study.scale.steps[1]
    for steps in study.scale.steps:
        for on in (0.0, 0.25, 0.5, 0.75):
            wanted.append(replace(_counted("prism", steps, 2.56, on), steps=steps, nucleus=0.9))
        wanted.append(replace(_counted("prism", steps, fixed * steps), steps=steps, nucleus=0.9))
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
