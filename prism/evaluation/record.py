"""The record behind every number: what ran, on what, how it was set, and what it cost."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import torch

SURROGATES_ESCAPED = "backslashreplace"
"""Half a pair of UTF-16, which a program may say, is no UTF-8: written as \\udc80, JSON's own form of it."""

PACKAGES = ("prism-mdm", "torch", "transformers", "peft", "accelerate", "numpy", "safetensors")


@dataclass(frozen=True)
class Record:
    """Where and how a run took place."""

    command: str
    settings: dict[str, Any]
    seed: int
    device: str
    dtype: str | None
    """Of the model's weights; None for what ran without a model, or with several."""
    commit: str | None
    versions: dict[str, str]
    python: str
    date: str
    wall_seconds: float = 0.0
    model: dict[str, Any] = field(default_factory=dict)


class Stopwatch:
    """Times a run and writes its record."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def record(
        self,
        command: str,
        settings: object,
        *,
        seed: int,
        model: torch.nn.Module | None = None,
        device: torch.device | None = None,
        **about_model: Any,
    ) -> Record:
        """Device and type are the model's; what ran without one, or with several, may name its device; it has no type."""
        weights = list(model.parameters()) if model is not None else []
        parameter = max(weights, key=torch.Tensor.numel, default=None)
        return Record(
            command=command,
            settings=plain(settings),
            seed=seed,
            device=_device_name(device or (torch.device("cpu") if parameter is None else parameter.device)),
            dtype=None if parameter is None else str(parameter.dtype).removeprefix("torch."),
            commit=_commit(),
            versions=_versions(),
            python=platform.python_version(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_seconds=round(self.seconds, 3),
            model={"parameters": sum(weight.numel() for weight in weights), **about_model} if model is not None else {},
        )


def plain(value: Any) -> Any:
    """The value as JSON can hold it; a part of the sampler is named by its class beside its settings."""
    if is_dataclass(value) and not isinstance(value, type):
        fields = {key: plain(getattr(value, key)) for key in asdict(value)}
        rooms = ("sampling", "schedule", "losses", "training", "models")
        is_part = any(type(value).__module__.startswith(f"prism.{room}") for room in rooms)
        return {"class": type(value).__name__, **fields} if is_part else fields
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return value.__name__
    return str(value) if isinstance(value, Path) else value


def write_json(path: Path, content: object) -> None:
    """All of it or nothing: written beside the target and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n"
    try:
        partial.write_text(text, encoding="utf-8", errors=SURROGATES_ESCAPED)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def _commit() -> str | None:
    """The commit this code was run from, with a + where files had changed; None outside a checkout.

    PRISM_COMMIT names it on machines that have the files and not the history.
    """
    if told := os.environ.get("PRISM_COMMIT"):
        return told
    root = Path(__file__).resolve().parent.parent.parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return None  # installed from a wheel that happens to lie inside somebody else's repository
    commit = git("rev-parse", "HEAD")
    return None if commit is None else commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
