"""prism sample, prism score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from prism.cli.command import (
    Command,
    WithCorrector,
    WithModel,
    console,
    embedded_for,
    own_length,
    show_record,
    warn_of_idleness,
    warn_of_length,
)
from prism.cli.words import painted, show_legend, shown
from prism.data import sudoku
from prism.data.writing import Board, Writing
from prism.evaluation.record import Stopwatch, plain
from prism.noise import Noise
from prism.recipes.writing import TextSampling, conversation
from prism.writer import End, Written


def _read(writing: Writing, text: str, model: str | None) -> list[int]:
    """A whole text, for the model that was named."""
    try:
        return writing.read(text)
    except sudoku.SudokuError as error:
        raise _no_board(str(error), model) from error


def _no_board(why: str, model: str | None) -> ValueError:
    """If no model was named, a board may not have been meant."""
    taken = " Digits and dots alone are read as a board; to have them read as text, name a model of text with --model."
    return ValueError(f"{why}.{taken if model is None else ''}")


@dataclass(frozen=True, kw_only=True)
class Sample(WithCorrector, TextSampling, Command):
    """Generate sequences, from nothing or around a prompt."""

    prompt: str = ""
    """Text to continue, or to fill in where it has mask tokens; for a Sudoku model a puzzle (digits and dots alone are taken
    for one), for a model without a tokenizer ids. The prompt itself is never changed."""
    chat: bool = False
    """Put the prompt into the tokenizer's chat template, as the user's message."""
    system: str | None = None
    """With --chat: the system message."""
    length: int | None = None
    """Total number of tokens, including the prompt (default: the model's own length)."""
    new_tokens: int | None = None
    """Instead of --length: tokens after the prompt."""
    count: int = 1
    """How many sequences."""
    watch: bool | None = None
    """Show the text while it is written (default: if the output is a terminal)."""

    def check(self) -> None:
        super().check()
        self.check_writing()
        if self.count < 1:
            raise ValueError(f"--count {self.count}: generate at least 1 sequence.")
        if self.length is not None and self.new_tokens is not None:
            raise ValueError("--length and --new_tokens are two ways to say how much to write; give one of them.")
        if self.new_tokens is not None and self.new_tokens < 1:
            raise ValueError(f"--new_tokens {self.new_tokens}: write at least 1 token.")
        if self.system is not None and not self.chat:
            raise ValueError("--system is part of a chat; give --chat true too.")
        if self.chat and not self.prompt:
            raise ValueError("--chat: say something with --prompt.")
        if self.watch and self.recorded:
            raise ValueError("--watch true, --recorded true: recorded steps cannot be watched; leave one of them out.")
        if self.watch and not console.is_terminal:
            raise ValueError("--watch true: the output is no terminal, so nothing can be seen on it; leave it out.")

    def embedded(self) -> Path:
        return embedded_for(self.prompt)

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        model = self.load_for(self.method())
        writing = self.writing(model)
        prompt = self._prompt(writing)
        mask, device = model.facts.mask_id, self.torch_device()
        if mask in prompt:
            self._check_filling()
            prompt = prompt + [mask] * self._room(model, prompt)
        room = prompt.count(mask) or self._room(model, prompt)
        self.check_length(room)
        warn_of_idleness(self, room)
        warn_of_length(model, len(prompt) + (0 if mask in prompt else room))
        writer = self.build_writer(model, writing, room, device)
        noise = Noise.rows(self.seed, self.count, device=device)
        watched = console.is_terminal and not self.recorded if self.watch is None else self.watch
        ends = writing.ends if writer.eos.stops and mask not in prompt else ()
        steps = writer.steps_of([prompt] * self.count, noise)
        if getattr(model, "quality_head", None) is not None:
            show_legend(watched=watched)
        over: dict[int, Written] = {}
        for progress in shown(steps, writing, ends) if watched else steps:
            over |= progress.over
        written = [over[number] for number in range(self.count)]
        texts, qualities = [], []
        for found in written:
            quality = self._show(model, writing, found)
            qualities.append(quality)
            texts.append("".join(writing.pieces(found.sequence)))
        if watched:
            console.print(f"tokens taken back: {sum(found.remasks for found in written)}")
        record = clock.record(
            "sample", self, seed=self.seed, model=model, name=self.model or f"embedded {self.embedded().name}"
        )
        show_record(record)
        return {
            "tokens": [found.sequence for found in written],
            "texts": texts,
            "completions": [found.text for found in written],
            "ends": [found.end.name for found in written],
            "quality": None if None in qualities else qualities,
            "nfe": mean(found.forwards for found in written),
            "remasks": mean(found.remasks for found in written),
            "policy": plain(writer.policy),
            "record": plain(record),
        }

    def _prompt(self, writing: Writing) -> list[int]:
        if self.chat:
            return writing.chat(conversation(self.prompt, self.system))
        if isinstance(writing, Board):
            if self.length is not None or self.new_tokens is not None:
                raise _no_board("--length, --new_tokens: a board always has its 81 cells; leave them out", self.model)
            board = _read(writing, self.prompt or "." * 81, self.model)
            if sudoku.MASK not in board:
                raise ValueError("The prompt leaves nothing to generate: the board is full.")
            return board
        return writing.prompt(self.prompt) if self.prompt else []

    def _check_filling(self) -> None:
        """A prompt with masks says itself what is to be written."""
        if self.stop or self.eos != "stop":
            raise ValueError("--stop, --eos: a prompt with masks is filled in wherever it ends; leave them out.")

    def _room(self, model: Any, prompt: list[int]) -> int:
        """How many tokens follow the prompt; none that nobody asked for where it has masks."""
        if self.new_tokens is not None:
            return self.new_tokens
        if self.length is None and model.facts.mask_id in prompt:
            return 0
        length = own_length(model) if self.length is None else self.length
        if length is None:
            raise ValueError("This model does not say how long its sequences are; give --length.")
        if length < 1:
            raise ValueError(f"--length {self.length}: a sequence has at least 1 token.")
        if length < len(prompt):
            raise ValueError(f"--length {length} is shorter than the prompt's {len(prompt)} tokens.")
        if length == len(prompt) and model.facts.mask_id not in prompt:
            raise ValueError("The prompt leaves nothing to generate; make --length larger.")
        return length - len(prompt)

    def _show(self, model: Any, writing: Writing, found: Written) -> list[float] | None:
        """Print a sequence in the colours of its quality, which is given back."""
        sequence = found.sequence
        with torch.no_grad():
            prediction = model.predict(torch.tensor([sequence], device=self.torch_device()))
            quality = [round(q, 6) for q in prediction.quality[0].tolist()] if prediction.has_quality else None
        given = [token != model.facts.mask_id for token in found.prompt] + [False] * (len(sequence) - len(found.prompt))
        shown = sequence[:-1] if found.end is End.EOS else sequence  # a reader sees that the text is over
        painting = painted(
            writing.pieces(shown), (quality or [None] * len(sequence))[: len(shown)], given[: len(shown)]
        )
        console.print(painting, soft_wrap=True)
        console.print()
        return quality


@dataclass(frozen=True, kw_only=True)
class Score(WithModel, Command):
    """Show how likely each token of a given text or board is, given the rest: p(token | rest) in colours and as JSON."""

    text: str | None = None
    """The text, the board (81 characters, blanks allowed) or the ids."""
    file: Path | None = None
    """Read it from a file instead."""

    def run(self) -> dict[str, Any]:
        clock, text = Stopwatch(), self._given()
        model = self.load()
        if getattr(model, "quality_head", None) is None:
            raise ValueError(f"{self.source()} has no quality head to ask; attach one with prism finetune.")
        writing = self.writing(model)
        tokens = torch.tensor([_read(writing, text, self.model)], device=self.torch_device())
        there, known = tokens.shape[1], own_length(model)
        warn_of_length(model, there)
        if known is not None and 2 * there < known:
            console.print(
                f"{there} tokens are few for a model of sequences of {known}; quality may be uncalibrated here."
            )
        with torch.no_grad():
            quality = model.predict(tokens).quality[0].cpu().tolist()
        ids = tokens[0].tolist()
        masked = [token == model.facts.mask_id for token in ids]
        pieces = writing.pieces(ids)
        show_legend(watched=False)
        console.print(painted(pieces, [None if m else q for m, q in zip(masked, quality, strict=True)]), soft_wrap=True)
        judged = [(q, piece) for q, piece, m in zip(quality, pieces, masked, strict=True) if not m]
        if judged:
            console.print(f"\n{_summary(judged)}", markup=False, soft_wrap=True)
        record = clock.record("score", self, seed=0, model=model, name=self.model or f"embedded {self.embedded().name}")
        show_record(record)
        return {
            "tokens": [
                {"id": i, "text": piece, "quality": None if m else round(q, 6)}
                for i, piece, m, q in zip(ids, pieces, masked, quality, strict=True)
            ],
            "record": plain(record),
        }

    def embedded(self) -> Path:
        return embedded_for(self._given())

    def _given(self) -> str:
        """What to score, wherever it stands."""
        if (self.text is None) == (self.file is None):
            raise ValueError("Give what to score with --text or with --file, one of them.")
        if self.file is not None and not self.file.is_file():
            raise ValueError(f"--file {self.file}: no such file.")
        try:
            text = self.text if self.file is None else self.file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"--file {self.file}: not text in UTF-8 ({error}); convert it first.") from error
        if text is None or not text.strip():
            raise ValueError("There is nothing to score: the text is empty.")
        return text


def _summary(judged: list[tuple[float, str]]) -> str:
    """The qualities in one line, and the tokens that have the lowest."""
    most_doubtful = ", ".join(f"{piece.strip(' ')!r} {quality:.3f}" for quality, piece in sorted(judged)[:3])
    lowest, average = min(judged)[0], mean(quality for quality, _ in judged)
    return f"lowest {lowest:.3f}, mean {average:.3f} over {len(judged)} tokens; most doubtful: {most_doubtful}"
