"""The shared words of the package: where a batch of sequences stands, what a model says of it, and what one step does.

Notation (docs/notation.md): a sequence x has clean tokens and masks m; `z` is x with some tokens masked. *Commit*: a mask
becomes a token. *Remask*: a committed token becomes a mask again. *Draft*: drawn, not written. *Quality*: a probability,
g^i(y) = p(x^i = y^i | y ⊕ m_i) (PRISM, Section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from prism.vocabulary import entropy_in, entropy_of, log_probability_in, log_probability_through, rows_at_once

Tokens = Int[Tensor, "b l"]
Mask = Bool[Tensor, "b l"]
Scores = Float[Tensor, "b l"]
Hidden = Float[Tensor, "b l d"]
Counts = Int[Tensor, " b"]


@dataclass(frozen=True)
class State:
    """Where one batch of sequences stands."""

    tokens: Tokens
    frozen: Mask
    """Prompt and padding: never edited."""
    attend: Mask | None
    """False on padding; None when no row is padded."""
    confidence: Scores
    """The model's probability of each token at the moment it was committed; 1 for given tokens."""
    window: Mask
    """The block being written now; the whole sequence unless sampling is semi-autoregressive."""
    step: Counts
    """How many steps each row has taken."""
    mask_id: int

    @property
    def editable(self) -> Mask:
        """Positions a policy may write or remask in this step."""
        return self.window & ~self.frozen

    @property
    def masked(self) -> Mask:
        return self.editable & (self.tokens == self.mask_id)

    @property
    def committed(self) -> Mask:
        """Generated (not given) tokens inside the window."""
        return self.editable & (self.tokens != self.mask_id)

    def rows(self, index: Int[Tensor, " n"]) -> State:
        """Some of the sequences, where they stand."""
        return replace(
            self,
            tokens=self.tokens[index],
            frozen=self.frozen[index],
            attend=None if self.attend is None else self.attend[index],
            confidence=self.confidence[index],
            window=self.window[index],
            step=self.step[index],
        )

    def after(self, edit: Edit, draft: Draft) -> State:
        """The state once `edit` is carried out: drafts are written where it says, masks where it says."""
        tokens = torch.where(edit.write, draft.tokens, self.tokens).masked_fill(edit.remask, self.mask_id)
        confidence = torch.where(edit.write, draft.probability, self.confidence)
        return replace(self, tokens=tokens, confidence=confidence)


def start(tokens: Tokens, mask_id: int, *, frozen: Mask | None = None, lengths: Counts | None = None) -> State:
    """The state before the first step: masks in `tokens` are to be generated.

    Without `frozen`, every given token is a prompt and stays (infilling is the same thing: prompts may stand anywhere);
    with it, given tokens that are not frozen count as generated and may be remasked. Positions from `lengths[b]` on are
    padding.
    """
    b, length = tokens.shape
    if not mask_id >= 0:
        raise ValueError(f"mask_id={mask_id} is not a token id; it must be 0 or more.")
    given = tokens != mask_id
    if frozen is None:
        frozen = given
    elif bool((frozen & ~given).any()):
        raise ValueError("A frozen position holds the mask token; give it a token, or leave it out of `frozen`.")
    attend = None
    if lengths is not None:
        if bool((lengths < 1).any()) or bool((lengths > length).any()):
            raise ValueError(f"lengths must lie in 1..{length} (the width of `tokens`), got {lengths.tolist()}.")
        attend = torch.arange(length, device=tokens.device) < lengths[:, None]
        frozen = frozen | ~attend
    return State(
        tokens=tokens,
        frozen=frozen,
        attend=attend,
        confidence=torch.ones_like(tokens, dtype=torch.float32),
        window=torch.ones_like(frozen),
        step=torch.zeros(b, dtype=torch.long, device=tokens.device),
        mask_id=mask_id,
    )


@dataclass(frozen=True)
class Draft:
    """Tokens drawn from the model, dense for convenience; only the positions that were asked for mean anything."""

    tokens: Tokens
    probability: Scores
    """The model's own probability of each drawn token (temperature 1, nothing filtered out)."""


@dataclass(frozen=True)
class Edit:
    """Everything one step does. `write` and `remask` are disjoint: what is remasked cannot be refilled in the same step."""

    write: Mask
    """Positions that take their draft token."""
    remask: Mask
    """Positions that become masks again."""
    draft: Draft | None = None
    """Set by policies that drew before they chose; otherwise the loop draws at `write` alone."""


Answer = TypeVar("Answer", Tensor, tuple[Tensor, ...])
"""One entry per row, or several of them side by side."""
SMALL_VOCABULARY = 256


def _is_small(vocabulary: int | None) -> bool:
    return vocabulary is not None and vocabulary <= SMALL_VOCABULARY


class Reading:
    """What the model says at some positions, at those of `where` at least.

    The only way to the vocabulary: logits are made a chunk of rows at a time, asked, and let go, also in training, where the
    backward pass makes them again. Everything of the whole vocabulary at every position of a text would be gigabytes.
    """

    def __init__(
        self,
        rows: Float[Tensor, "n d"],
        logits: Callable[[Float[Tensor, "n d"]], Float[Tensor, "n v"]],
        vocabulary: int | None,
        where: Mask,
        index: Int[Tensor, " n"] | None,
        learned_through: Callable[[Float[Tensor, "n d"], Int[Tensor, " n"]], Float[Tensor, " n"]] | None = None,
    ) -> None:
        """`index` says where `rows` lie in the flattened batch, those behind its end being padding; None means everywhere.
        `learned_through` is a faster way to the log-probability of one token a row, and back, where there is one."""
        self.rows, self.where, self.index = rows, where, index
        self._logits, self._vocabulary, self._learned_through = logits, vocabulary, learned_through

    def each(self, ask: Callable[..., Answer], *others: Shaped[Tensor, " n"]) -> Answer:
        """`ask(logits, *others)` of some rows at a time, put together again; the logits are raw, -inf where forbidden."""
        answer = partial(_answered, self._logits, ask)
        at_once = len(self.rows) if self._vocabulary is None else rows_at_once(self._vocabulary, self.rows.device)
        if len(self.rows) <= at_once:
            return answer(self.rows, *others)
        answers: Any = [
            checkpoint(answer, *chunk, use_reentrant=False) if self._learns else answer(*chunk)
            for chunk in zip(*(tensor.split(at_once) for tensor in (self.rows, *others)), strict=True)
        ]
        several = isinstance(answers[0], tuple)
        whole: Any = tuple(torch.cat(part) for part in zip(*answers, strict=True)) if several else torch.cat(answers)
        return whole

    @property
    def log_probabilities(self) -> Float[Tensor, "n v"]:
        """log f^i(· | x), all at once."""
        return self.each(log_softmax)

    def of(self, tokens: Tokens) -> Float[Tensor, " n"]:
        """log f^i(tokens^i | x)."""
        if self._learned_through is not None and self._learns:
            return self._learned_through(self.rows, self.take(tokens))
        small = _is_small(self._vocabulary)  # part of some larger kernel anyway
        return self.each(log_probability if small or self._learns else log_probability_in, self.take(tokens))

    @property
    def entropies(self) -> Float[Tensor, " n"]:
        """H(f^i(· | x)) in nats; not to learn from."""
        return self.each(entropy_of if _is_small(self._vocabulary) else entropy_in)

    def of_and_entropies(self, tokens: Tokens) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """`of(tokens)` and `entropies` of the same logits, which are made once; not to learn from."""
        small = _is_small(self._vocabulary)
        asked = (log_probability, entropy_of) if small else (log_probability_in, entropy_in)
        found: Any = self.each(lambda logits, tokens: (asked[0](logits, tokens), asked[1](logits)), self.take(tokens))
        return found

    @property
    def _learns(self) -> bool:
        return torch.is_grad_enabled() and self.rows.requires_grad

    def take(self, dense: Shaped[Tensor, "b l"], padding: float | None = None) -> Shaped[Tensor, " n"]:
        """The entries of something laid out over the batch at the positions that were read; anything at rows that are padding,
        unless `padding` is given."""
        if self.index is None:
            return dense.flatten()
        end = dense.numel()
        taken = dense.flatten().index_select(0, self.index.clamp_max(end - 1))
        return taken if padding is None else taken.masked_fill(self.index >= end, padding)

    def spread(self, values: Shaped[Tensor, " n"], fill: float | int) -> Shaped[Tensor, "b l"]:
        """Values of the positions that were read, laid out over the batch; `fill` outside `where`."""
        if self.index is not None:
            values = _laid_out(values, self.where)
        return values.view(self.where.shape).masked_fill(~self.where, fill)


def _answered(logits: Callable[[Tensor], Tensor], ask: Callable[..., Answer], rows: Tensor, *others: Tensor) -> Answer:
    return ask(logits(rows), *others)


def _first_places(where: Mask, most: int) -> Int[Tensor, " n"]:
    """The first `most` positions of `where` in the flattened batch, then its end: `nonzero_static`, in operations that become
    part of a compiled step's kernels instead of five kernels of their own."""
    return torch.searchsorted(_counted(where), torch.arange(1, most + 1, dtype=torch.int32, device=where.device))


def _laid_out(values: Shaped[Tensor, " n"], where: Mask) -> Shaped[Tensor, " m"]:
    """Values of the positions of `where`, in order, over the flattened batch; anything elsewhere."""
    if not len(values):
        return F.pad(values, (0, where.numel()))  # zeros that know where they come from
    return values.index_select(0, (_counted(where) - 1).clamp(0, len(values) - 1))


def _counted(where: Mask) -> Int[Tensor, " m"]:
    """How many positions of `where` there are up to each, which included."""
    return where.flatten().cumsum(0, dtype=torch.int32)


def log_probability(logits: Float[Tensor, "n v"], tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log softmax(logits)[token] of every row."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    known = tokens.clamp_max(logits.shape[-1] - 1)  # a mask may be outside the vocabulary
    return logits.gather(-1, known[:, None])[:, 0] - logits.logsumexp(-1)


def log_softmax(logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """In float32 at least, whatever the model computes in."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def aligned(hidden: Hidden, shift: int) -> Hidden:
    """At every position the hidden state its token is predicted from: a shifted model's token i is predicted at i - shift, and
    the first ones at their own."""
    return torch.cat([hidden[:, :shift], hidden[:, :-shift]], dim=1) if shift else hidden


class Prediction:
    """What one forward pass says of a batch: hidden states always, everything else only when and where it is asked for.

    Logits are raw: a committed position shows what the model predicts there, not a copy of its token, which policies that
    judge committed tokens by the model's own probability need (P2-self, likelihood-PRISM).
    """

    def __init__(
        self,
        hidden: Hidden,
        unembed: Callable[[Float[Tensor, "n d"]], Float[Tensor, "n v"]],
        *,
        projection: tuple[Tensor, Tensor | None] | None = None,
        vocabulary: int | None = None,
        shift: int = 0,
        forbidden: Int[Tensor, " f"] | None = None,
        barred: tuple[Int[Tensor, " g"], Mask] | None = None,
        quality_logits: Callable[[], Scores] | None = None,
        quality_of: Callable[[Float[Tensor, "n d"]], Float[Tensor, " n"]] | None = None,
        quality_in_rows: Callable[[Int[Tensor, "b m"]], Float[Tensor, "b m"]] | None = None,
        calibration: Callable[[Scores], Scores] | None = None,
    ) -> None:
        """`projection` is what `unembed` multiplies by and adds, if that is all it does. `forbidden` ids have probability 0
        everywhere, `barred` ones at some positions. `quality_of` judges hidden states one by one, if the head can;
        `quality_in_rows` those at some places of every row. `calibration` is what all quality logits go through
        last."""
        self.hidden = hidden
        self._unembed, self._projection = unembed, projection
        self._vocabulary = vocabulary
        self._shift = shift
        self._forbidden = forbidden
        self._barred = barred
        self._quality_logits, self._quality_of, self._quality_in_rows = quality_logits, quality_of, quality_in_rows
        self._calibration = calibration
        self._quality_cache: Scores | None = None

    def logits(self, where: Mask) -> Float[Tensor, "n v"]:
        """Raw logits at the positions of `where`, in row-major order."""
        return self._unembed(self._rows(where.flatten().nonzero()[:, 0]))

    def log_probabilities(self, where: Mask) -> Float[Tensor, "n v"]:
        """log f^i(· | x) at the positions of `where`; the mask token and other forbidden ids have probability 0."""
        return self._reading(where, where.flatten().nonzero()[:, 0]).log_probabilities

    def read(self, where: Mask, most: int | None = None) -> Reading:
        """The same for whoever lays the answers out over the batch again. How many positions there are is asked of the device,
        unless `most` bounds their number. A small vocabulary is read everywhere, which costs less than asking."""
        if self.is_small or (most or 0) >= where.numel():
            return self._reading(where, None)
        if most is None:
            return self._reading(where, where.flatten().nonzero()[:, 0])
        return self._reading(where, _first_places(where, most))

    @property
    def is_small(self) -> bool:
        """Whether the vocabulary is small enough to be read everywhere."""
        return _is_small(self._vocabulary)

    def _reading(self, where: Mask, index: Int[Tensor, " n"] | None) -> Reading:
        inside = None if index is None else index.clamp_max(where.numel() - 1)
        rows = self._rows(inside)
        if self._barred is None:
            through = None if self.is_small or self._projection is None else self._log_probability
            return Reading(rows, self._allowed, self._vocabulary, where, index, through)
        places = self._barred[1].flatten()
        flags = places if inside is None else places.index_select(0, inside)
        # the flag travels with its row to wherever the logits are made
        rows = torch.cat([rows, flags[:, None].to(rows.dtype)], dim=1)
        return Reading(rows, self._allowed_there, self._vocabulary, where, index)

    def _rows(self, index: Int[Tensor, " n"] | None) -> Float[Tensor, "n d"]:
        rows = aligned(self.hidden, self._shift).flatten(0, 1)
        # index_select, not hidden[where]: its gradient adds rows instead of sorting them
        return rows if index is None else rows.index_select(0, index)

    def _log_probability(self, rows: Float[Tensor, "n d"], tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        assert self._projection is not None
        return log_probability_through(rows, *self._projection, self._forbidden, tokens)

    def _allowed(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
        logits = self._unembed(rows)
        return logits if self._forbidden is None else logits.index_fill(-1, self._forbidden, -torch.inf)

    def _allowed_there(self, flagged: Float[Tensor, "n e"]) -> Float[Tensor, "n v"]:
        assert self._barred is not None
        ids, logits = self._barred[0], self._allowed(flagged[:, :-1])
        return logits.index_copy(-1, ids, logits[:, ids].masked_fill(flagged[:, -1:] > 0, -torch.inf))

    @property
    def quality_logits(self) -> Scores:
        if self._quality_cache is None:
            if self._quality_logits is None:
                raise ValueError(
                    "This model has no quality head, so it cannot tell how likely its tokens are; attach one with "
                    "prism.attach(backbone, head), load a corrector with prism.load, or pick a training-free policy."
                )
            self._quality_cache = self._calibrated(self._quality_logits())
        return self._quality_cache

    def quality_logits_at(self, where: Mask, most: int | None) -> Scores:
        """The same, right at the positions of `where` at least, of which there are at most `most`, equally many in every row,
        if that is known."""
        if most is None or most >= where.numel():
            return self.quality_logits
        if self._quality_of is not None:
            index = _first_places(where, most).clamp_max(where.numel() - 1)
            found = self._quality_of(self.hidden.flatten(0, 1).index_select(0, index))
            return self._calibrated(_laid_out(found, where).view(where.shape))
        if self._quality_in_rows is not None:
            places = where.byte().topk(most // len(where), dim=1).indices
            found = self._quality_in_rows(places)
            return self._calibrated(found.new_zeros(where.shape).scatter(1, places, found))
        return self.quality_logits

    def _calibrated(self, logits: Scores) -> Scores:
        return logits if self._calibration is None else self._calibration(logits)

    @property
    def quality(self) -> Scores:
        """g^i: the probability that the token at i is right given the rest of the sequence."""
        return self.quality_logits.float().sigmoid()

    def judged_by(
        self,
        quality_logits: Callable[[], Scores],
        *,
        quality_of: Callable[[Float[Tensor, "n d"]], Float[Tensor, " n"]] | None = None,
        quality_in_rows: Callable[[Int[Tensor, "b m"]], Float[Tensor, "b m"]] | None = None,
        calibration: Callable[[Scores], Scores] | None = None,
    ) -> Prediction:
        """The same prediction with somebody else's quality."""
        return self._changed(self._barred, quality_logits, quality_of, quality_in_rows, calibration)

    def without(self, ids: Int[Tensor, " f"], where: Mask) -> Prediction:
        """The same prediction with probability 0 for the tokens `ids` at the positions of `where`."""
        quality = self._quality_logits, self._quality_of, self._quality_in_rows, self._calibration
        return self._changed((ids, where), *quality)

    def _changed(
        self,
        barred: tuple[Int[Tensor, " g"], Mask] | None,
        quality_logits: Callable[[], Scores] | None,
        quality_of: Callable[[Float[Tensor, "n d"]], Float[Tensor, " n"]] | None,
        quality_in_rows: Callable[[Int[Tensor, "b m"]], Float[Tensor, "b m"]] | None,
        calibration: Callable[[Scores], Scores] | None,
    ) -> Prediction:
        return Prediction(
            self.hidden,
            self._unembed,
            projection=self._projection,
            vocabulary=self._vocabulary,
            shift=self._shift,
            forbidden=self._forbidden,
            barred=barred,
            quality_logits=quality_logits,
            quality_of=quality_of,
            quality_in_rows=quality_in_rows,
            calibration=calibration,
        )

    @property
    def has_quality(self) -> bool:
        return self._quality_logits is not None


@dataclass(frozen=True)
class Step:
    """One turn of the loop, as its observers see it."""

    before: State
    after: State
    edit: Edit
    prediction: Prediction
    """Of `before`: its quality is that of the tokens the policy looked at."""
    forwards: Counts
    """Forward passes each row has taken so far, this one included."""
    remasks: Counts
    """Tokens taken back so far."""
    flipflops: Counts
    """How many of them came back as the very same token."""
