"""A causal language model made into a masked diffusion model (DiffuLLaMA, Gong et al. 2025; Dream, Ye et al. 2025).

Three changes: a token for the mask, attention to both sides, and training with the MDM loss. Attention is widened step by step
from the causal pattern, so that the model is never asked for something altogether new; and the prediction of token i may go on
being read at position i - 1 (`shifted`), where the causal model always had it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from prism.models.folder import Folder, ModelError, check_tensors, first_line
from prism.models.hub import locate, weights
from prism.models.llama import Llama, LlamaConfig


def adapt(name_or_path: str | PathLike[str], *, shifted: bool, gguf: str | None = None) -> Llama:
    """The Llama or Qwen2 in a folder or on the hub, with one token more: the mask, an average token to begin with.

    It still attends to the past alone; `widening` changes that. `gguf` names a GGUF file in the folder, which transformers and
    the gguf package turn into float32.
    """
    folder = Folder(locate(name_or_path))
    config, tensors = (folder.json("config.json"), weights(folder)) if gguf is None else _from_gguf(folder, gguf)
    try:
        causal = LlamaConfig.of_causal(config, mask_id=0)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{folder.path} cannot be adapted: {first_line(error)}") from error
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if causal.tied:
        own.pop("lm_head.weight", None)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        if name in own:
            own[name] = torch.cat([own[name], own[name].mean(0, keepdim=True)])
    settings = replace(causal, vocab_size=causal.vocab_size + 1, mask_id=causal.vocab_size, shifted=shifted)
    with torch.device("meta"):
        model = Llama(settings)
    check_tensors(own, model.state_dict(), folder.path, ModelError)
    model.load_state_dict(own, assign=True)
    model.future = 0.0
    return model


def _from_gguf(folder: Folder, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from transformers import AutoModelForCausalLM

    folder.file(name)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder.path, gguf_file=name, dtype=torch.float32)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder.path / name} cannot be read: {first_line(error)}") from error
    return model.config.to_dict(), model.state_dict()


def widening(model: Llama, over: int) -> Callable[[int], None]:
    """For `train(each_step=…)`: at step n of `over` a position sees the share n/over of what follows it, then everything."""
    share = torch.zeros((), device=model.device)

    def widen(step: int) -> None:
        if step >= over:
            model.future = 1.0
        else:
            model.future = share.fill_(step / over)  # a tensor, so that a compiled model is compiled once

    return widen
