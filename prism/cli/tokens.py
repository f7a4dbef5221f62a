"""prism sample, prism score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from prism.cli.command import Command, WithModel, console, own_length, require_head, show_record
from prism.cli.palette import quality_style
from prism.data.writing import Board, Writing
from prism.evaluation.record import Stopwatch, plain
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate
from prism.state import start


@dataclass(frozen=True, kw_only=True)
class Sample(WithModel, Sampling, Command):
    """Generate sequences, from nothing or around a prompt."""

    prompt: str = ""
    """Text to start from, or to fill in where it has mask tokens; for a Sudoku model a puzzle, for a model without a
    tokenizer ids. It is never changed."""
    length: int | None = None
    """Tokens in all, the prompt included; the model's own length if left out."""
    count: int = 1
    """How many sequences."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        policy, draw, schedule = self.build_policy(), self.build_draw(), self.build_schedule()
        if self.count < 1:
            raise ValueError(f"--count {self.count}: generate at least 1 sequence.")
        model = self.load()
        require_head(model, self.method())
        writing = self.writing(model)
        tokens = self._canvas(model, writing).repeat(self.count, 1).to(self.torch_device())
        state = start(tokens, model.facts.mask_id)
        free = int((~state.frozen).sum(1).max())
        if free == 0:
            raise ValueError("The prompt leaves nothing to generate; make --length larger.")
        self.check_length(free)
        steps = self.steps if self.steps is not None else free
        noise = Noise.rows(self.seed, self.count, device=tokens.device)
        with torch.no_grad():
            result = generate(
                model, state, policy, steps=steps, noise=noise, draw=draw, schedule=schedule, block=self.block
            )
            prediction = model.predict(result.tokens)
            quality = prediction.quality.cpu() if prediction.has_quality else None
        texts = []
        for row, sequence in enumerate(result.tokens.tolist()):
            pieces = writing.pieces(sequence)
            texts.append("".join(pieces))
            shades = [None] * len(pieces) if quality is None else quality[row].tolist()
            given = state.frozen[row].tolist()
            console.print(painted(pieces, shades, given), soft_wrap=True)
            console.print()
        record = clock.record("sample", self, seed=self.seed, model=model, name=self.model or "embedded")
        show_record(record)
        return {
            "tokens": result.tokens.tolist(),
            "texts": texts,
            "quality": None if quality is None else [[round(q, 6) for q in row] for row in quality.tolist()],
            "nfe": float(result.forwards.float().mean()),
            "remasks": float(result.remasks.float().mean()),
            "policy": plain(policy),
            "record": plain(record),
        }

    def _canvas(self, model: Any, writing: Writing) -> torch.Tensor:
        """The prompt and the masks around it, one row."""
        if isinstance(writing, Board):
            if self.length is not None:
                raise ValueError("--length: a board always has its 81 cells; leave it out.")
            return torch.tensor([writing.read(self.prompt or "." * 81)])
        if self.length is not None and self.length < 1:
            raise ValueError(f"--length {self.length}: a sequence has at least 1 token.")
        prompt = writing.prompt(self.prompt) if self.prompt else []
        length = self.length or own_length(model)
        if self.length is None and model.facts.mask_id in prompt:
            length = len(prompt)  # the prompt says itself what is to be filled in
        if length is None:
            raise ValueError("This model does not say how long its sequences are; give --length.")
        if length < len(prompt):
            raise ValueError(f"--length {length} is shorter than the prompt's {len(prompt)} tokens.")
        return torch.tensor([prompt + [model.facts.mask_id] * (length - len(prompt))])


@dataclass(frozen=True, kw_only=True)
class Score(WithModel, Command):
    """Show how likely each token of a given text or board is, given the rest: p(token | rest) in colours and as JSON."""

    text: str | None = None
    """The text, the board (81 characters, blanks allowed) or the ids."""
    file: Path | None = None
    """Read it from a file instead."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        if (self.text is None) == (self.file is None):
            raise ValueError("Give what to score with --text or with --file, one of them.")
        if self.file is not None and not self.file.is_file():
            raise ValueError(f"--file {self.file}: no such file.")
        text = self.text if self.file is None else self.file.read_text(encoding="utf-8")
        if text is None or not text.strip():
            raise ValueError("There is nothing to score: the text is empty.")
        model = self.load()
        writing = self.writing(model)
        tokens = torch.tensor([writing.read(text)], device=self.torch_device())
        with torch.no_grad():
            quality = model.predict(tokens).quality[0].cpu().tolist()
        ids = tokens[0].tolist()
        masked = [token == model.facts.mask_id for token in ids]
        pieces = writing.pieces(ids)
        console.print(painted(pieces, [None if m else q for m, q in zip(masked, quality, strict=True)]), soft_wrap=True)
        judged = [q for m, q in zip(masked, quality, strict=True) if not m]
        if judged:
            console.print(f"\nlowest {min(judged):.3f}, mean {sum(judged) / len(judged):.3f} over {len(judged)} tokens")
        record = clock.record("score", self, seed=0, model=model, name=self.model or "embedded")
        show_record(record)
        return {
            "tokens": [
                {"id": i, "text": piece, "quality": None if m else round(q, 6)}
                for i, piece, m, q in zip(ids, pieces, masked, quality, strict=True)
            ],
            "record": plain(record),
        }


def painted(pieces: list[str], quality: list[float | None], given: list[bool] | None = None) -> Text:
    """The text with every token on the colour of its quality; given tokens are bold."""
    text = Text()
    for place, (piece, q) in enumerate(zip(pieces, quality, strict=True)):
        style = "" if q is None or piece.isspace() else quality_style(q)
        text.append(piece, style=f"{style} bold".strip() if given and given[place] else style)
    return text
