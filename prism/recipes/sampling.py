"""The sampler as a user writes it down: names and numbers that become objects here and nowhere else."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from prism.sampling.draw import Draw
from prism.sampling.order import Confidence, Leftmost, LowEntropy, Margin, Order, RandomOrder, TopProbability
from prism.sampling.policies import METHODS, Binomial, CappedBinomial, Centred, Fixed, Method, Settings
from prism.sampling.policy import Policy
from prism.sampling.remask import Amount
from prism.schedule import Cosine, Linear, Phase, Plateau, Schedule

ORDERS: dict[str, Order] = {
    "random": RandomOrder(),
    "margin": Margin(),
    "confidence": Confidence(),
    "maskgit": Confidence(temperature=4.5),
    "probability": TopProbability(),
    "entropy": LowEntropy(),
    "leftmost": Leftmost(),
}
SCHEDULES: dict[str, Schedule] = {"linear": Linear(), "cosine": Cosine(), "plateau": Plateau()}


@dataclass(frozen=True)
class Sampling:
    """How to sample."""

    policy: str = "prism"
    """Which method decides what is committed and what goes back to a mask; `prism compare --help` lists them all."""
    order: str | None = None
    """In which order masks are committed: random (default), margin, confidence, maskgit, probability, entropy, leftmost."""
    steps: int | None = None
    """Forward passes; as many as there are masks if left out."""
    k: int | None = None
    """Tokens taken back per step (default 4)."""
    k_block: int | None = None
    """Tokens taken back per block instead, spread over the block from its middle."""
    eta: float | None = None
    """For counted methods K ~ Binomial(committed, eta); for ReMDM, P2 and their kin the published strength."""
    cap: bool = False
    """With eta on a counted method: cap it as ReMDM does."""
    on: float | None = None
    """Fraction of the steps after which remasking begins (default 0)."""
    off: float | None = None
    """Fraction of the steps after which it ends (default 1)."""
    temperature: float = 1.0
    """Of the draws; 0 takes the most likely token."""
    top_k: int | None = None
    """Draw among the k most likely tokens."""
    nucleus: float = 1.0
    """Draw among the most likely tokens that hold this much probability."""
    keep_crossing: bool = False
    """Nucleus: keep the token that crosses the bound too."""
    schedule: str | None = None
    """Committed fraction over time: linear, cosine or plateau; the method's own if left out."""
    block: int | None = None
    """Write left to right in blocks of this many positions."""
    seed: int = 0
    """The same seed gives the same result."""

    def described(self) -> dict[str, Any]:
        """The policy and what differs from the defaults, as a results file holds it."""
        default, names = Sampling(), [field.name for field in fields(Sampling)]
        own = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(default, name)}
        return {"policy": self.policy, **own}

    def method(self) -> Method:
        return pick(self.policy, {method.name: method for method in METHODS}, "policy")

    def build_policy(self) -> Policy:
        """The policy, checked: a setting the method does not read is an error, not a wish."""
        method = self.method()
        given = {
            "order": ["--order"] if self.order is not None else [],
            "amount": self._amount_flags(method),
            "phase": [flag for flag, value in (("--on", self.on), ("--off", self.off)) if value is not None],
            "schedule": ["--schedule"] if self.schedule is not None else [],
            "eta": ["--eta"] if self.eta is not None and "amount" not in method.uses else [],
        }
        unread = [flag for setting, flags in given.items() if setting not in method.uses for flag in flags]
        if unread:
            raise ValueError(f"{', '.join(unread)}: the policy {method.name!r} does not use it; leave it out.")
        return method.build(
            Settings(
                order=pick(self.order or "random", ORDERS, "order"),
                amount=self._amount(),
                phase=Phase(0.0 if self.on is None else self.on, 1.0 if self.off is None else self.off),
                eta=self.eta,
            )
        )

    def _amount_flags(self, method: Method) -> list[str]:
        flags = [("--k", self.k is not None), ("--k-block", self.k_block is not None), ("--cap", self.cap)]
        flags.append(("--eta", self.eta is not None and "amount" in method.uses))
        return [flag for flag, given in flags if given]

    def _amount(self) -> Amount:
        if sum(value is not None for value in (self.k, self.k_block, self.eta)) > 1:
            raise ValueError(
                "--k, --k-block and --eta are three ways to say how many tokens go back; give one of them."
            )
        if self.cap and self.eta is None:
            raise ValueError("--cap limits --eta; give --eta too.")
        if self.k_block is not None:
            return Centred(self.k_block)
        if self.eta is not None and "amount" in self.method().uses:
            return CappedBinomial(self.eta) if self.cap else Binomial(self.eta)
        return Fixed(4 if self.k is None else self.k)

    def build_draw(self) -> Draw:
        return Draw(self.temperature, self.top_k, self.nucleus, self.keep_crossing)

    def build_schedule(self) -> Schedule | None:
        return None if self.schedule is None else pick(self.schedule, SCHEDULES, "schedule")

    def check_length(self, free: int) -> None:
        """Settings that cannot work on sequences with `free` positions to generate."""
        for flag, value in (("--k", self.k), ("--k-block", self.k_block)):
            if value is not None and value > free:
                raise ValueError(f"{flag} {value} is more than the {free} positions to generate; take a smaller one.")


Kind = TypeVar("Kind")


def pick(name: str, choices: dict[str, Kind], what: str) -> Kind:
    """The choice of that name, or an error that offers the nearest ones."""
    if name in choices:
        return choices[name]
    raise ValueError(f"Unknown {what} {name!r}{suggestion(name, choices)}; choose from {', '.join(choices)}.")


def suggestion(name: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
