"""What every reproduction needs: models trained once, the best of their checkpoints kept, results made once.

A reproduction asks for models and results by name; what its folder holds already is taken from there. So it may be killed
at any moment, and the same command goes on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from prism.evaluation.record import Stopwatch, plain, write_json
from prism.losses.loss import TrainingLoss
from prism.losses.masking import Batch
from prism.models.attach import PrismModel
from prism.models.backbone import Backbone
from prism.models.folder import Folder, write_tensors
from prism.models.folding import for_sampling
from prism.models.hub import load_model, save_backbone, save_model
from prism.recipes.training import held_out_loss
from prism.training import Cosine, Examples, Optimisation, Precision, calibrate, train

Model = Backbone | PrismModel


def on_gpu(steps: int, batch: int, *, looks: int = 10, **settings: Any) -> Optimisation:
    """How models of a size that matters are trained; `looks` times on the way their held-out loss is measured and what there is
    is saved."""
    every = max(1, steps // looks)
    return Optimisation(
        steps,
        batch,
        rate=Cosine(),
        precision=Precision.BF16,
        compile=True,
        ema=0.999,
        keep=1,
        evaluate_every=every,
        checkpoint_every=every,
        **settings,
    )


def on_cpu(steps: int, batch: int, **settings: Any) -> Optimisation:
    """How models are trained that only show that everything runs."""
    return Optimisation(steps, batch, rate=Cosine(), ema=0.9, evaluate_every=max(1, steps // 2), **settings)


@lru_cache(maxsize=3)  # a judge, and two models it judges for
def to_sample(path: Path, device: torch.device, *, compiled: bool = True, half: bool | None = None) -> Any:
    """A workshop's model to sample from, in bfloat16 if it was trained so (`half`; left out, on a GPU). On a GPU it is
    compiled, unless many shapes will be asked of it."""
    on_gpu = device.type == "cuda"
    half = on_gpu if half is None else half
    model = for_sampling(load_model(path, device=device), torch.bfloat16 if half else torch.float32)
    if on_gpu and compiled:
        torch.compiler.reset()  # or the eighth model would be refused and run uncompiled
        (model.backbone if isinstance(model, PrismModel) else model).compile(dynamic=False)
    return model


class Choice:
    """Keeps the weights (the averaged ones) that have the lowest loss on held-out sequences."""

    def __init__(
        self,
        folder: Path,
        loss: TrainingLoss,
        held_out: Batch,
        also: Callable[[Model, int], Mapping[str, float]] | None = None,
    ) -> None:
        self.folder, self.measure, self.also = folder, held_out_loss(loss, held_out), also

    def __call__(self, model: Model, step: int) -> dict[str, float]:
        figures = self.measure(model, step)
        if figures["loss"] < self.best.get("loss", float("inf")):
            write_tensors(self.folder / "chosen.safetensors", model.state_dict())
            write_json(self.folder / "chosen.json", {"step": step, **figures})
        return figures | dict({} if self.also is None else self.also(model, step))

    @property
    def best(self) -> dict[str, Any]:
        path = self.folder / "chosen.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def take(self, model: Model) -> None:
        """The chosen weights, put into the model."""
        model.load_state_dict(load_file(self.folder / "chosen.safetensors", device=str(model.device)))


@dataclass(frozen=True)
class Workshop:
    """The folder of a reproduction and the folder of its results; `tell` hears what is being done."""

    models: Path
    results: Path
    tell: Callable[[str], object] = lambda line: None

    def tell_tenths(self, total: int) -> Callable[[int], None]:
        """To be called with how many of `total` are done; tells it whenever another tenth is."""
        told = 0

        def done(count: int) -> None:
            nonlocal told
            if count * 10 // total > told:
                told = count * 10 // total
                self.tell(f"    {count:,} of {total:,}")

        return done

    def begin(self, description: Mapping[str, Any]) -> None:
        """What is in the folder must have been made with the same settings; as long as nothing was made, say after a
        mistyped name, others may be given. Results in a folder of their own must be of these models and no others."""
        path, settings = self.models / "settings.json", plain(dict(description))
        made = any(other.is_file() and other != path for other in self.models.rglob("*"))
        elsewhere = self.models not in self.results.parents
        if elsewhere and not path.is_file() and any(self.results.glob("*.json")):
            raise ValueError(
                f"{self.results} holds results of models that are not in {self.models}; name the --output they were made "
                "with, or another --results."
            )
        if made and path.is_file() and Folder(self.models).json(path.name) != json.loads(json.dumps(settings)):
            raise ValueError(f"{self.models} was begun with other settings (see {path}); choose another --output.")
        write_json(path, settings)

    def made(self, name: str) -> Path | None:
        """The folder of the model of that name if it is there already, made here or put there."""
        folder = self.models / name / "model"
        return folder if folder.is_dir() else None

    def model(
        self,
        name: str,
        make: Callable[[], Model],
        loss: TrainingLoss,
        examples: Callable[[], Examples],
        held_out: Callable[[], Batch],
        settings: Optimisation,
        also: Callable[[Model, int], Mapping[str, float]] | None = None,
        each_step: Callable[[Model], Callable[[int], object]] | None = None,
    ) -> Path:
        """The folder of the model of that name, trained now if it is not there yet. `each_step`, given the model, says what
        changes in it before every step."""
        folder = self.models / name
        if self.made(name) is None:
            folder.mkdir(parents=True, exist_ok=True)
            model = make()  # may train what it begins from, which is not its own time
            clock = Stopwatch()
            self.tell(f"  training {name}")
            aside = held_out()
            choice = Choice(folder, loss, aside, also)
            trained = train(
                model,
                loss,
                examples(),
                settings,
                folder=folder / "training",
                resume=True,
                evaluate=choice,
                each_step=None if each_step is None else each_step(model),
            )
            choice.take(model)
            record = clock.record(f"train {name}", settings, seed=settings.seed, model=model)
            about = {"chosen": choice.best, "history": trained.history, "loss": plain(loss), "record": plain(record)}
            if isinstance(model, PrismModel):
                with trained.evaluating():
                    about["calibration"] = calibrate(model, aside, loss)
            write_json(folder / "training.json", about)
            if isinstance(model, PrismModel):
                save_model(model, folder / "model", notes={"loss": plain(loss), "chosen": choice.best})
            else:
                save_backbone(model, folder / "model")
            (folder / "chosen.safetensors").unlink()
            shutil.rmtree(folder / "training")
        return folder / "model"

    def story(self, model: Path) -> dict[str, Any]:
        """How a model of this workshop was trained: its history and the checkpoint that was chosen."""
        return Folder(model.parent).json("training.json")

    def row(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """A row of a table, kept as soon as it is measured: whoever is killed in the midst of a long table goes on with the
        next row. Names are those of runs, so that no two tables measure one run."""
        path = self.models / "rows" / f"{slug(name)}.json"
        return _made_once(path, make)

    def result(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The result of that name, made now if it is not there yet."""
        self.results.mkdir(parents=True, exist_ok=True)  # results may put pages beside their files
        return _made_once(self.results / f"{name}.json", make)


def slug(name: str) -> str:
    """A name as a file's."""
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name)


def _made_once(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    if not path.is_file():
        write_json(path, make())
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); delete it and it will be made anew.") from error
    return found
