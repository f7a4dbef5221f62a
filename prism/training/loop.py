"""The loop, from the first batch to the last checkpoint, on accelerate."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from prism.losses.loss import TrainingLoss
from prism.models.attach import PrismModel
from prism.models.backbone import Backbone
from prism.models.llama import Llama
from prism.noise import Noise
from prism.training.ema import Ema
from prism.training.examples import Examples, mixed
from prism.training.folder import RunFolder, trainable
from prism.training.graphs import Recorded, can_be_recorded
from prism.training.meter import Meter, Share, progress_bar, show
from prism.training.muon import Muon
from prism.training.objective import Objective
from prism.training.settings import Optimisation
from prism.training.sharding import blocks_of, distribute, exchange_gradients, is_sharded, is_zero
from prism.training.stepping import Own, Stepping, Zero2

if TYPE_CHECKING:
    import accelerate

Model = Backbone | PrismModel


@dataclass(frozen=True)
class Trained:
    """What a run came to. The model holds the last weights; `use_ema` puts the averaged ones in."""

    steps: int
    checkpoint: Path
    history: list[dict[str, Any]]
    """The lines of log.jsonl."""
    has_ema: bool
    is_main: bool
    """Whether this process is the one, of those that trained together, to write and print."""
    evaluating: Callable[[], AbstractContextManager[None]] = field(compare=False, repr=False)
    """While it lasts the model can be asked, also where it is sharded; every process must."""

    def last(self, figure: str) -> float:
        """The latest value of one figure of the history."""
        return next(line[figure] for line in reversed(self.history) if figure in line)


def train(
    model: Model,
    loss: TrainingLoss,
    examples: Examples,
    settings: Optimisation,
    *,
    folder: str | PathLike[str],
    resume: bool = False,
    evaluate: Callable[[Model, int], Mapping[str, float]] | None = None,
    each_step: Callable[[int], object] | None = None,
    notes: Mapping[str, Any] | None = None,
    trackers: tuple[str, ...] = (),
    progress: bool = True,
) -> Trained:
    """Train what requires a gradient in `model`, in place, and leave it in evaluation mode.

    **Main arguments.** `loss` is any `TrainingLoss`: a `DenoisingLoss`, a `PrismLoss` or one of your own. `folder`, which every
    process must see, takes settings.json, log.jsonl and checkpoints/. It must be new or empty unless `resume` is set, which
    goes on from its newest checkpoint and starts afresh where there is none.

    **Other arguments.** `evaluate(model, step)` runs on every process with the averaged weights in place; the figures of
    the main one are logged. `each_step(step)` is called before every step, for what changes with it. `notes`, values that JSON
    can hold, are what else a resumed run must have in common with the one it goes on with. `trackers` may name tensorboard and
    wandb. The device is accelerate's choice: a GPU where there is one, else the CPU (`ACCELERATE_USE_CPU=true` insists).
    torch's global random generator is reseeded at every step.
    """
    folder = Path(folder)
    accelerator = _accelerator(folder, trackers)
    device = accelerator.device
    share = Share(settings.batch, settings.accumulate, accelerator.num_processes, accelerator.process_index)
    description = _description(settings, loss, model) | dict(notes or {})
    run = RunFolder(folder, settings.keep, is_main=accelerator.is_main_process)
    run.check(description, resume=resume)
    accelerator.wait_for_everyone()  # before the main process fills the folder the others look into

    objective = Objective(model, loss, settings.precision)
    shared: Any = distribute(objective, accelerator)
    # Many equal layers are compiled once and in seconds; all of them together would take minutes.
    in_blocks = is_sharded(accelerator) or isinstance(_backbone(model), Llama)
    weights = trainable(model)
    zero = is_zero(accelerator)
    optimizers = _optimizers(model, settings, device, cut_up=zero or is_sharded(accelerator))
    stepping: Stepping = (
        Zero2(objective, optimizers[0], settings, rows=len(share.rows(0, 0)))
        if zero
        else Own(shared, optimizers, weights, settings)
    )
    shared = stepping.objective
    ema = None if settings.ema is None else Ema(weights, settings.ema)
    begin = run.load(weights, stepping, ema)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]  # loading made new ones
    run.tidy(description, begin)
    accelerator.wait_for_everyone()

    in_turns = shared is objective and not is_sharded(accelerator)  # else all forward passes have to be one
    alone = accelerator.num_processes == 1 and settings.accumulate == 1
    steady = each_step is None  # a recording would go on with what the first step found
    recordable = settings.compile and alone and steady and can_be_recorded(model.facts.vocab_size, device)
    recorded = Recorded(objective) if recordable else None
    model.train()
    meter = Meter(accelerator, share, run, begin)
    bar = progress_bar(settings.steps, begin, shown=progress and run.is_main)
    with (
        bar,
        _tracking(accelerator, description, begin),
        _compiled_blocks(blocks_of(model) if settings.compile and in_blocks else []),
        recomputed(blocks_of(model) if settings.recompute else []),
        _compiled(_passes(model) if settings.compile and not in_blocks else []),
    ):
        for step in range(begin, settings.steps):
            if each_step is not None:
                each_step(step)
            for group in groups:
                group["lr"] = settings.lr_of(group["name"]) * settings.lr_share(step)

            for micro in range(settings.accumulate):
                rows = share.rows(step, micro)
                batch = examples.batch(rows, device)
                noise = Noise.rows(settings.seed, len(rows), first=rows.start, device=device)
                torch.manual_seed(mixed(settings.seed, step, micro, share.process))  # for dropout, the only user
                # Only a step's last micro-batch has to; but DDP learns in the first which weights get gradients.
                exchange_gradients(shared, now=micro == settings.accumulate - 1 or step == begin)
                if recorded is not None:
                    total, parts = recorded(batch, noise)
                elif in_turns:
                    total, parts = objective.learn(batch, noise, stepping.backward)
                else:
                    total, parts = shared(batch, noise)
                    stepping.backward(total)
                meter.add(total, parts)

            meter.add_norm(stepping.step())
            if ema is not None:
                ema.update(step + 1)

            done = step + 1
            bar.advance(bar.task_ids[0])
            if settings.due(done, settings.log_every):
                figures = meter.read()
                figures |= {f"lr/{group['name']}": group["lr"] for group in groups}
                run.note(done, figures)
                accelerator.log(figures, step=done)
                show(bar, figures)
            if evaluate is not None and settings.due(done, settings.evaluate_every):
                with meter.paused(), objective.evaluating(ema, shared):
                    scores = {f"evaluation/{name}": float(score) for name, score in evaluate(model, done).items()}
                run.note(done, scores)
                accelerator.log(scores, step=done)
            if settings.due(done, settings.checkpoint_every):
                with meter.paused():
                    meter.check()
                    meter.check_weights(weights, done)
                    run.save(done, weights, stepping, ema)
                    accelerator.wait_for_everyone()

    model.eval()
    checkpoint = run.checkpoint(settings.steps)
    return Trained(
        settings.steps,
        checkpoint,
        run.history(),
        has_ema=ema is not None,
        is_main=run.is_main,
        evaluating=partial(objective.evaluating, None, shared),
    )


def _accelerator(folder: Path, trackers: tuple[str, ...]) -> accelerate.Accelerator:
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.utils import patch_environment

    check_trackers(trackers)
    # prism.training shards by itself, on CPUs as well.
    with patch_environment(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false"):
        return Accelerator(
            cpu=not torch.accelerator.is_available(),  # else processes without a GPU do not find each other
            mixed_precision="no",  # the objective's own autocast decides
            log_with=list(trackers) or None,
            project_dir=str(folder),
            # A loss that never reaches the vocabulary head leaves it without a gradient: the same weights at every step.
            kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)],
        )


def check_trackers(names: Iterable[str]) -> None:
    """Whether there are such, and here."""
    for name in names:
        if name not in ("tensorboard", "wandb"):
            raise ValueError(f"There is no tracker {name!r}; choose tensorboard or wandb.")
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"The tracker {name} is not installed; run `pip install {name}` or leave it out.")


@contextmanager
def _tracking(accelerator: accelerate.Accelerator, description: Mapping[str, Any], begin: int) -> Iterator[None]:
    accelerator.init_trackers("tracking", dict(description), {"tensorboard": {"purge_step": begin + 1}})
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


@contextmanager
def _compiled(parts: list[nn.Module]) -> Iterator[None]:
    """For training's few shapes; sampling brings many, for which compiling does not pay."""
    for part in parts:
        part.compile(dynamic=False)
    try:
        yield
    finally:
        for part in parts:
            part._compiled_call_impl = None
        if parts:
            torch.compiler.reset()  # or the eighth model a process trains would be refused and run uncompiled


@contextmanager
def _compiled_blocks(blocks: list[nn.Module]) -> Iterator[None]:
    """Their `forward`, so that `recomputed` goes around it: a block with the checkpoint inside is not compiled at all."""
    forwards = [torch.compile(block.forward, dynamic=False) for block in blocks]
    with _with_forwards(blocks, forwards):
        yield
    if blocks:
        torch.compiler.reset()


@contextmanager
def recomputed(blocks: list[nn.Module]) -> Iterator[None]:
    with _with_forwards(blocks, [partial(checkpoint, block.forward, use_reentrant=False) for block in blocks]):
        yield


@contextmanager
def _with_forwards(blocks: list[nn.Module], forwards: list[Callable[..., Any]]) -> Iterator[None]:
    """Other forward passes for a while."""
    before = [block.__dict__.get("forward") for block in blocks]
    for block, forward in zip(blocks, forwards, strict=True):
        block.forward = forward
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            if own is None:
                del block.forward  # the class's own is left
            else:
                block.forward = own


def _passes(model: Model) -> list[nn.Module]:
    """What a forward pass runs through."""
    head = model.quality_head if isinstance(model, PrismModel) else None
    return [_backbone(model)] if head is None else [_backbone(model), head]


def _backbone(model: Model) -> Backbone:
    return model.backbone if isinstance(model, PrismModel) else model


def _optimizers(
    model: Model, settings: Optimisation, device: torch.device, *, cut_up: bool
) -> list[torch.optim.Optimizer]:
    groups = model.trainable() if isinstance(model, PrismModel) else {"backbone": list(model.parameters())}
    learning = {name: [weight for weight in group if weight.requires_grad] for name, group in groups.items()}
    if not any(learning.values()):
        raise ValueError("No parameter of the model requires a gradient, so there is nothing to train.")
    optimizers: list[torch.optim.Optimizer] = []
    if settings.muon_lr is not None:
        matrices = {weight: stacked for weight, stacked in _backbone(model).matrices().items() if weight.requires_grad}
        if not matrices:
            raise ValueError(f"muon_lr={settings.muon_lr}, but no matrix of the backbone learns; leave it out.")
        if cut_up:
            raise ValueError(
                "Muon needs whole matrices and FSDP and ZeRO cut them up; leave muon_lr out, or copy (--multi_gpu)."
            )
        optimizers.append(Muon(matrices, name="muon"))
        learning = {name: [w for w in group if w not in matrices] for name, group in learning.items()}
    fused = device.type == "cuda"
    adamw = torch.optim.AdamW(
        [{"params": group, "name": name} for name, group in learning.items() if group],
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=fused,
        foreach=not fused,
    )
    return [adamw, *optimizers]


def _description(settings: Optimisation, loss: object, model: Model) -> dict[str, Any]:
    """The run as plain JSON. The weights tell what a model is made of, but not LoRA's scale, nor any dropout."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    values |= {"loss": loss, "backbone": getattr(_backbone(model), "config", None)}
    if isinstance(model, PrismModel):
        values |= {"head": model.head_config, "lora": model.lora}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> int | float | str | None:
    return value if isinstance(value, int | float | None) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
