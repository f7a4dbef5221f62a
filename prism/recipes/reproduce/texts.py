"""Texts that studies write, judge and keep: what is told of them, and MAUVE, which may be computed later and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from prism.recipes.reproduce.workshop import Workshop
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
    seed = f" seed={sampling.seed}" if sampling.seed else ""
    return {
        "name": f"{weights}: {sampling.policy}{strength}{late} p={sampling.nucleus:g} N={sampling.steps}{seed}",
        "method": sampling.policy,
        "weights": weights,
        "sampling": sampling.described(),
        "steps": sampling.steps,
        "nucleus": sampling.nucleus,
    }


@dataclass(frozen=True)
class Kept:
    """Tokens, and features for MAUVE, by the name of the run: all it takes to compare texts where no model is."""

    folder: Path

    def path(self, name: str, ending: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        slug = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name)
        return self.folder / f"{slug}{ending}"

    def write(self, name: str, tokens: Integer[np.ndarray, "n l"], features: Float[np.ndarray, "n d"]) -> None:
        file = self.path(name, ".npz")
        np.savez_compressed(file, tokens=tokens.astype(np.int32), features=features.astype(np.float16))

    def features(self, name: str) -> Float[np.ndarray, "n d"] | None:
        """None where nothing was kept under that name."""
        found = self._read(name, "features")
        return None if found is None else found.astype(np.float32)

    def tokens(self, name: str) -> Integer[np.ndarray, "n l"] | None:
        return self._read(name, "tokens")

    def _read(self, name: str, part: str) -> np.ndarray | None:
        file = self.path(name, ".npz")
        return np.load(file)[part] if file.is_file() else None


def runs_so_far(workshop: Workshop) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of every result there is, with its name."""
    for result in sorted(path.stem for path in workshop.results.glob("*.json")):
        for row in workshop.result(result, dict).get("rows", []):
            yield result, row


def mauve_rows(workshop: Workshop, kept: Kept, written: Callable[[int], np.ndarray]) -> list[dict[str, Any]]:
    """MAUVE of every run so far that was kept, against the features of as many texts to be like."""
    rows = []
    for result, row in runs_so_far(workshop):
        if (features := kept.features(row["name"])) is not None:
            score = mauve(written(len(features)), features).score
            rows.append({"name": row["name"], "result": result, **figure("mauve", score)})
            workshop.tell(f"  {row['name']}: MAUVE {score.value:.3f}")
    return rows
