"""Does the head know? Its quality against what it estimates, of tokens met while sampling and of tokens drawn into true texts
(PRISM, Section 4.4 and Appendix D.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prism.evaluation.calibration import Judgements, Witness, detection
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate
from prism.state import State, Step

QUESTIONED = 32
"""Of a longer run about so many steps are asked about, spread over it."""


def knowledge_of(
    model: Any, samplings: Mapping[str, Sampling], blank: State, held_out: Batch, loss: PrismLoss, *, steps: int
) -> dict[str, Any]:
    """Quality against the likelihood it estimates, by time, in runs from `blank`; who finds tokens that are not the text's."""
    runs = {name: witnessed(model, sampling, blank, steps).summary() for name, sampling in samplings.items()}
    return {"steps": steps, "runs": runs, "detection": detection(model, held_out.to(blank.tokens.device), loss)}


def witnessed(
    model: Any, sampling: Sampling, blank: State, steps: int, done: Callable[[int], object] = lambda count: None
) -> Judgements:
    """What the model thought of tokens of its own on the way from `blank`; `done` hears how many steps were taken."""
    witness = Witness(model, per_row=1, every=max(1, steps // QUESTIONED))
    taken = 0

    def watch(step: Step) -> None:
        nonlocal taken
        witness(step)
        taken += 1
        done(taken)

    noise = Noise.rows(sampling.seed, len(blank.tokens), device=blank.tokens.device)
    generate(
        model,
        blank,
        sampling.build_policy(),
        steps=steps,
        noise=noise,
        draw=sampling.build_draw(),
        schedule=sampling.build_schedule(),
        block=sampling.block,
        watch=watch,
    )
    return witness.judgements()
