"""A causal language model made into a masked diffusion model (DiffuLLaMA, Gong et al. 2025; Dream, Ye et al. 2025).

Three changes: a token for the mask, attention to both sides, and training with the MDM loss. Attention is widened step by step
from the causal pattern, so that the model is never asked for something altogether new; and the prediction of token i may go on
being read at position i - 1 (`shifted`), where the causal model always had it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prism.models.folder import Folder, ModelError, check_tensors, first_line
from prism.models.hub import locate, weights
from prism.models.llama import Llama, LlamaConfig


def adapt(
    name_or_path: str | PathLike[str],
    *,
    shifted: bool,
    mask_id: int | None = None,
    known: int | None = None,
    length: int | None = None,
) -> Llama:
    """The Llama, Mistral, Qwen2 or Qwen3 in a folder, on the hub or in a GGUF file (which transformers and the gguf package
    turn into float32), with a token for the mask: an average token to begin with.

    It still attends to the past alone; `widening` changes that. The mask is one token more unless `mask_id` gives it a row the
    model has and its tokenizer does not use; `known` is how many tokens that knows, the mask included, where there are fewer
    than rows. `length` is that of the sequences it will be trained on, the model's longest if left out.
    """
    source = Path(name_or_path)
    if source.suffix == ".gguf":
        config, tensors = _from_gguf(source)
    else:
        folder = Folder(locate(name_or_path))
        config, tensors = folder.json("config.json"), weights(folder)
    try:
        causal = LlamaConfig.of_causal(config, mask_id=0, length=length)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{source} cannot be adapted: {first_line(error)}") from error
    mask = causal.vocab_size if mask_id is None else mask_id
    if not 0 <= mask <= causal.vocab_size:
        raise ModelError(
            f"mask_id={mask} leaves a gap after the {causal.vocab_size:,} tokens of {source}; "
            "give its own tokenizer, whose mask comes at most right after them."
        )
    rows = max(causal.vocab_size, mask + 1)
    settings = replace(
        causal,
        vocab_size=rows,
        mask_id=mask,
        shifted=shifted,
        known=None if known is None or known >= rows else known,
    )
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if causal.tied:
        own.pop("lm_head.weight", None)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        if name in own:
            table, average = own[name], own[name][: known or None].mean(0, keepdim=True)
            own[name] = torch.cat([table[:mask], average, table[mask + 1 :]])
    with torch.device("meta"):
        model = Llama(settings)
    check_tensors(own, model.state_dict(), source, ModelError)
    model.load_state_dict(own, assign=True)
    model.future = 0.0
    return model


def _from_gguf(source: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from transformers import AutoModelForCausalLM

    Folder(source.parent).file(source.name)
    try:
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{source} cannot be read: {first_line(error)}") from error
    from gguf import GGUFReader

    file = GGUFReader(
        source
    )  # transformers reads neither the rates of Llama 3.1 and later nor a factor for all of them
    slowed = any(tensor.name == "rope_freqs.weight" for tensor in file.tensors)
    if slowed or any(name.endswith(".rope.scaling.factor") for name in file.fields):
        raise ModelError(f"{source} has scaled rotary positions, which transformers leaves out; give its safetensors.")
    return model.config.to_dict(), model.state_dict()


def widening(model: Llama, over: int) -> Callable[[int], None]:
    """For `train(each_step=…)`: at step n of `over` a position sees the share n/over of what follows it, then everything."""

    def widen(step: int) -> None:
        # A tensor, so that a compiled model is compiled once; made here, because training moves the model.
        model.future = 1.0 if step >= over else torch.full((), step / over, device=model.device)

    return widen
