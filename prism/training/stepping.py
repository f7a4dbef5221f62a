"""Who takes the optimiser's step: this process for all it holds (alone, DDP, FSDP2), or DeepSpeed's engine (ZeRO-2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.training.settings import Optimisation
from prism.training.sharding import part_of

Weights = Mapping[str, nn.Parameter]


class Stepping(ABC):
    objective: Any
    """What to call for a loss."""

    @abstractmethod
    def backward(self, total: Float[Tensor, ""]) -> None:
        """The gradients of one micro-batch, added to those of its step."""

    @abstractmethod
    def step(self) -> Float[Tensor, ""]:
        """Clip, step, and forget the gradients; their norm before clipping."""

    @abstractmethod
    def moments(self, weights: Weights) -> dict[str, Tensor]:
        """What the optimisers remember, as slot/name; every process must ask."""

    @abstractmethod
    def go_on(self, weights: Weights, moments: Mapping[str, Tensor]) -> None:
        """From `weights`, which have been put back, with the `moments` they had."""


class Own(Stepping):
    def __init__(
        self, objective: nn.Module, optimizers: list[torch.optim.Optimizer], weights: Weights, settings: Optimisation
    ) -> None:
        self.objective, self.optimizers = objective, optimizers
        self._weights, self._settings = list(weights.values()), settings

    def backward(self, total: Float[Tensor, ""]) -> None:
        (total / self._settings.accumulate).backward()

    def step(self) -> Float[Tensor, ""]:
        norm = nn.utils.clip_grad_norm_(self._weights, self._settings.clip or math.inf)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return norm

    def moments(self, weights: Weights) -> dict[str, Tensor]:
        return {
            f"{slot}/{name}": value
            for optimizer in self.optimizers
            for name, weight in weights.items()
            for slot, value in optimizer.state.get(weight, {}).items()
        }

    def go_on(self, weights: Weights, moments: Mapping[str, Tensor]) -> None:
        slots: dict[Tensor, dict[str, Tensor]] = {}
        for key, value in moments.items():
            slot, name = key.split("/", 1)
            whole_value = value if slot == "step" else part_of(value, like=weights[name])
            slots.setdefault(weights[name], {})[slot] = whole_value
        for optimizer in self.optimizers:
            order = [weight for group in optimizer.param_groups for weight in group["params"]]
            state = {i: slots[weight] for i, weight in enumerate(order) if weight in slots}
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


class Zero2(Stepping):
    """Every process holds all weights, and the gradients and moments of a part of what learns.

    DeepSpeed's own mixed precision stays off: it would cast what learns to bfloat16. The engine is made by us and not by
    accelerate, which knows DeepSpeed on GPUs only.
    """

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(self, objective: nn.Module, adamw: torch.optim.Optimizer, settings: Optimisation, rows: int) -> None:
        import deepspeed  # accelerate's launcher says so where it is missing

        self.adamw = adamw
        self.objective, self._zero, _, _ = deepspeed.initialize(
            model=objective,
            optimizer=adamw,
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": rows,
                "gradient_accumulation_steps": settings.accumulate,
                "gradient_clipping": settings.clip or 0.0,  # 0 is DeepSpeed's word for none
                "zero_optimization": {"stage": 2},
                "zero_allow_untested_optimizer": True,  # torch's AdamW, that of every other way
            },
        )
        # As AdamW's first step would. The engine (0.19.8) ties weights to their moments in the first step of the first
        # group, when the other groups have none yet, and never finds theirs again.
        for part in self._zero.single_partition_of_fp32_groups:
            step = torch.zeros((), device=part.device if adamw.defaults["fused"] else "cpu")
            adamw.state[part] = {"step": step} | {slot: torch.zeros_like(part) for slot in self.slots}
        self._zero._lazy_init_hp_params_optimizer_state()

    def backward(self, total: Float[Tensor, ""]) -> None:
        self.objective.backward(total)
        self.objective.step()  # the engine counts micro-batches and takes a step with the last one

    def step(self) -> Float[Tensor, ""]:
        # The engine skips a step whose gradients are not finite, and then gives their norm as inf.
        return torch.as_tensor(self.objective.get_global_grad_norm(), device=self.objective.device)

    def moments(self, weights: Weights) -> dict[str, Tensor]:
        """The same names as anyone's, so that one way of sharing goes on with what another left."""
        from deepspeed.utils import safe_get_full_optimizer_state

        taken = next(state["step"] for state in self.adamw.state.values())
        found = {f"step/{name}": taken.clone() for name in weights}
        for slot in self.slots:
            found |= {f"{slot}/{name}": safe_get_full_optimizer_state(w, slot) for name, w in weights.items()}
        return found

    def go_on(self, weights: Weights, moments: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        taken = next(value for key, value in moments.items() if key.startswith("step/"))
        for state in self.adamw.state.values():
            state["step"].copy_(taken)
        for name, weight in weights.items():
            safe_set_full_fp32_param(weight, weight.detach())
            for slot in self.slots:
                if f"{slot}/{name}" in moments:  # a weight that never had a gradient has none elsewhere
                    safe_set_full_optimizer_state(weight, moments[f"{slot}/{name}"].to(weight.device), slot)
