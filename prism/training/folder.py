"""The folder of a run: settings.json, log.jsonl and checkpoints, each written whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prism.models.folder import Folder, ModelError, check_tensors, sync, write_whole
from prism.training.ema import Ema
from prism.training.settings import FREE
from prism.training.sharding import part_of, whole
from prism.training.stepping import Stepping


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model that may be sharded, for `PrismModel.save`; every process must ask. What was cut up comes
    together in the host's memory: a device may have no room for all of it."""
    state = model.state_dict().items()
    return {name: whole(tensor).cpu() if hasattr(tensor, "full_tensor") else tensor for name, tensor in state}


def check_new(path: Path) -> None:
    """Whether a run may begin there."""
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(
            f"{path} is not empty; to go on with the run in it give --resume true (in Python resume=True), or choose another "
            "folder."
        )


@dataclass(frozen=True)
class RunFolder:
    """Whatever moment its process is killed at, what carries a final name is complete. Only the main process writes."""

    path: Path
    keep: int
    """Checkpoints left on disk."""
    is_main: bool

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def newest(self) -> Path | None:
        return max(self.checkpoints.glob("step-*"), default=None)

    def advice(self) -> str:
        good = self.newest()
        if good is None:
            return "there is no checkpoint yet. Lower lr or clip, or look at these rows."
        return f"the last good checkpoint is {good}. `prism.restore` it into the model and start a new run with a lower lr."

    def check(self, description: Mapping[str, Any], *, resume: bool) -> None:
        """Nothing of another run may be overwritten or continued under other settings."""
        if not resume:
            check_new(self.path)
            return
        if self.newest() is None:
            return
        before = Folder(self.path).json("settings.json")
        for name, value in description.items():
            if name not in FREE and before.get(name) != value:
                raise ValueError(
                    f"{self.path} was begun with {name}={before.get(name)}, not {value}; "
                    "resume it with the settings it has, or start a new run in another folder."
                )

    def tidy(self, description: Mapping[str, Any], step: int) -> None:
        """Settings written, and everything gone that a killed process left after checkpoint `step`."""
        if not self.is_main:
            return
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for leftover in self.checkpoints.glob(".step-*"):
            shutil.rmtree(leftover)
        lines = [json.dumps(line) + "\n" for line in self.history() if line["step"] <= step]
        write_whole(self.log, "".join(lines))
        self._prune()
        write_whole(self.path / "settings.json", json.dumps(description, indent=2) + "\n")

    def note(self, step: int, figures: Mapping[str, float]) -> None:
        if self.is_main:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, **figures}) + "\n")

    def history(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # a killed process may leave half a line

    def save(
        self,
        step: int,
        weights: Mapping[str, nn.Parameter],
        stepping: Stepping,
        ema: Ema | None,
    ) -> None:
        moments = stepping.moments(weights)
        files = {"weights": weights, "moments": moments} | ({} if ema is None else {"ema": ema.average})
        final = self.checkpoint(step)
        partial = final.with_name(f".{final.name}")
        if self.is_main:
            partial.mkdir()
        for name, tensors in files.items():
            gathered = {key: whole(tensor.detach()).contiguous() for key, tensor in tensors.items()}
            if self.is_main:
                save_file(gathered, partial / f"{name}.safetensors")
                sync(partial / f"{name}.safetensors")
        if self.is_main:
            sync(partial)
            partial.rename(final)
            sync(self.checkpoints)
            self._prune()

    def _prune(self) -> None:
        for old in sorted(self.checkpoints.glob("step-*"))[: -self.keep]:
            shutil.rmtree(old.rename(old.with_name(f".{old.name}")))

    def load(self, weights: Mapping[str, nn.Parameter], stepping: Stepping, ema: Ema | None) -> int:
        """The newest checkpoint put back; the number of steps it had taken."""
        newest = self.newest()
        if newest is None:
            return 0
        _fill(weights, newest, "weights")
        if ema is not None:
            _fill(ema.average, newest, "ema")
        stepping.go_on(weights, Folder(newest).tensors("moments.safetensors"))
        return int(newest.name.removeprefix("step-"))


@torch.no_grad()
def _fill(weights: Mapping[str, Tensor], checkpoint: Path, name: str) -> None:
    found = Folder(checkpoint).tensors(f"{name}.safetensors")
    check_tensors(found, weights, checkpoint / f"{name}.safetensors", ModelError)
    for key, weight in weights.items():
        weight.copy_(part_of(found[key], like=weight))


def restore(model: nn.Module, checkpoint: Path) -> None:
    """The weights of a checkpoint, put into a model with the same trainable parameters."""
    _fill(trainable(model), checkpoint, "weights")


def use_ema(model: nn.Module, checkpoint: Path) -> None:
    """The averaged weights of a checkpoint, put into the model."""
    _fill(trainable(model), checkpoint, "ema")
