"""Texts that studies write, judge and keep: what is told of them, and MAUVE, which may be computed later and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from prism.data.writing import Text
from prism.evaluation.mauve import mauve
from prism.evaluation.samples import SampleFile, Written, costs, weights_digest, write_samples
from prism.evaluation.text import Likelihood, diversity, figure
from prism.models.hub import load_model
from prism.recipes.reproduce.workshop import Workshop, slug
from prism.recipes.sampling import Sampling
from prism.sampling.loop import Denoiser
from prism.sampling.prepared import Prepared
from prism.state import State


def write_texts(
    model: Denoiser,
    sampling: Sampling,
    tokenizer: Any,
    blank: Callable[[int], State],
    *,
    samples: int,
    batch: int,
    file: SampleFile | None = None,
    done: Callable[[int], object] | None = None,
) -> list[Written]:
    """So many texts; `blank(count)` is what so many of them start from."""
    assert sampling.steps is not None
    return write_samples(
        Prepared(
            model,
            sampling.build_policy(),
            steps=sampling.steps,
            draw=sampling.build_draw(),
            schedule=sampling.build_schedule(),
        ),
        blank,
        Text(tokenizer).text,
        samples=samples,
        seed=sampling.seed,
        batch=batch,
        file=file,
        done=done,
    )


@lru_cache(maxsize=4)
def digest_of(weights: Path) -> str:
    """What tells samples of one model from those of another in the same folder."""
    return weights_digest(load_model(weights))


def figures(written: Sequence[Written], likelihood: Likelihood) -> dict[str, Any]:
    """What is told of texts that were judged."""
    return {
        "samples": len(written),
        **likelihood.summary(),
        **diversity([np.array(one.tokens) for one in written]),
        **costs(written),
    }


def about(weights: str, sampling: Sampling) -> dict[str, Any]:
    """Whose texts they are, and how they were written; the name is a run's own."""
    strength = "" if sampling.eta is None else f" η={sampling.eta:.4g}"
    late = "" if sampling.on is None else f" on={sampling.on:g}"
    order = "" if sampling.order is None else f" {sampling.order}"
    seed = f" seed={sampling.seed}" if sampling.seed else ""
    return {
        "name": f"{weights}: {sampling.policy}{order}{strength}{late} p={sampling.nucleus:g} N={sampling.steps}{seed}",
        "method": sampling.policy,
        "weights": weights,
        "sampling": sampling.described(),
        "steps": sampling.steps,
        "nucleus": sampling.nucleus,
    }


@dataclass(frozen=True)
class Features:
    """Of texts, for MAUVE, by the hidden states of a causal model."""

    last: Float[np.ndarray, "n d"]
    """At the last token, as published with GPT-2. It knows most about how a text ends."""
    mean: Float[np.ndarray, "n d"]
    """Over all tokens: where texts that break off in the middle are compared, this tells more of them apart."""


@dataclass(frozen=True)
class Kept:
    """Tokens, and features for MAUVE, by the name of the run: all it takes to compare texts where no model is."""

    folder: Path

    def path(self, name: str, ending: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{slug(name)}{ending}"

    def write(self, name: str, tokens: Integer[np.ndarray, "n l"], features: Features) -> None:
        last, mean = features.last.astype(np.float16), features.mean.astype(np.float16)
        np.savez_compressed(self.path(name, ".npz"), tokens=tokens.astype(np.int32), last=last, mean=mean)

    def features(self, name: str) -> Features | None:
        """None where nothing was kept under that name."""
        file = self.path(name, ".npz")
        if not file.is_file():
            return None
        found = np.load(file)
        return Features(found["last"].astype(np.float32), found["mean"].astype(np.float32))

    def tokens(self, name: str) -> Integer[np.ndarray, "n l"] | None:
        file = self.path(name, ".npz")
        return np.load(file)["tokens"] if file.is_file() else None


def runs_so_far(workshop: Workshop) -> list[str]:
    """The names of the runs in all results there are; one that several tell of is the same run."""
    results = (workshop.result(path.stem, dict) for path in sorted(workshop.results.glob("*.json")))
    return list(dict.fromkeys(row["name"] for result in results for row in result.get("rows", [])))


def mauve_rows(workshop: Workshop, kept: Kept, written: Callable[[int], Features]) -> list[dict[str, Any]]:
    """MAUVE of every run so far that was kept, against as many texts to be like."""
    rows = []
    for name in runs_so_far(workshop):
        if (features := kept.features(name)) is not None:
            found = mauve_of(written(len(features.last)), features)
            rows.append({"name": name, **found})
            workshop.tell(f"  {name}: MAUVE {found['mauve']:.3f}, of means {found['mauve_of_means']:.3f}")
    return rows


def mauve_of(written: Features, generated: Features) -> dict[str, Any]:
    """By both features."""
    last, mean = mauve(written.last, generated.last).score, mauve(written.mean, generated.mean).score
    return {**figure("mauve", last), **figure("mauve_of_means", mean)}
