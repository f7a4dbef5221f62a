"""A frozen backbone in four bits a weight (QLoRA, Dettmers et al. 2023), for LoRA on GPUs that the whole of it would fill."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from prism.models.attach import fingerprint
from prism.models.backbone import Backbone
from prism.models.folder import ModelError


def in_four_bits(backbone: Backbone, device: torch.device) -> Backbone:
    """The linear layers of the backbone's blocks packed into NF4 on their way to `device`, and multiplied in bfloat16;
    the rest (embedding, norms, vocabulary projection) moves there as it is. What is packed cannot be trained or saved."""
    bitsandbytes = import_bitsandbytes()
    backbone.packed_from = fingerprint(backbone)
    for name, layer in _block_layers(backbone).items():
        packed = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
            device="meta",  # or room for the whole of it would be made first
        )
        packed.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        packed.bias = layer.bias
        backbone.set_submodule(name, packed.to(device).train(layer.training))  # moving it packs it
    backbone.is_loaded_in_4bit = True  # type: ignore[assignment]  # by which PEFT knows
    return backbone.to(device).requires_grad_(False)


def outline_in_four_bits(backbone: Backbone) -> Backbone:
    """The room `in_four_bits` leaves the weights of an outline: two of them in a byte."""
    for layer in _block_layers(backbone).values():
        packed = torch.empty(-(-layer.weight.numel() // 2), 1, dtype=torch.uint8, device="meta")
        layer.weight = nn.Parameter(packed, requires_grad=False)
    return backbone.requires_grad_(False)


def _block_layers(backbone: Backbone) -> dict[str, nn.Linear]:
    blocks = [name for name, module in backbone.named_modules() if isinstance(module, nn.ModuleList)]
    return {
        name: layer
        for name, layer in backbone.named_modules()
        if isinstance(layer, nn.Linear) and any(name.startswith(f"{block}.") for block in blocks)
    }


def import_bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise ModelError(
            "Four bits a weight need bitsandbytes; run: pip install 'prism-mdm[four-bit]', or take bfloat16."
        ) from error
    return bitsandbytes
