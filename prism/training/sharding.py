"""One objective over several processes: copied (DDP) or sharded (FSDP2), and the way between sharded and whole tensors.

The launch decides: `accelerate launch --multi_gpu` copies, `--use_fsdp` shards, `--use_deepspeed --zero_stage 2` copies the
weights and cuts up what goes with learning (`prism.training.stepping.Zero2`); all with as many CPU processes where there is
no GPU (accelerate's own `--cpu` starts a single one unless MPI starts them).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import accelerate


def is_sharded(accelerator: accelerate.Accelerator) -> bool:
    return accelerator.num_processes > 1 and _asked_to_shard()


def is_zero(accelerator: accelerate.Accelerator) -> bool:
    """Whether DeepSpeed was asked for. Of its many ways only plain ZeRO-2 is taken, so the others are refused."""
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true":
        return False
    asked = {name: os.environ.get(f"ACCELERATE_DEEPSPEED_{name}", plain) for name, plain in _PLAIN_ZERO.items()}
    for name, value in asked.items():
        if value != _PLAIN_ZERO[name]:
            raise ValueError(
                f"DeepSpeed was asked for with {name.lower()} {value}, and prism takes its ZeRO stage 2 without offloading "
                "or a configuration of its own; launch with deepspeed.yaml, or with fsdp2.yaml to shard the weights too."
            )
    return accelerator.num_processes > 1


_PLAIN_ZERO = {
    "ZERO_STAGE": "2",
    "OFFLOAD_OPTIMIZER_DEVICE": "none",
    "OFFLOAD_PARAM_DEVICE": "none",
    "CONFIG_FILE": "none",
}


def launched() -> tuple[int, int]:
    """How many processes this one was launched with, and among how many of them the model will be sharded."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return processes, processes if _asked_to_shard() else 1


def _asked_to_shard() -> bool:
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers, inner ones first."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [block for blocks in lists for block in blocks][::-1]


def distribute(objective: nn.Module, accelerator: accelerate.Accelerator) -> nn.Module:
    """`objective` on its device, and shared among the processes if there are several."""
    if accelerator.num_processes == 1:
        return objective.to(accelerator.device)
    if is_zero(accelerator):
        return objective.to(accelerator.device)  # DeepSpeed's engine makes the copies alike
    if not is_sharded(accelerator):
        return accelerator.prepare_model(objective)

    # Not by accelerate, which shards on GPUs only and wants the optimiser made first. Only blocks become units of their
    # own: the rest (embedding, output projection, head) is also reached past its `forward` and stays with the root.
    from torch.distributed import broadcast
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for unit in (*blocks_of(objective), objective):  # one after another: a device may not hold all of them whole
        unit.to(accelerator.device)
        with torch.no_grad():
            for weight in unit.parameters():
                if not hasattr(weight, "full_tensor"):  # or its unit has been here
                    broadcast(weight, src=0)
        fully_shard(unit, mesh=mesh)
    return objective


def exchange_gradients(objective: Any, *, now: bool) -> None:
    """Whether the next backward pass ends with an exchange between the processes."""
    if hasattr(objective, "set_requires_gradient_sync"):  # FSDP2
        objective.set_requires_gradient_sync(now)
    elif hasattr(objective, "require_backward_grad_sync"):  # DDP
        objective.require_backward_grad_sync = now


def whole(tensor: Any) -> Tensor:
    """A tensor that may be sharded, as one; every process must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def part_of(full: Tensor, *, like: Any) -> Tensor:
    """`full` sharded as `like` is: the inverse of `whole`."""
    if not hasattr(like, "full_tensor"):
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements)


def local(tensor: Any) -> Tensor:
    """What this process holds of a tensor, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
