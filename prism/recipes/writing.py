"""Writing text as a user writes it down: names and numbers that become a `Writer`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prism.data.writing import Messages, Writing
from prism.models.attach import PrismModel
from prism.models.backbone import Backbone
from prism.models.cached import Cached
from prism.models.judge import Judged
from prism.recipes.sampling import Sampling, pick
from prism.writer import Eos, Model, Writer

KEEPS_SUFFIX = {"prefix": False, "dual": True}
"""What a cache of that name keeps of the text behind the block: nothing, or all of it."""


@dataclass(frozen=True, kw_only=True)
class TextSampling(Sampling):
    """How to write text."""

    eos: str = "stop"
    """At an end-of-text token: stop (finish the block and cut the text there) or keep (continue to the full length)."""
    min_tokens: int = 0
    """Draw no end-of-text token among the first this many generated tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    cache: str | None = None
    """Compute only the block being written (dual), or it and what follows (prefix), and keep the rest as it was when the block
    began: fewer operations, and an approximation. How much faster depends: at 8B on an H200 dual writes one text 1.7 times as
    fast as no cache, 3.2 times with --recorded, and eight texts 8 times as fast; prefix is slower than none with one text.
    LLaDA and Dream only."""
    refresh: int | None = None
    """With --cache: also recompute everything every so many steps within a block. Without it dual costs quality; 2 gave that
    back where we measured it (4M parameters)."""
    recorded: bool = False
    """On a GPU: record the steps of a batch and replay them, which saves work on the host. It pays where texts are few and
    --cache dual leaves little to compute (1.9 times as fast for one text at 8B). Not with a prefix cache or --min_tokens."""
    compile: bool = False
    """Compile the model's layers first, which takes a minute or so each time the command runs: for much writing on a GPU, with
    --recorded. What is rounded otherwise may, now and then, become another token."""
    batch: int = 16
    """Texts written at once; without --cache it does not affect the result."""

    def build_writer(
        self, model: Backbone | PrismModel | Judged, writing: Writing, new_tokens: int, device: torch.device
    ) -> Writer:
        if self.recorded and device.type != "cuda":
            raise ValueError("--recorded true: steps are recorded on a GPU only; leave it out.")
        if self.min_tokens and not writing.ends:
            raise ValueError(
                f"--min_tokens {self.min_tokens}: this tokenizer names no token that ends a text; leave it out."
            )
        if self.compile:
            for backbone in _backbones(model):
                backbone.compile(
                    dynamic=True
                )  # for texts of all lengths at once, or every prompt would be compiled for anew
        return Writer(
            self.with_cache(model),
            writing,
            self.build_policy(),
            new_tokens=new_tokens,
            steps=self.steps,
            block=self.block,
            draw=self.build_draw(),
            schedule=self.build_schedule(),
            eos=self.build_eos(),
            stop=self.stop,
            batch=self.batch,
            recorded=self.recorded,
            device=device,
        )

    def build_eos(self) -> Eos:
        if self.min_tokens < 0:
            raise ValueError(f"--min_tokens {self.min_tokens}: must be 0 or more.")
        return Eos(pick(self.eos, {"stop": True, "keep": False}, "--eos"), self.min_tokens)

    def with_cache(self, model: Backbone | PrismModel | Judged) -> Model:
        if self.cache is None:
            if self.refresh is not None:
                raise ValueError("--refresh renews a cache; give --cache prefix or --cache dual too.")
            return model
        if isinstance(model, Judged):
            raise ValueError("--cache and --corrector do not go together: a corrector reads everything at every step.")
        return Cached(model, refresh=self.refresh, suffix=not pick(self.cache, KEEPS_SUFFIX, "--cache"))

    def check_writing(self) -> None:
        """What can be known to be wrong before a model is loaded."""
        self.build_policy(), self.build_draw(), self.build_schedule(), self.build_eos()
        if self.cache is not None:
            pick(self.cache, KEEPS_SUFFIX, "--cache")
        if self.recorded and (self.min_tokens or self.cache == "prefix"):
            raise ValueError(
                "--recorded true: with --min_tokens or --cache prefix no two steps are alike; leave one of them out."
            )
        if self.block is not None and self.block < 1:
            raise ValueError(f"--block {self.block}: at least 1 position; leave it out to write all at once.")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"--steps {self.steps}: take at least 1 forward pass.")
        if self.batch < 1:
            raise ValueError(f"--batch {self.batch}: at least 1 text at once.")


def _backbones(model: Backbone | PrismModel | Judged) -> list[Backbone]:
    """Whatever computes."""
    models = [model.writer, model.judge] if isinstance(model, Judged) else [model]
    return [one.backbone if isinstance(one, PrismModel) else one for one in models]


def conversation(text: str, system: str | None) -> Messages:
    """What a user says, and what the model was told before."""
    told = [] if system is None else [{"role": "system", "content": system}]
    return [*told, {"role": "user", "content": text}]
