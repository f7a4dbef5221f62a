"""Small runs for test_training.py, in its own process, in several, and in some that are killed.

accelerate launch --use_fsdp --num_processes 2 tests/training_script.py several FOLDER
python tests/training_script.py killed FOLDER
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prism.losses.denoising import DenoisingLoss
from prism.losses.prism import PrismLoss
from prism.models.attach import PrismModel, attach
from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import FinalLayerConfig
from prism.training import Cosine, Optimisation, Shuffled, Trained, train, use_ema, whole_state

SETTINGS = Optimisation(
    steps=12, batch=8, lr=3e-3, head_lr=1e-2, warmup=3, rate=Cosine(), log_every=1, checkpoint_every=4, evaluate_every=4
)


def tiny_dit(*, dropout: float = 0.0, seed: int = 0) -> DiT:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DiT(DiTConfig(11, 0, 8, hidden_size=16, blocks=2, heads=2, cond_size=8, dropout=dropout))
        for weight in model.parameters():  # as built, its gates are closed and its output is zero
            nn.init.normal_(weight, std=0.2)
    return model


def tiny_prism(**options: Any) -> PrismModel:
    return attach(tiny_dit(), FinalLayerConfig(16, cond_size=8), **(options or {"tune_backbone": True}))


def ramps(rows: int = 20) -> Tensor:
    """Ten sequences of digits, each rising by one around the circle 1 … 10."""
    return (torch.arange(rows)[:, None] + torch.arange(8)) % 10 + 1


def pretrain(folder: Path, model: Backbone, settings: Optimisation = SETTINGS, **options: Any) -> Trained:
    return train(model, DenoisingLoss(), Shuffled(ramps()), settings, folder=folder, progress=False, **options)


def finetune(folder: Path, model: PrismModel, settings: Optimisation = SETTINGS, **options: Any) -> Trained:
    loss = PrismLoss(k=2, regulariser=0.0)  # the vocabulary head then gets no gradient
    return train(model, loss, Shuffled(ramps()), settings, folder=folder, progress=False, **options)


def probe(model: Backbone | PrismModel, step: int) -> dict[str, float]:
    """An evaluation that depends on all weights."""
    prediction = model.predict(ramps(4).masked_fill(torch.eye(4, 8, dtype=torch.bool), 0))
    return {"spread": float(prediction.logits(torch.ones(4, 8, dtype=torch.bool)).float().std())}


def several(folder: Path) -> None:
    """In each of two processes: runs that a single one must agree with."""
    os.environ["ACCELERATE_USE_FSDP"] = "false"
    pretrain(folder / "copied", tiny_dit(seed=int(os.environ["RANK"])), replace(SETTINGS, accumulate=2), evaluate=probe)
    finetune(folder / "copied-prism", tiny_prism())

    os.environ["ACCELERATE_USE_FSDP"] = "true"
    halted = pretrain(
        folder / "sharded", tiny_dit(seed=int(os.environ["RANK"])), replace(SETTINGS, accumulate=2), evaluate=probe
    )
    torch.distributed.barrier()
    if os.environ["RANK"] == "0":
        shutil.rmtree(halted.checkpoint)
    torch.distributed.barrier()
    pretrain(folder / "sharded", tiny_dit(seed=1), SETTINGS, resume=True, evaluate=probe)

    model = tiny_prism()
    trained = finetune(folder / "sharded-prism", model)
    use_ema(model, trained.checkpoint)
    state = whole_state(model)
    if trained.is_main:
        model.save(folder / "corrector", state=state)
    torch.distributed.barrier()  # gloo's threads may abort a process that ends while another still talks
    torch.distributed.destroy_process_group()
    os._exit(0)  # and once in a while they abort an interpreter that takes itself apart, when all is written


def killed(folder: Path) -> None:
    """Runs that die by SIGKILL, over and over, and are resumed until they end."""
    pretrain(folder / "calm", tiny_dit(dropout=0.1))
    for name in ("timed", "writing"):
        deaths = 0
        while True:
            child = os.fork()
            if child == 0:
                if name == "writing":
                    _die_while_writing(after=deaths)
                pretrain(folder / name, tiny_dit(dropout=0.1), resume=True)
                os._exit(0)
            if name == "timed":  # a little later each time, so that the run ends at last
                time.sleep(random.Random(deaths).uniform(0.0, 0.01 * (1 + deaths)))
                os.kill(child, signal.SIGKILL)
            if os.waitpid(child, 0)[1] == 0:
                break
            deaths += 1
        (folder / f"{name}.deaths").write_text(str(deaths))


def _die_while_writing(*, after: int) -> None:
    """Kills this process before one of the calls by which files, folders and names reach the disk."""
    calls = itertools.count()

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    for name in ("open", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
        setattr(os, name, deadly(getattr(os, name)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"several": several, "killed": killed}[sys.argv[1]](Path(sys.argv[2]))
