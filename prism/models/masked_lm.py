"""Any masked language model of transformers (BERT, RoBERTa, ModernBERT, ESM, …) as a masked diffusion model.

A masked language model is an MDM trained at one noise level; nothing has to change but where its forward pass stops. Hidden
states are what the output embedding sees, and logits are computed only at the rows somebody asks for.
"""

from __future__ import annotations

import copy
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prism.models.backbone import Backbone, Cache, Facts
from prism.models.folder import Folder, ModelError, first_line, listed, no_bars
from prism.state import Hidden, Mask, Tokens


class MaskedLM(Backbone):
    """`model` is an `AutoModelForMaskedLM`, which stays as it is; `mask_id` is needed where its config has no `mask_token_id`.

    LoRA targets are suffixes of its layers' names: ("query", "value") for BERT, ("Wqkv",) for ModernBERT.
    """

    def __init__(self, model: Any, mask_id: int | None = None) -> None:
        super().__init__()
        self.model = model
        projection = model.get_output_embeddings()
        if not isinstance(projection, nn.Linear):
            raise ModelError(f"{type(model).__name__} has no linear output embedding; give an AutoModelForMaskedLM.")
        self._projection = next(name for name, module in model.named_modules() if module is projection)
        mask_id = getattr(model.config, "mask_token_id", None) if mask_id is None else mask_id
        known = model.get_input_embeddings().num_embeddings
        if mask_id is None or not 0 <= mask_id < known:
            why = (
                "This model's config names no mask token"
                if mask_id is None
                else f"mask_id={mask_id} is no id of this model"
            )
            raise ModelError(
                f"{why}; say which of the {known} ids, 0..{known - 1}, is the mask (--mask_id ID, mask_id=ID)."
            )
        pad_id = getattr(model.config, "pad_token_id", None)
        self.facts = Facts(mask_id, projection.out_features, projection.in_features, pad_id=pad_id)
        self.max_length = max_length(model)
        self._check_against_own_logits()

    @staticmethod
    def from_pretrained(
        folder: str | PathLike[str], mask_id: int | None = None, *, dtype: torch.dtype | None = None
    ) -> MaskedLM:
        """A local folder with safetensors (for hub names: `hub.load_backbone`); `mask_id` defaults to the tokenizer's.

        Pickled weights are never opened: load them with transformers and hand the model to `MaskedLM`.
        """
        from safetensors import SafetensorError
        from transformers import AutoModelForMaskedLM

        path = Path(folder)
        Folder(path).json("config.json")
        if not any(path.glob("*.safetensors")):
            raise ModelError(
                f"{path} holds no .safetensors; save the model again with save_pretrained (transformers 5)."
            )
        try:
            with no_bars():
                model, info = AutoModelForMaskedLM.from_pretrained(
                    path,
                    use_safetensors=True,
                    dtype=dtype or "auto",
                    local_files_only=True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be loaded as a masked language model: {first_line(error)}") from error
        misshapen = {name for name, *_ in info["mismatched_keys"]}
        if absent := sorted(info["missing_keys"] | misshapen):  # transformers would go on with random weights
            raise ModelError(
                f"{path} lacks {listed(absent)} in the shape its config.json says; "
                "take a checkpoint that was saved with its masked-language-model head."
            )
        return MaskedLM(model, _mask_id_of_tokenizer(path) if mask_id is None else mask_id)

    @staticmethod
    def outline(folder: str | PathLike[str], mask_id: int | None = None) -> MaskedLM:
        """What `from_pretrained` gives, on the meta device: shapes and types as config.json tells them."""
        from transformers import AutoConfig, AutoModelForMaskedLM

        path = Path(folder)
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            with torch.device("meta"):
                model = AutoModelForMaskedLM.from_config(config, dtype=config.dtype or torch.float32)
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"{path} does not describe a masked language model: {first_line(error)}") from error
        return MaskedLM(model, _mask_id_of_tokenizer(path) if mask_id is None else mask_id)

    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        if cache is not None:
            raise ValueError("A masked language model keeps no cache; leave cache=None.")
        if self.max_length is not None and tokens.shape[1] > self.max_length:
            raise ValueError(
                f"Sequences of {tokens.shape[1]} tokens are too long: this model has {self.max_length} positions."
            )
        if attend is not None and self.facts.pad_id is not None:  # RoBERTa counts positions by what is not padding
            tokens = tokens.masked_fill(~attend, self.facts.pad_id)
        trunk = _without(self.model, self._projection)
        return trunk(
            input_ids=tokens, attention_mask=None if attend is None else attend.long(), return_dict=True
        ).logits

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        logits = self.model.get_output_embeddings()(hidden)
        bias = _bias_beside(self.model, self._projection)
        return logits if bias is None else logits + bias

    @torch.no_grad()
    def _check_against_own_logits(self) -> None:
        """Families whose vocabulary head is more than a linear layer (MobileBERT, encoder-decoders) are refused here, unless
        there are no numbers to tell by."""
        if self.device.type == "meta":
            return
        tokens = torch.full((1, 4), self.facts.mask_id, device=self.device)
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            same = torch.allclose(self.unembed(self(tokens)), self.model(input_ids=tokens, return_dict=True).logits)
        except (AttributeError, RuntimeError) as error:
            raise ModelError(
                f"{type(self.model).__name__} cannot be used: its vocabulary head is not one linear layer "
                f"({first_line(error)})."
            ) from error
        finally:
            for module, training in modes.items():
                module.training = training
        if not same:
            raise ModelError(
                f"{type(self.model).__name__} cannot be used: its vocabulary head is not one linear layer."
            )


def _without(module: nn.Module, projection: str) -> nn.Module:
    """The model with an identity for its output projection: the modules on the way there are copied, all else is shared.

    Made anew for every forward pass, so that the model itself never changes and what happens to it (LoRA, devices, modes)
    is seen.
    """
    first, _, rest = projection.partition(".")
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    if rest:
        child = module._modules[first]
        assert child is not None
        twin._modules[first] = _without(child, rest)
        return twin
    twin._modules[first] = nn.Identity()
    if _bias_beside(module, first) is not None:
        twin.__dict__["bias"] = 0.0  # hides the parameter from the twin alone
    return twin


def _bias_beside(model: nn.Module, projection: str) -> nn.Parameter | None:
    """ESM adds the bias of its vocabulary after the projection instead of in it."""
    if model.get_submodule(projection).bias is not None:
        return None
    return model.get_submodule(projection.rpartition(".")[0])._parameters.get("bias")


def max_length(model: nn.Module) -> int | None:
    """How many learned positions there are to be used; None where positions are relative or rotary."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa starts after the padding
            return module.num_embeddings - reserved
    return None


def _mask_id_of_tokenizer(path: Path) -> int | None:
    # Without these files transformers invents an empty tokenizer, with a mask id of its own.
    if not any((path / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True).mask_token_id
