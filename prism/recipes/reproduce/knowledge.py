"""Does the head know? Its quality against what it estimates, of tokens met while sampling and of tokens drawn into true texts
(PRISM, Section 4.4 and Appendix D.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from prism.evaluation.calibration import Judgements, Witness, auroc, hidden_likelihood, reliability
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate
from prism.state import State, start


def knowledge_of(
    model: Any, samplings: Mapping[str, Sampling], blank: State, held_out: Batch, loss: PrismLoss, *, steps: int
) -> dict[str, Any]:
    """Quality against the likelihood it estimates, by time, in runs from `blank`; who finds tokens that are not the text's."""
    runs = {name: _told(_witnessed(model, sampling, blank, steps)) for name, sampling in samplings.items()}
    return {"steps": steps, "runs": runs, "detection": detection(model, held_out.to(blank.tokens.device), loss)}


def _witnessed(model: Any, sampling: Sampling, blank: State, steps: int) -> Judgements:
    witness = Witness(model, per_row=1, every=max(1, steps // 32))
    noise = Noise.rows(0, len(blank.tokens), device=blank.tokens.device)
    generate(model, blank, sampling.build_policy(), steps=steps, noise=noise, draw=sampling.build_draw(), watch=witness)
    return witness.judgements()


def _told(seen: Judgements) -> dict[str, Any]:
    by_time = [(low / 5 <= seen.filled) & (seen.filled < (low + 1) / 5 + (low == 4)) for low in range(5)]
    return {
        "tokens": len(seen.quality),
        "against_likelihood": reliability(seen.quality, seen.likelihood).summary(),
        "by_fifth_filled": [
            reliability(seen.quality[part], seen.likelihood[part]).summary() for part in by_time if part.any()
        ],
        "scatter": {
            part: np.round(getattr(seen, part)[:2000], 4).tolist() for part in ("quality", "entropy", "likelihood")
        },
    }


@torch.no_grad()
def detection(model: Any, held_out: Batch, loss: PrismLoss) -> dict[str, Any]:
    """True texts with some tokens drawn anew, as in training: whose score points at those that came out different?"""
    noise = Noise.rows(99, len(held_out.tokens), device=held_out.tokens.device)
    y, chosen = loss.drawn(model, held_out, model.facts.mask_id, noise)
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
