"""Solutions to programming tasks, written by a model into a file that a killed run goes on with."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from prism.evaluation.record import SURROGATES_ESCAPED
from prism.evaluation.samples import begun
from prism.noise import Noise
from prism.writer import Writer


@dataclass(frozen=True)
class Question:
    """One task as the model reads it."""

    task: str
    prompt: list[int]
    number: int
    """Which random numbers are its own, whatever other tasks there are."""

    @property
    def digest(self) -> str:
        """Tells prompts apart: MBPP, sanitized MBPP and MBPP+ ask differently under the same ids."""
        return hashlib.sha256(json.dumps(self.prompt).encode()).hexdigest()[:16]


def write_completions(
    path: Path,
    questions: Sequence[Question],
    writer: Writer,
    *,
    count: int,
    seed: int,
    settings: Mapping[str, Any],
    done: Callable[[int], object] | None = None,
) -> dict[str, object]:
    """`count` completions of each task, a JSON object a line, and what they cost; what the file holds already is kept.

    `settings` are all that decides what is written for a prompt. A file written in another way, or for other prompts of these
    tasks, is refused.
    """
    rows = _kept(path, settings, {question.task: question.digest for question in questions})
    there = Counter(str(row["task_id"]) for row in rows)
    with path.open("a", encoding="utf-8", errors=SURROGATES_ESCAPED) as file:
        for attempt in range(count):  # one of each task first: a run that is stopped has been at all of them
            missing = [question for question in questions if there[question.task] <= attempt]
            rows_of_tasks = Noise.rows(seed, 1 + max(question.number for question in questions), device=writer.device)
            own = torch.tensor([question.number for question in missing], dtype=torch.long, device=writer.device)
            noise = Noise(rows_of_tasks.keys[own]).replica(attempt)
            for place, found in writer.each([question.prompt for question in missing], noise):
                row = {
                    "task_id": missing[place].task,
                    "completion": found.text,
                    "end": found.end.name,
                    "tokens": len(found.tokens),
                    "forwards": found.forwards,
                    "remasks": found.remasks,
                    "seconds": round(found.seconds, 3),
                    "prompt": missing[place].digest,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                rows.append(row)
                if done is not None:
                    done(len(rows))
    asked = {question.task for question in questions}
    mine = [row for row in rows if row["task_id"] in asked]
    return {
        "nfe": mean(row["forwards"] for row in mine),
        "remasks": mean(row["remasks"] for row in mine),
        "tokens": mean(row["tokens"] for row in mine),
        "ends": dict(Counter(row["end"] for row in mine)),
    }


def _kept(path: Path, settings: Mapping[str, Any], prompts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The whole lines of the file, all written in this way; half a line, left by a killed run, is cut off."""
    if not begun(path, settings):
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    try:
        rows = [json.loads(line) for line in whole.split(b"\n") if line.strip()]
        others = [row["task_id"] for row in rows if row["prompt"] != prompts.get(row["task_id"], row["prompt"])]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of completions written here; name another one.") from error
    if others:
        raise ValueError(f"{path} holds completions of {others[0]} for another prompt; name another --output.")
    if len(whole) < len(text):
        os.truncate(path, len(whole))
    return rows
