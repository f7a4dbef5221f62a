"""The sampler as a user writes it down: names and numbers that become objects here and nowhere else."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from prism.sampling.draw import Draw
from prism.sampling.loop import MOST_STEPS
from prism.sampling.order import Confidence, Leftmost, LowEntropy, Margin, Order, RandomOrder, TopProbability
from prism.sampling.policies import METHODS, Binomial, CappedBinomial, Centred, Every, Fixed, Method, Settings
from prism.sampling.policies.revisiting import Revisiting
from prism.sampling.policy import Pair, Policy
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
SETTINGS: dict[str, tuple[str, ...]] = {
    "order": ("order",),
    "amount": ("k", "k_block", "cap", "eta"),
    "phase": ("on", "off"),
    "schedule": ("schedule",),
    "threshold": ("threshold",),
    "doubt": ("doubt",),
    "eta": ("eta",),
}
"""What of `Sampling` a method reads, by what its `Method.uses` says."""


@dataclass(frozen=True)
class Sampling:
    """How to sample."""

    policy: str = "prism"
    """Which method decides which masks are committed and which tokens are remasked: vanilla, mdlm, prism, prism-likelihood,
    prism-entropy, prism-restart, random, remdm-conf-topk, p2-self, p2-joint, p2-joint-paper, rdm, rcr, remdm-cap,
    remdm-rescale, remdm-conf, remdm-switch, remdm-loop, forward-backward, dfm, dream-origin, dream-maskgit-plus, dream-margin,
    dream-entropy, threshold, factor or entropy-bounded. `prism cite --policy NAME` prints its papers."""
    order: str | None = None
    """The order in which masks are committed: random (default), margin, confidence, maskgit, probability, entropy, leftmost."""
    steps: int | None = None
    """Forward passes (default: as many as there are masks)."""
    k: int | None = None
    """Tokens remasked per step (default 4; with --doubt, all that are doubtful)."""
    doubt: float | None = None
    """Remask only tokens less probable than this by the method's own score: quality, the model's probability, or its
    probability when the token was written. For code with few steps, better than a fixed number (try 0.2); for puzzles (0.8),
    as good as the best fixed number, with fewer remasks."""
    k_block: int | None = None
    """Instead of --k: tokens remasked per block, spread outwards from the middle of the block's steps; in a shorter last block,
    as many as it has room for."""
    eta: float | None = None
    """For methods with a count: K ~ Binomial(committed, eta). For ReMDM, P2 and the like: the published strength."""
    cap: bool = False
    """With --eta on a method with a count: cap it as ReMDM does."""
    on: float | None = None
    """Fraction of the steps after which remasking begins (default 0)."""
    off: float | None = None
    """Fraction of the steps after which it ends (default 1)."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the most likely token."""
    top_k: int | None = None
    """Draw from the k most likely tokens."""
    nucleus: float = 1.0
    """Draw from the most likely tokens that together hold this much probability (top-p)."""
    keep_crossing: bool = False
    """With --nucleus: also keep the token that crosses the bound."""
    schedule: str | None = None
    """Committed fraction over time: linear, cosine or plateau; the method's own if left out."""
    threshold: float | None = None
    """Commit at once every mask whose most likely token has at least this probability (policy threshold: 0.9 by default).
    Policies with a count also keep to their schedule, so this can only save forward passes; a block that fills up sooner
    remasks fewer tokens."""
    block: int | None = None
    """Write left to right in blocks of this many positions."""
    revisit: int | None = None
    """With --block: when a block begins, remask this many tokens of earlier blocks, worst first, and rewrite them together with
    it."""
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
        if unread := self._unread():
            flags = ", ".join(f"--{name}" for name in unread)
            raise ValueError(f"{flags}: the policy {method.name!r} does not use it; leave it out.")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise ValueError(f"--threshold {self.threshold}: a probability above 0 and at most 1; 0.9 is usual.")
        if self.doubt is not None and not 0 < self.doubt < 1:
            raise ValueError(f"--doubt {self.doubt}: a probability above 0 and below 1; 0.2 is usual.")
        placed = [f"--{name}" for name in SETTINGS["phase"] if getattr(self, name) is not None]
        if self.k_block is not None and placed:
            flags = ", ".join(placed)
            raise ValueError(
                f"{flags}: --k_block has its place in the block, around the middle; leave it out, or take --k."
            )
        policy = method.build(
            Settings(
                order=pick(self.order or "random", ORDERS, "order"),
                amount=self._amount(),
                phase=Phase(0.0 if self.on is None else self.on, 1.0 if self.off is None else self.off),
                eta=self.eta,
                threshold=self.threshold,
                doubt=self.doubt,
            )
        )
        return policy if self.revisit is None else self._revisiting(policy, self.revisit)

    def _revisiting(self, policy: Policy, k: int) -> Policy:
        if k < 1:
            raise ValueError(f"--revisit {k}: at least 1 token of earlier blocks; leave it out to take back none.")
        if self.block is None:
            raise ValueError(f"--revisit {k}: without blocks there are no earlier ones; give --block too.")
        if "amount" not in self.method().uses or not isinstance(policy, Pair):
            raise ValueError(
                f"--revisit {k}: the policy {self.policy!r} scores no tokens to take back; take prism, say."
            )
        return Revisiting(policy, k)

    def _unread(self) -> list[str]:
        """The settings that were given and that the method does not read."""
        read = {name for use in self.method().uses for name in SETTINGS[use]}
        others = dict.fromkeys(name for names in SETTINGS.values() for name in names if name not in read)
        return [name for name in others if getattr(self, name) != getattr(Sampling, name)]

    def only_what_it_reads(self) -> Sampling:
        """Without the settings that others need and this method does not read."""
        return replace(self, **{name: getattr(Sampling, name) for name in self._unread()})

    def _amount(self) -> Amount:
        if sum(value is not None for value in (self.k, self.k_block, self.eta)) > 1:
            raise ValueError(
                "--k, --k_block and --eta are three ways to say how many tokens go back; give one of them."
            )
        if self.cap and self.eta is None:
            raise ValueError("--cap limits --eta; give --eta too.")
        if self.k_block is not None:
            return Centred(self.k_block)
        if self.eta is not None and "amount" in self.method().uses:
            return CappedBinomial(self.eta) if self.cap else Binomial(self.eta)
        return Every() if self.doubt is not None and self.k is None else self._fixed()

    def build_draw(self) -> Draw:
        return Draw(self.temperature, self.top_k, self.nucleus, self.keep_crossing)

    def build_schedule(self) -> Schedule | None:
        return None if self.schedule is None else pick(self.schedule, SCHEDULES, "schedule")

    def check_length(self, free: int) -> None:
        """Settings that cannot work on sequences with `free` positions to generate."""
        for flag, value in (("--k", self.k), ("--k_block", self.k_block)):
            if value is not None and value > free:
                raise ValueError(f"{flag} {value} is more than the {free} positions to generate; take a smaller one.")
        if self.k is not None and not self.takes_back(free):
            raise ValueError(f"--k {self.k}: {self._no_room(free)}")
        if self.k_block is not None:
            self._check_room(self.k_block, free)

    def takes_back(self, free: int) -> bool:
        """Whether the K of every step (--k) is taken back anywhere, of a method that has one: a block of L positions must have
        between K + 1 and L - K - 1 tokens at some step."""
        amount = self._amount() if "amount" in self.method().uses else None
        if not isinstance(amount, Fixed) or amount.k == 0 or (room := self._smallest_block(free)) is None:
            return True
        return amount.held(*room, self.build_schedule() or Linear()) > 0

    def idle(self, free: int) -> str | None:
        """What to tell somebody who did not choose the K that nothing will come of; None where something will."""
        return None if self.takes_back(free) else f"Nothing will be remasked: {self._no_room(free)}"

    def _no_room(self, free: int) -> str:
        room = self._smallest_block(free)
        assert room is not None
        schedule = self.build_schedule() or Linear()
        most = next((k for k in range(self._fixed().k, 0, -1) if Fixed(k).held(*room, schedule)), 0)
        where = f"{_counted(room[1], 'step')} on {_counted(room[0], 'position')}"
        fewer = f"--k {most} or less" if most else "more --steps"
        larger = ", or a larger --block" if room[0] < free else ""
        return f"with {where} there is never room to remask {_counted(self._fixed().k, 'token')}; take {fewer}{larger}."

    def _fixed(self) -> Fixed:
        return Fixed(4 if self.k is None else self.k)

    def _smallest_block(self, free: int) -> tuple[int, int] | None:
        """Positions and steps of the full block that has the fewest; None where the loop will refuse them anyway."""
        size = min(self.block or free, free)
        steps = free if self.steps is None else self.steps
        if size < 1 or not -(-free // size) <= steps <= MOST_STEPS:
            return None
        blocks, full = -(-free // size), free // size
        return size, steps // blocks + (full <= steps % blocks)  # the first blocks take what does not divide

    def _check_room(self, k_block: int, free: int) -> None:
        """A block takes back nothing at its first step and leaves no mask at its last; between them there must be room."""
        room = self._smallest_block(free)
        if room is None:
            return
        size, fewest = room
        schedule = self.build_schedule() or Linear()

        def fits(k: int) -> bool:
            return Centred(k).held(size, fewest, schedule) == k

        if not fits(k_block):
            most = next(k for k in range(k_block - 1, -1, -1) if fits(k))
            raise ValueError(
                f"--k_block {k_block}: {fewest} steps on a block of {size} positions leave room to take back {most}; take no "
                "more, or more --steps, or another --block."
            )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


Kind = TypeVar("Kind")


def pick(name: str, choices: dict[str, Kind], what: str) -> Kind:
    """The choice of that name, or an error that offers the nearest ones."""
    if name in choices:
        return choices[name]
    raise ValueError(f"Unknown {what} {name!r}{suggestion(name, choices)}; choose from {', '.join(choices)}.")


def suggestion(name: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
