"""Backbones and whole models by name: a local folder, or a repository of the Hugging Face hub.

A folder's `config.json` tells what it holds: a model saved here, the hub's MDLM, LLaDA or Dream, or a masked language model of
transformers.
Weights are safetensors, whole or sharded, and load strictly: no tensor is missing, left over or of another shape. Code that
comes with a checkpoint is never run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prism.models.attach import PrismModel, base_weights, describe, is_corrector, load
from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.folder import (
    CorrectorError,
    Folder,
    ModelError,
    check_tensors,
    first_line,
    no_bars,
    write_json,
    write_tensors,
)
from prism.models.llama import Llama, LlamaConfig
from prism.models.masked_lm import MaskedLM
from prism.models.published import dream_config, dream_name, known_tokens, llada_config, llada_name, refusal

LARGE = 1 << 30
"""Bytes of weights from which on reading them is shown."""

_OURS: dict[str, tuple[type[DiT] | type[Llama], Callable[..., DiTConfig | LlamaConfig]]] = {
    "prism-dit": (DiT, DiTConfig),
    "prism-llama": (Llama, LlamaConfig.of_saved),
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
    backbone: Backbone
    if (translation := _translated(folder, mask_id)) is None:
        backbone = MaskedLM.from_pretrained(folder.path, mask_id, dtype=dtype)
    else:
        backbone = _load(folder, translation, device, dtype)
    return backbone.to(device=device, dtype=dtype).eval()


def outline_backbone(
    name_or_path: str | PathLike[str], *, dtype: torch.dtype | None = None, mask_id: int | None = None
) -> Backbone:
    """The backbone `load_backbone` would give, on the meta device: what it knows and what room it takes, before it is read."""
    folder = Folder(locate(name_or_path))
    translation = _translated(folder, mask_id)
    backbone = MaskedLM.outline(folder.path, mask_id) if translation is None else _outline(folder, translation)
    return backbone.to(dtype=dtype).eval()


@dataclass(frozen=True)
class _Translation:
    """What files of one format are here."""

    make: Callable[[], Backbone]
    rename: Callable[[str], str | None] = lambda name: name
    """Our name of a weight; None for one we do not need."""


def _translated(folder: Folder, mask_id: int | None) -> _Translation | None:
    """None where transformers itself knows the model, a masked language model."""
    config = folder.json("config.json")
    kind = config.get("model_type")
    if (why := refusal(config)) is not None:
        raise ModelError(f"{folder.path} holds a model of type {kind!r}, which {why}")
    chosen = {} if mask_id is None else {"mask_id": mask_id}
    if kind in _OURS:
        settings = {key: value for key, value in config.items() if key != "model_type"}
        model_type, configured = _OURS[kind]
        return _Translation(lambda: model_type(configured(**settings | chosen)))  # type: ignore[arg-type]
    if kind == "mdlm":
        settings = _mdlm_settings(config, folder) | chosen
        return _Translation(lambda: DiT(DiTConfig(**settings)), _mdlm_name)
    if kind == "llada":
        return _Translation(lambda: Llama(llada_config(config, mask_id)), llada_name)
    if kind == "Dream":
        known = known_tokens(folder.path)
        return _Translation(lambda: Llama(dream_config(config, mask_id, known)), dream_name)
    if kind in _masked_lm_kinds():
        return None
    raise ModelError(
        f"{folder.path} holds a model of type {kind!r}, which is no masked diffusion model known here; "
        "give a DiT, MDLM, LLaDA, Dream or masked-language-model (BERT, RoBERTa, ModernBERT, …) checkpoint."
    )


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
    backbone: str | PathLike[str] | None = None,
) -> PrismModel | Backbone:
    """What `save_model` wrote, a corrector folder that names its backbone, or a bare backbone.

    `backbone` says where the backbone of a corrector is, if no longer where it was when the corrector was trained.
    """
    path = locate(name_or_path)
    corrector = path if is_corrector(path) else path / "corrector"
    if not is_corrector(corrector):
        if backbone is not None:
            raise ModelError(
                f"{path} is no corrector: it has a backbone of its own. Leave --backbone (backbone=…) out."
            )
        return load_backbone(_bare(path), dtype=dtype, device=device, mask_id=mask_id)
    mask_id = describe(corrector).mask_id if mask_id is None else mask_id
    return load(corrector, load_backbone(_base_of(corrector, backbone), dtype=dtype, device=device, mask_id=mask_id))


def folders(name_or_path: str | PathLike[str], backbone: str | PathLike[str] | None = None) -> Iterator[Path]:
    """Where what belongs to a model may lie: its own folder first, then its backbone's, told as to `load_model`."""
    path = locate(name_or_path)
    yield path
    if (path / "backbone").is_dir():
        yield path / "backbone"
    for corrector in (path, path / "corrector"):
        if is_corrector(corrector):
            yield _base_of(corrector, backbone)


def _base_of(corrector: Path, backbone: str | PathLike[str] | None) -> Path:
    """The folder of the backbone the corrector was trained on: where that is said to be, or was then."""
    if backbone is not None:
        return _bare(locate(backbone))
    name = describe(corrector).name
    advice = "say where it is: --backbone FOLDER beside --model (backbone=…)"
    if not name:
        raise CorrectorError(f"{corrector} does not say where its backbone is; {advice}, or use load(path, backbone).")
    beside = corrector / name
    try:
        return locate(beside if beside.is_dir() else name)
    except ModelError as error:
        raise CorrectorError(
            f"{corrector} was trained on the backbone {name}, which cannot be found: {error} If it has moved, {advice}, or "
            f"write it as the backbone's name into {corrector / 'prism_config.json'}."
        ) from error


def _bare(path: Path) -> Path:
    """The backbone in the folder of a model that was trained whole."""
    return path / "backbone" if (path / "backbone").is_dir() else path


def is_mdlms(name_or_path: str | PathLike[str], backbone: str | PathLike[str] | None = None) -> bool:
    """Whether the backbone is one of MDLM's own checkpoints, which learnt text between two end-of-text tokens."""
    places = (folder for folder in folders(name_or_path, backbone) if (folder / "config.json").is_file())
    return any(Folder(folder).json("config.json").get("model_type") == "mdlm" for folder in places)


def locate(name_or_path: str | PathLike[str]) -> Path:
    """The folder of that path or, where there is none, of the hub repository of that name, fetched if need be."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(name_or_path)):
        raise ModelError(f"There is no folder {path}; check the path.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # chat templates are no code: transformers renders them in a sandbox, and tokenizer_config.json may hold them as well
    wanted = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(str(name_or_path), allow_patterns=wanted))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise ModelError(
            f"{name_or_path} is neither a folder here nor to be had from the hub ({type(error).__name__}); "
            "check the name and the network, or download it elsewhere and give its folder."
        ) from error


def model_files(name_or_path: str | PathLike[str]) -> Path:
    """The GGUF file of that path, or the folder (`locate`)."""
    path = Path(name_or_path)
    return Folder(path.parent).file(path.name) if path.suffix == ".gguf" else locate(name_or_path)


def weights(folder: Folder) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards its index lists."""
    return {name: value for shard in _shards(folder) for name, value in folder.tensors(shard).items()}


def _shards(folder: Folder) -> list[str]:
    if (folder.path / "model.safetensors").is_file() or not (folder.path / "model.safetensors.index.json").is_file():
        return ["model.safetensors"]
    index = "model.safetensors.index.json"
    placed = folder.json(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(shard, str) for shard in placed.values()):
        raise ModelError(f"{folder.path / index} does not say which file holds which weight; copy it again.")
    shards = sorted(set(placed.values()))
    there = {name for shard in shards for name in folder.outlines(shard)}
    if absent := sorted(placed.keys() - there):
        raise ModelError(f"{folder.path} lacks {absent[0]}, which its index lists; copy the shards again.")
    return shards


def _outline(folder: Folder, translation: _Translation) -> Backbone:
    """The model with the shapes and types its weights have in the folder."""
    try:
        with torch.device("meta"):
            model = translation.make()
    except (KeyError, TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        why = f"{error} is not given" if isinstance(error, KeyError) else first_line(error)
        kind = folder.json("config.json").get("model_type")
        raise ModelError(f"{folder.path / 'config.json'} does not describe a {kind} model: {why}") from error
    stored = {translation.rename(name): tensor for s in _shards(folder) for name, tensor in folder.outlines(s).items()}
    found = {name: tensor for name, tensor in stored.items() if name is not None}
    check_tensors(found, model.state_dict(), folder.path, ModelError)
    model.load_state_dict(found, assign=True)
    return model


def _load(folder: Folder, translation: _Translation, device: torch.device | str, dtype: torch.dtype | None) -> Backbone:
    """The model with the weights of the folder, each of them read straight to its place and type: at no time is there more in
    memory than the model and one tensor."""
    model, shards = _outline(folder, translation), _shards(folder)
    with _bar(folder, shards) as advance:
        for shard in shards:
            for name, value in folder.stream(shard, str(device)):
                if (ours := translation.rename(name)) is not None:
                    model.load_state_dict({ours: value.to(dtype)}, assign=True, strict=False)
                advance(value.nbytes)
    return model


@contextmanager
def _bar(folder: Folder, shards: list[str]) -> Iterator[Callable[[int], object]]:
    """Progress in bytes, for models large enough to be waited for: on a terminal, by the first of several processes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    total, console = sum(folder.file(shard).stat().st_size for shard in shards), Console()
    hidden = total < LARGE or not console.is_terminal or os.environ.get("RANK", "0") != "0"
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda size: bar.advance(task, size)


def _mdlm_settings(config: Mapping[str, Any], folder: Folder) -> dict[str, Any]:
    if absent := sorted(_MDLM_FIELDS.values() - config.keys()):
        raise ModelError(f"{folder.path / 'config.json'} lacks {', '.join(absent)}; copy it again from its source.")
    settings = {ours: config[theirs] for ours, theirs in _MDLM_FIELDS.items()}
    return {"mask_id": settings["vocab_size"] - 1, **settings}  # the mask is the last id of the vocabulary


def _mdlm_name(name: str) -> str | None:
    """Without its prefix; rotary frequencies are the same constants for every checkpoint, and computed here."""
    ours = name.removeprefix("backbone.")
    return None if ours == "rotary_emb.inv_freq" else ours


def _masked_lm_kinds() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def _write_backbone(backbone: Backbone, folder: Path, state: Mapping[str, Tensor]) -> None:
    if backbone.packed_from is not None:
        raise ModelError("A backbone of four bits a weight is not saved; save what is attached to it.")
    tensors = base_weights(state)
    if isinstance(backbone, DiT | Llama):
        kind = next(name for name, (model_type, _) in _OURS.items() if type(backbone) is model_type)
        write_json(folder / "config.json", {"model_type": kind, **asdict(backbone.config)})
        write_tensors(folder / "model.safetensors", tensors)
    elif isinstance(backbone, MaskedLM):
        own = {name.removeprefix("model."): value for name, value in tensors.items()}
        with no_bars():
            backbone.model.save_pretrained(folder, state_dict=own)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", {**config, "mask_token_id": backbone.facts.mask_id})
    else:
        raise ModelError(f"A {type(backbone).__name__} cannot be saved; only DiT, Llama and MaskedLM backbones can.")
