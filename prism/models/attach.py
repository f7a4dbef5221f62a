"""The plug-in: a quality head and, if wanted, LoRA on any backbone (PRISM, Section 3.2), and the folder they are kept in.

A corrector is a PEFT adapter folder: `adapter_model.safetensors` with the trained tensors under PEFT's names,
`adapter_config.json`, by which PEFT itself can load it, `prism_config.json` and a model card. It never holds the backbone; it
holds its fingerprint, so that a corrector is not put on weights it was not trained for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.models.backbone import Backbone, Cache, Facts, log_odds, prediction_of
from prism.models.folder import CorrectorError, Folder, check_tensors, listed, write_json, write_tensors
from prism.models.heads import ALL_HEADS, Calibration, HeadConfig, QualityHead, masked_share
from prism.state import Hidden, Mask, Prediction, Tokens, aligned
from prism.version import __version__

PLAIN, CALIBRATED = 1, 2
"""Versions of `prism_config.json`; whoever knows the first alone would take quality that is to be calibrated as it is."""

_WEIGHTS, _PEFT, _PRISM = "adapter_model.safetensors", "adapter_config.json", "prism_config.json"
_KINDS = {kind.__name__.removesuffix("Config"): kind for kind in ALL_HEADS}


@dataclass(frozen=True)
class Lora:
    """Low-rank adaptation (Hu et al. 2021) of the backbone's linear layers, through PEFT."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Suffixes of layer names in the backbone, such as ("attn_qkv",). The vocabulary projection is never a target."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank} must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1).")


def attach(
    backbone: Backbone, head: HeadConfig | None, *, lora: Lora | None = None, tune_backbone: bool = False
) -> PrismModel:
    """A quality head on `backbone`, which is changed in place until `detach` and frozen unless it is to be tuned.

    Without a head (None) only the likelihood variant can be trained. New parameters are float32 whatever the backbone is, and
    start so that the backbone's output is unchanged and every quality is 1/2, or, with an `OddsConfig`, what the backbone
    itself gives the token.
    """
    if head is not None and head.hidden_size != backbone.facts.hidden_size:
        raise ValueError(
            f"The head is made for hidden size {head.hidden_size}, the backbone has {backbone.facts.hidden_size}; "
            f"build it with hidden_size={backbone.facts.hidden_size}."
        )
    if backbone.packed_from is not None and tune_backbone:
        raise ValueError("Weights of four bits cannot be trained; adapt them with lora, or load the backbone unpacked.")
    if lora is not None and tune_backbone:
        raise ValueError("lora adapts a frozen backbone and tune_backbone=True trains it; choose one.")
    if head is None and lora is None and not tune_backbone:
        raise ValueError("There is nothing to train: give a head, lora or tune_backbone=True.")
    return PrismModel(backbone, head, lora, tune_backbone)


class PrismModel(nn.Module):
    """A backbone that knows how far to trust its own tokens. Made by `attach` or `load`."""

    forwards: int = 1

    def __init__(self, backbone: Backbone, head: HeadConfig | None, lora: Lora | None, tune_backbone: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.head_config, self.lora, self.tuned = head, lora, tune_backbone
        self._requires_grad = {name: parameter.requires_grad for name, parameter in backbone.named_parameters()}
        self._adapted = {} if lora is None else _inject(backbone, lora)
        """The layers LoRA stands in for."""
        for name, parameter in backbone.named_parameters():
            parameter.requires_grad_(tune_backbone or _is_lora(name))
        self.quality_head: QualityHead | None = None
        if head is not None:
            self.quality_head = head.build().to(backbone.device).train(backbone.training)
        self.calibration: Calibration | None = None
        self.training = backbone.training

    @property
    def facts(self) -> Facts:
        return self.backbone.facts

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    def predict(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Prediction:
        """One forward pass."""
        return self.prediction(self.backbone(tokens, attend, cache), tokens, attend)

    def prediction(self, hidden: Hidden, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        """What the hidden states of a forward pass over `tokens` amount to. Quality is read at a token's own position, also
        where its logits are read one to the left, unless it is itself read through the vocabulary."""
        head, prediction = self.quality_head, prediction_of(self.backbone, hidden)
        if head is None:
            return prediction
        in_rows = partial(self._quality_in_rows, hidden, tokens, attend)
        calibration = None if self.calibration is None else partial(self._calibrated, tokens, attend)
        if head.looks_around:
            return prediction.judged_by(in_rows, quality_in_rows=in_rows, calibration=calibration)
        return prediction.judged_by(in_rows, quality_of=self._quality_of, calibration=calibration)

    # Methods and not functions inside `prediction`: those would be made anew, and under test checked anew, at every step.

    def _quality_of(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        head = self.quality_head
        assert head is not None
        return head(rows[None].to(next(head.parameters()).dtype)).score[0]

    def _quality_in_rows(
        self, hidden: Hidden, tokens: Tokens, attend: Mask | None, places: Int[Tensor, "b m"] | None = None
    ) -> Float[Tensor, "b m"]:
        head = self.quality_head
        assert head is not None
        seen = aligned(hidden, self.facts.field.value) if head.reads_vocabulary else hidden
        score, states = head(seen.to(next(head.parameters()).dtype), attend, places)
        if states is None:
            return score
        judged = tokens if places is None else tokens.gather(1, places)
        return score + log_odds(self.backbone, states.to(hidden.dtype), judged)

    def _calibrated(self, tokens: Tokens, attend: Mask | None, logits: Float[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        assert self.calibration is not None
        return self.calibration(logits, masked_share(tokens, self.facts.mask_id, attend))

    def forward(self, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        return self.predict(tokens, attend)

    def settled(self) -> AbstractContextManager[list[Tensor]]:
        """See `Backbone.settled`."""
        return self.backbone.settled()

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that learn, for optimiser groups: "backbone", "lora" and "head", any of them empty."""
        groups: dict[str, list[nn.Parameter]] = {"backbone": [], "lora": [], "head": []}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                group = "head" if _is_head(name) else "lora" if _is_lora(name) else "backbone"
                groups[group].append(parameter)
        return groups

    def detach(self) -> Backbone:
        """The backbone without LoRA and head, as it was attached; after `tune_backbone` with its new weights."""
        for name, layer in self._adapted.items():
            self.backbone.set_submodule(name, layer)
        if self._adapted:
            del self.backbone.peft_config
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(self._requires_grad[name])
        self._adapted, self.quality_head, self.head_config, self.lora = {}, None, None, None
        self.calibration = None
        return self.backbone

    def save(
        self,
        path: str | PathLike[str],
        *,
        base: str = "",
        notes: Mapping[str, Any] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write the corrector folder, whole or not at all; an older corrector at `path` is replaced.

        **Main arguments.** `base` names the backbone for people and for PEFT (a hub name or path); `notes` is anything worth
        knowing about the training, as JSON.

        **Other arguments.** `state` stands in for this model's own state dict: averaged weights, or weights gathered from
        several processes.
        """
        state = self.state_dict() if state is None else state
        tensors = {_peft_name(name): value for name, value in state.items() if _is_head(name) or _is_lora(name)}
        if not tensors:
            raise CorrectorError(
                "Nothing is attached to this backbone; save the tuned backbone itself with save_model."
            )
        with Folder(Path(path), CorrectorError).rewritten(_PRISM) as folder:
            write_tensors(folder / _WEIGHTS, tensors)
            write_json(folder / _PEFT, self._peft_config(base))
            write_json(folder / _PRISM, self._prism_config(state, base, notes or {}, _sha256(folder / _WEIGHTS)))
            (folder / "README.md").write_text(self._card(base), encoding="utf-8")

    def _prism_config(
        self, state: Mapping[str, Tensor], base: str, notes: Mapping[str, Any], sha256: str
    ) -> dict[str, Any]:
        weights = {
            name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")
        }
        head = self.head_config
        return {
            "format": PLAIN if self.calibration is None else CALIBRATED,
            "prism_version": __version__,
            "head": None if head is None else {"kind": type(head).__name__.removesuffix("Config"), **asdict(head)},
            "lora": None if self.lora is None else asdict(self.lora),
            **({} if self.calibration is None else {"calibration": asdict(self.calibration)}),
            "backbone": {
                "name": base,
                "class": type(self.backbone).__name__,
                "fingerprint": self.backbone.packed_from or _fingerprint(weights),
                "facts": {**asdict(self.facts), "field": self.facts.field.name},
            },
            "sha256": sha256,
            "notes": dict(notes),
        }

    def _peft_config(self, base: str) -> dict[str, Any]:
        from peft import LoraConfig
        from peft.utils.constants import DUMMY_TARGET_MODULES

        lora = self.lora or Lora(rank=1, alpha=1.0, targets=())
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=[f"backbone.{name}" for name in self._adapted] or DUMMY_TARGET_MODULES,
            modules_to_save=None if self.quality_head is None else ["quality_head"],
            base_model_name_or_path=base or None,
            inference_mode=True,
        ).to_dict()
        return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}

    def _card(self, base: str) -> str:
        kind = "no quality head" if self.head_config is None else f"a {type(self.quality_head).__name__}"
        adapted = "" if self.lora is None else f" and LoRA of rank {self.lora.rank} on {', '.join(self.lora.targets)}"
        front = ["library_name: peft", "tags: [prism, masked-diffusion, self-correction, remasking]"]
        front += [f"base_model: {json.dumps(base)}"] if base else []
        return "\n".join(
            [
                "---",
                *front,
                "---",
                "",
                f"# PRISM corrector for {base or type(self.backbone).__name__}",
                "",
                f"Self-correction for a masked diffusion model: {kind}{adapted}, trained with the PRISM loss. The quality of a",
                "token is the probability that it is right given the rest of the sequence; sampling takes the least likely",
                "ones back and draws them again. The backbone is not in this folder.",
                "",
                "```python",
                "from prism.models.attach import load",
                "from prism.models.hub import load_backbone",
                "",
                f'model = load("this/folder", load_backbone({json.dumps(base or "the/backbone")}))',
                "```",
                "",
                f"Settings, the backbone's fingerprint and notes on the training are in `{_PRISM}`. PEFT can load the folder",
                "too, onto a module that has the backbone as `.backbone` and an untrained head as `.quality_head`.",
                "",
            ]
        )


@dataclass(frozen=True)
class Corrector:
    """What `prism_config.json` says of the tensors beside it."""

    head: HeadConfig | None
    lora: Lora | None
    calibration: Calibration | None
    name: str
    """Where the backbone is from; empty where nobody said."""
    mark: str
    """The backbone's fingerprint."""
    hidden_size: int
    mask_id: int
    sha256: str


def is_corrector(path: Path) -> bool:
    return (path / _PRISM).is_file()


def describe(path: str | PathLike[str]) -> Corrector:
    """Read the settings of the corrector at `path`."""
    folder = Folder(Path(path), CorrectorError)
    config = folder.json(_PRISM)
    if config.get("format") not in (PLAIN, CALIBRATED):
        raise CorrectorError(
            f"{folder.path} has format {config.get('format')!r}, this version of prism reads {PLAIN} and {CALIBRATED}; "
            "upgrade prism-mdm."
        )
    try:
        base, head, lora = config["backbone"], config["head"], config["lora"]
        calibration = config["calibration"] if config["format"] == CALIBRATED else None
        return Corrector(
            head=None if head is None else _head_of(**head),
            lora=None if lora is None else Lora(**{**lora, "targets": tuple(lora["targets"])}),
            calibration=None if calibration is None else Calibration(**calibration),
            name=base["name"],
            mark=base["fingerprint"],
            hidden_size=base["facts"]["hidden_size"],
            mask_id=base["facts"]["mask_id"],
            sha256=config["sha256"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorrectorError(
            f"{folder.path / _PRISM} is damaged or of an unknown kind ({error}); copy it again, or upgrade prism-mdm."
        ) from error


def _head_of(kind: str, **settings: Any) -> HeadConfig:
    if kind not in _KINDS:
        raise ValueError(f"head {kind!r} is none of {', '.join(_KINDS)}")
    return _KINDS[kind](**settings)


def load(path: str | PathLike[str], backbone: Backbone, *, any_backbone: bool = False) -> PrismModel:
    """Put the corrector at `path` on the backbone it was trained for; `any_backbone` forgoes that check."""
    folder, corrector = Folder(Path(path), CorrectorError), describe(path)
    _check_backbone(backbone, corrector, any_backbone)
    folder.json(_PEFT)
    if _sha256(folder.file(_WEIGHTS)) != corrector.sha256:
        raise CorrectorError(
            f"{folder.path / _WEIGHTS} is truncated or damaged (its SHA-256 is not the one in {_PRISM}); copy it again."
        )
    tensors = folder.tensors(_WEIGHTS)
    try:
        model = attach(backbone, corrector.head, lora=corrector.lora)
    except ValueError as error:
        raise CorrectorError(f"{folder.path} does not fit this backbone: {error}") from error
    own = {key: value for key, value in model.state_dict().items() if _is_head(key) or _is_lora(key)}
    try:
        check_tensors(tensors, {_peft_name(key): value for key, value in own.items()}, folder.path, CorrectorError)
    except CorrectorError:
        model.detach()
        raise
    model.load_state_dict({key: tensors[_peft_name(key)] for key in own}, strict=False)
    model.calibration = corrector.calibration
    return model


def fingerprint(backbone: Backbone) -> str:
    """What tells one set of base weights from another: a digest of names, shapes and a sample of the values.

    Values are rounded to bfloat16 first, so that a checkpoint loaded in bfloat16 and in float32 is the same one. LoRA and
    heads do not count. At most 1,024 values of a tensor are read: milliseconds for billions of parameters.
    """
    return backbone.packed_from or _fingerprint(backbone.state_dict())


def _fingerprint(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(base_weights(weights).items()):
        if tensor.is_floating_point():
            stride = -(-tensor.numel() // 1024) or 1
            sample = tensor.detach().flatten()[::stride].to(torch.bfloat16).float().cpu()
            digest.update(f"{name}{tuple(tensor.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:32]


def base_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A backbone's state dict as it was before LoRA came."""
    return {name.replace(".base_layer.", "."): value for name, value in weights.items() if not _is_lora(name)}


def _inject(backbone: Backbone, lora: Lora) -> dict[str, nn.Module]:
    """LoRA on the targeted layers; what stood there before, by name."""
    from peft import LoraConfig, inject_adapter_in_model

    if any(_is_lora(name) for name, _ in backbone.named_parameters()):
        raise ValueError("This backbone already has LoRA; detach the model it belongs to first.")
    names = _targeted(backbone, lora.targets)
    layers = {name: backbone.get_submodule(name) for name in names}
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(names), bias="none"
    )
    inject_adapter_in_model(config, backbone)
    for name, layer in layers.items():
        backbone.get_submodule(name).train(layer.training)
    for name, parameter in backbone.named_parameters():
        if _is_lora(name):
            parameter.data = parameter.data.float()
    return layers


def _targeted(backbone: Backbone, targets: tuple[str, ...]) -> list[str]:
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    vocabulary = _vocabulary_layers(backbone, linear)
    allowed = [name for name in linear if name not in vocabulary]
    missed = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in allowed)]
    if missed or not targets:
        endings = sorted({name.rpartition(".")[2] for name in allowed})
        raise ValueError(
            f"LoRA targets {missed} match no linear layer of the backbone before its vocabulary projection; "
            f"the layers' names end in {listed(endings, 12)}."
        )
    return [name for name in allowed if any(f".{name}".endswith(f".{target}") for target in targets)]


@torch.no_grad()
def _vocabulary_layers(backbone: Backbone, names: list[str]) -> set[str]:
    """The layers `unembed` runs, found by running it."""
    ran: set[str] = set()
    hooks = [
        backbone.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: ran.add(name)) for name in names
    ]
    first = next(backbone.parameters())
    backbone.unembed(torch.zeros(1, backbone.facts.hidden_size, dtype=first.dtype, device=first.device))
    for hook in hooks:
        hook.remove()
    return ran


def _check_backbone(backbone: Backbone, corrector: Corrector, any_backbone: bool) -> None:
    facts, name = backbone.facts, corrector.name or "a backbone"
    if facts.hidden_size != corrector.hidden_size:
        raise CorrectorError(
            f"This corrector was trained for {name} with hidden size {corrector.hidden_size}; the backbone given has "
            f"{facts.hidden_size}. Load it onto the backbone it was trained for."
        )
    if any_backbone:
        return
    if facts.mask_id != corrector.mask_id:
        raise CorrectorError(
            f"This corrector was trained with mask id {corrector.mask_id}; the backbone given uses {facts.mask_id}. "
            f"Load the backbone with mask_id={corrector.mask_id}, or pass any_backbone=True."
        )
    if (mark := fingerprint(backbone)) != corrector.mark:
        raise CorrectorError(
            f"This corrector was trained for {name} with fingerprint {corrector.mark}; the {type(backbone).__name__} given "
            f"has fingerprint {mark}. Load the backbone it was trained for, or pass any_backbone=True."
        )


def _is_lora(name: str) -> bool:
    return ".lora_" in name


def _is_head(name: str) -> bool:
    return name.startswith("quality_head.")


def _peft_name(name: str) -> str:
    """PEFT stores the one adapter of a folder without its name, under the wrappers it puts around a model."""
    return "base_model.model." + (name.replace(".default.", ".") if _is_lora(name) else name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
