"""Every method under one name. A new one is a small class, one entry here (which gives it every law as a test and a place on
the command line), and one line in docs/papers.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prism.sampling.order import Order, RandomOrder
from prism.sampling.policies.joint import RCR, RDM, P2Self, P2SelfPaper
from prism.sampling.policies.remdm import (
    DFMCorrector,
    ForwardBackward,
    ReMDMCap,
    ReMDMConf,
    ReMDMLoop,
    ReMDMRescale,
    ReMDMSwitch,
)
from prism.sampling.policies.restart import Restart
from prism.sampling.policy import Never, Pair, Policy, Unmasker
from prism.sampling.remask import (
    Amount,
    Anywhere,
    Binomial,
    CappedBinomial,
    Centred,
    EntropyAware,
    Every,
    Fixed,
    LowConfidence,
    LowLikelihood,
    LowQuality,
)
from prism.sampling.unmask import (
    Ancestral,
    Counted,
    CountedAndSure,
    DreamEntropy,
    DreamMargin,
    DreamMaskgitPlus,
    DreamOrigin,
    EntropyBounded,
    Factor,
    Threshold,
)
from prism.schedule import Phase


@dataclass(frozen=True)
class Settings:
    """What the command line lets a user choose; each method reads what concerns it."""

    order: Order = field(default_factory=RandomOrder)
    amount: Amount = field(default_factory=lambda: Fixed(4))
    phase: Phase = field(default_factory=Phase)
    eta: float | None = None
    """The strength of ReMDM, P2 and their kin; None keeps each method's published default."""
    threshold: float | None = None
    """The probability from which on masks are committed at once; None where only the schedule commits, and 0.9 for the method
    that has no schedule."""
    doubt: float | None = None
    """The probability below which committed tokens may go back; None where any may."""


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    build: Callable[[Settings], Policy]
    uses: frozenset[str] = frozenset({"order", "schedule"})
    """The fields of `Settings` it reads, and whether it keeps to a schedule; setting another one is an error at the command
    line."""
    needs_head: bool = False


def _strength(settings: Settings) -> dict[str, Any]:
    return {} if settings.eta is None else {"eta": settings.eta}


def _pace(settings: Settings) -> Unmasker:
    """The schedule's, or a faster one where the model is sure."""
    if settings.threshold is None:
        return Counted(settings.order)
    return CountedAndSure(settings.order, settings.threshold)


def _own_pace(unmasker: Unmasker) -> Callable[[Settings], Policy]:
    return lambda settings: Pair(unmasker)


_PACED = frozenset({"order", "schedule", "threshold"})
_COUNTED = _PACED | {"amount", "phase"}
_DOUBTING = _COUNTED | {"doubt"}
_JOINT = frozenset({"schedule"})
_STRENGTH = frozenset({"order", "eta", "schedule"})

METHODS: tuple[Method, ...] = (
    Method("vanilla", "no remasking, fixed counts", lambda s: Pair(_pace(s), Never()), _PACED),
    Method("mdlm", "no remasking, MDLM's ancestral step", lambda s: Pair(Ancestral(s.order), Never())),
    Method(
        "prism",
        "PRISM: the lowest quality goes back",
        lambda s: Pair(_pace(s), LowQuality(s.amount, s.phase, s.doubt)),
        _DOUBTING,
        needs_head=True,
    ),
    Method(
        "prism-likelihood",
        "PRISM on a model tuned with the likelihood loss: the lowest own probability goes back",
        lambda s: Pair(_pace(s), LowLikelihood(s.amount, s.phase, s.doubt)),
        _DOUBTING,
    ),
    Method(
        "prism-entropy",
        "the same, sparing tokens with many alternatives (g·exp H)",
        lambda s: Pair(_pace(s), EntropyAware(s.amount, s.phase)),
        _COUNTED,
    ),
    Method(
        "prism-restart",
        "for puzzles: what is sure is written, else a guess; all goes back when that led nowhere or its quality is doubtful",
        lambda s: Restart(),
        frozenset(),
        needs_head=True,
    ),
    Method(
        "random",
        "random tokens go back, fixed counts",
        lambda s: Pair(_pace(s), Anywhere(s.amount, s.phase)),
        _COUNTED,
    ),
    Method(
        "remdm-conf-topk",
        "the lowest probability at commit time goes back, fixed counts",
        lambda s: Pair(_pace(s), LowConfidence(s.amount, s.phase, s.doubt)),
        _DOUBTING,
    ),
    Method(
        "p2-self",
        "P2-self's score, the model's own probability of each committed token, fixed counts",
        lambda s: Pair(_pace(s), LowLikelihood(s.amount, s.phase, s.doubt)),
        _DOUBTING,
    ),
    Method("p2-joint", "P2-self, one ranking, as released", lambda s: P2Self(**_strength(s)), _JOINT | {"eta"}),
    Method(
        "p2-joint-paper",
        "P2-self, one ranking, η as in its Eq. 7",
        lambda s: P2SelfPaper(**_strength(s)),
        _JOINT | {"eta"},
    ),
    Method("rdm", "one ranking by the model's own probability", lambda s: RDM(), _JOINT),
    Method("rcr", "one ranking by the probability at commit time", lambda s: RCR(), _JOINT),
    Method("remdm-cap", "ReMDM, σ capped at η", lambda s: ReMDMCap(s.order, **_strength(s)), _STRENGTH),
    Method("remdm-rescale", "ReMDM, σ = η·σ_max", lambda s: ReMDMRescale(s.order, **_strength(s)), _STRENGTH),
    Method("remdm-conf", "ReMDM-conf as published", lambda s: ReMDMConf(s.order)),
    Method("remdm-switch", "ReMDM-cap from t = 0.5 on", lambda s: ReMDMSwitch(s.order, **_strength(s)), _STRENGTH),
    Method(
        "remdm-loop", "ReMDM with a plateau", lambda s: ReMDMLoop(s.order, **_strength(s)), frozenset({"order", "eta"})
    ),
    Method("forward-backward", "a step back for every step forward", lambda s: ForwardBackward(s.order)),
    Method("dfm", "discrete flow matching's corrector", lambda s: DFMCorrector(s.order), frozenset({"order"})),
    Method("dream-origin", "Dream's random decoding", _own_pace(DreamOrigin()), frozenset()),
    Method("dream-maskgit-plus", "Dream's decoding by confidence", _own_pace(DreamMaskgitPlus()), frozenset()),
    Method("dream-margin", "Dream's decoding by margin", _own_pace(DreamMargin()), frozenset()),
    Method("dream-entropy", "Dream's decoding by entropy", _own_pace(DreamEntropy()), frozenset()),
    Method(
        "threshold",
        "Fast-dLLM: all that are likely enough, whatever the schedule",
        lambda s: Pair(Threshold() if s.threshold is None else Threshold(s.threshold)),
        frozenset({"threshold"}),
    ),
    Method("factor", "Fast-dLLM: by the factor rule", _own_pace(Factor()), frozenset()),
    Method("entropy-bounded", "EB-Sampler", _own_pace(EntropyBounded()), frozenset()),
)

__all__ = [
    "METHODS",
    "RCR",
    "RDM",
    "Binomial",
    "CappedBinomial",
    "Centred",
    "DFMCorrector",
    "Every",
    "Fixed",
    "ForwardBackward",
    "Method",
    "P2Self",
    "P2SelfPaper",
    "ReMDMCap",
    "ReMDMConf",
    "ReMDMLoop",
    "ReMDMRescale",
    "ReMDMSwitch",
    "Restart",
    "Settings",
]
