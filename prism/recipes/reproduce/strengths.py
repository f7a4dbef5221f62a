"""How strongly methods take tokens back: the strengths that are tried, the best of them, and what it is with more steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from prism.recipes.sampling import Sampling

ON = (0.0, 0.5)
"""The share of the steps after which counted methods begin to take back."""
NEAR = 0.1
"""Nats of unigram entropy within which two samplers are equally diverse."""


# How often a token goes back in a run is said by `times`: η = times/N each step, the paper's inverse scheduling with its 2.56.


def training_free(steps: int, times: Sequence[float]) -> Iterator[Sampling]:
    """Every training-free method with every strength that is tried."""
    yield from (Sampling(name) for name in ("vanilla", "mdlm", "remdm-conf", "forward-backward", "dfm", "p2-joint"))
    for often in times:
        yield from (Sampling(name, eta=min(1.0, often / steps)) for name in ("remdm-cap", "remdm-loop"))
        for name in ("random", "remdm-conf-topk", "p2-self"):
            yield from (counted(name, steps, often, on) for on in ON)
    yield from (Sampling("remdm-rescale", eta=eta) for eta in (0.05, 0.15, 0.4))


def prism(steps: int, times: Sequence[float]) -> Iterator[Sampling]:
    yield from (counted("prism", steps, often, on) for often in times for on in ON)


def counted(policy: str, steps: int, often: float, on: float = 0.5) -> Sampling:
    return Sampling(policy, eta=min(1.0, often / steps), cap=True, on=on)


def best_of(rows: Sequence[dict[str, Any]], entropy: float) -> dict[str, Any]:
    """The most likely text among the settings as diverse as the data; where none is, the most diverse setting."""
    near = [row for row in rows if row["entropy"] >= entropy - NEAR]
    return min(near, key=lambda row: row["nll"]) if near else max(rows, key=lambda row: row["entropy"])


def with_steps(sampling: Sampling, steps: int) -> Sampling:
    """The same with another number of steps. A token goes back as often in a run, so less often at a step; η of ReMDM-rescale
    is a share of what there is at every step, and stays."""
    assert sampling.steps is not None
    if sampling.eta is None or sampling.policy == "remdm-rescale":
        return replace(sampling, steps=steps)
    return replace(sampling, steps=steps, eta=min(1.0, sampling.eta * sampling.steps / steps))
