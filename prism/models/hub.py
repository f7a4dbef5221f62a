"""Backbones and whole models by name: a local folder, or a repository of the Hugging Face hub.

A folder's `config.json` tells what it holds: a model saved here, the hub's MDLM, or a masked language model of transformers.
Weights are safetensors, whole or sharded, and load strictly: no tensor is missing, left over or of another shape. Code that
comes with a checkpoint is never run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prism.models.attach import PrismModel, base_weights, describe, is_corrector, load
from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.folder import CorrectorError, Folder, ModelError, check_tensors, first_line, write_json, write_tensors
from prism.models.llama import Llama, LlamaConfig
from prism.models.masked_lm import MaskedLM

_OURS: dict[str, tuple[type[DiT] | type[Llama], type[DiTConfig] | type[LlamaConfig]]] = {
    "prism-dit": (DiT, DiTConfig),
    "prism-llama": (Llama, LlamaConfig),
}
"""The kinds of `config.json` written here."""
_MDLM_FIELDS = {
    "vocab_size": "vocab_size",
    "length": "model_length",
    "hidden_size": "hidden_dim",
    "blocks": "n_blocks",
    "heads": "n_heads",
    "cond_size": "cond_dim",
    "dropout": "dropout",
    "time_conditioning": "time_conditioning",
}
"""Our names and those of kuleshov-group/mdlm-owt."""


def load_backbone(
    name_or_path: str | PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    mask_id: int | None = None,
) -> Backbone:
    """The backbone in a folder or a hub repository, in evaluation mode.

    Weights keep the dtype they are stored in unless `dtype` is given. `mask_id` overrides what the checkpoint says and is
    needed where it says nothing.
    """
    folder = Folder(locate(name_or_path))
    config = folder.json("config.json")
    kind = config.get("model_type")
    chosen = {} if mask_id is None else {"mask_id": mask_id}
    backbone: Backbone
    if kind in _OURS:
        settings = {key: value for key, value in config.items() if key != "model_type"}
        backbone = _load(kind, {**settings, **chosen}, weights(folder), folder)
    elif kind == "mdlm":
        backbone = _load("prism-dit", {**_mdlm_settings(config, folder), **chosen}, _mdlm_weights(folder), folder)
    elif kind in _masked_lm_kinds():
        backbone = MaskedLM.from_pretrained(folder.path, mask_id, dtype=dtype)
    else:
        raise ModelError(
            f"{folder.path} holds a model of type {kind!r}, which is no masked diffusion model known here; "
            "give a DiT, MDLM or masked-language-model (BERT, RoBERTa, ModernBERT, …) checkpoint."
        )
    return backbone.to(device=device, dtype=dtype).eval()


def save_backbone(backbone: Backbone, path: str | PathLike[str], *, state: Mapping[str, Tensor] | None = None) -> None:
    """`config.json` and `model.safetensors`, whole or not at all; LoRA that is attached stays out.

    `state` stands in for the backbone's own state dict: averaged weights, or weights gathered from several processes.
    """
    with Folder(Path(path)).rewritten("config.json") as folder:
        _write_backbone(backbone, folder, backbone.state_dict() if state is None else state)


def save_model(
    model: PrismModel,
    path: str | PathLike[str],
    *,
    notes: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """`path/backbone` and, if something is attached, `path/corrector`: what a model with a tuned backbone is kept in."""
    state = model.state_dict() if state is None else state
    own = {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}
    with Folder(Path(path)).rewritten("backbone/config.json") as folder:
        (folder / "backbone").mkdir()
        _write_backbone(model.backbone, folder / "backbone", own)
        if model.quality_head is not None or model.lora is not None:
            model.save(folder / "corrector", base="../backbone", notes=notes, state=state)


def load_model(
    name_or_path: str | PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    mask_id: int | None = None,
) -> PrismModel | Backbone:
    """What `save_model` wrote, a corrector folder that names its backbone, or a bare backbone."""
    path = locate(name_or_path)
    corrector = path if is_corrector(path) else path / "corrector"
    if not is_corrector(corrector):
        source = path / "backbone" if (path / "backbone").is_dir() else path
        return load_backbone(source, dtype=dtype, device=device, mask_id=mask_id)
    base = describe(corrector)
    if not base.name:
        raise CorrectorError(f"{corrector} does not say where its backbone is; load that and use load(path, backbone).")
    beside = corrector / base.name
    backbone = load_backbone(
        beside if beside.is_dir() else base.name,
        dtype=dtype,
        device=device,
        mask_id=base.mask_id if mask_id is None else mask_id,
    )
    return load(corrector, backbone)


def locate(name_or_path: str | PathLike[str]) -> Path:
    """The folder of that path or, where there is none, of the hub repository of that name, fetched if need be."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(name_or_path)):
        raise ModelError(f"There is no folder {path}; check the path.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(str(name_or_path), allow_patterns=["*.json", "*.safetensors", "*.txt"]))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise ModelError(
            f"{name_or_path} is neither a folder here nor to be had from the hub ({type(error).__name__}); "
            "check the name and the network, or download it elsewhere and give its folder."
        ) from error


def weights(folder: Folder) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards its index lists."""
    if (folder.path / "model.safetensors").is_file() or not (folder.path / "model.safetensors.index.json").is_file():
        return folder.tensors("model.safetensors")
    placed = folder.json("model.safetensors.index.json").get("weight_map", {})
    tensors = {name: value for shard in sorted(set(placed.values())) for name, value in folder.tensors(shard).items()}
    if absent := sorted(placed.keys() - tensors.keys()):
        raise ModelError(f"{folder.path} lacks {absent[0]}, which its index lists; copy the shards again.")
    return tensors


def _load(kind: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Folder) -> Backbone:
    model_type, config_type = _OURS[kind]
    try:
        with torch.device("meta"):
            model = model_type(config_type(**settings))  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        named = f"{folder.path / 'config.json'} does not describe a {model_type.__name__}"
        raise ModelError(f"{named}: {first_line(error)}") from error
    check_tensors(tensors, model.state_dict(), folder.path, ModelError)
    model.load_state_dict(tensors, assign=True)
    return model


def _mdlm_settings(config: Mapping[str, Any], folder: Folder) -> dict[str, Any]:
    if absent := sorted(_MDLM_FIELDS.values() - config.keys()):
        raise ModelError(f"{folder.path / 'config.json'} lacks {', '.join(absent)}; copy it again from its source.")
    settings = {ours: config[theirs] for ours, theirs in _MDLM_FIELDS.items()}
    return {"mask_id": settings["vocab_size"] - 1, **settings}  # the mask is the last id of the vocabulary


def _mdlm_weights(folder: Folder) -> dict[str, Tensor]:
    tensors = {name.removeprefix("backbone."): value for name, value in weights(folder).items()}
    tensors.pop("rotary_emb.inv_freq", None)  # the same constants for every checkpoint; ours are computed
    return tensors


def _masked_lm_kinds() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def _write_backbone(backbone: Backbone, folder: Path, state: Mapping[str, Tensor]) -> None:
    tensors = base_weights(state)
    if isinstance(backbone, DiT | Llama):
        kind = next(name for name, (model_type, _) in _OURS.items() if type(backbone) is model_type)
        write_json(folder / "config.json", {"model_type": kind, **asdict(backbone.config)})
        write_tensors(folder / "model.safetensors", tensors)
    elif isinstance(backbone, MaskedLM):
        own = {name.removeprefix("model."): value for name, value in tensors.items()}
        backbone.model.save_pretrained(folder, state_dict=own)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", {**config, "mask_token_id": backbone.facts.mask_id})
    else:
        raise ModelError(f"A {type(backbone).__name__} cannot be saved; only DiT, Llama and MaskedLM backbones can.")
