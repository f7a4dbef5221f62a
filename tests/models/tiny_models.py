"""Real models at toy size, with weights that leave nothing at zero: what every contract of the models room is tested on."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import BlockConfig, FinalLayerConfig, HeadConfig, OddsConfig, ProjectionConfig
from prism.models.masked_lm import MaskedLM

SIZE = 16
VOCAB = 13
MASK = 4

HEADS: tuple[HeadConfig, ...] = (
    FinalLayerConfig(SIZE, cond_size=6),
    BlockConfig(SIZE, heads=2, cond_size=6, dropout=0.0),
    ProjectionConfig(SIZE),
    OddsConfig(SIZE, heads=2, cond_size=6, dropout=0.0),
)


def shaken(module: nn.Module, seed: int = 0, scale: float = 0.2) -> nn.Module:
    """Every parameter moved at random, the zero-initialised ones too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data += scale * torch.randn(parameter.shape, generator=generator)
    return module


def dit(**settings: object) -> Backbone:
    defaults = {"vocab_size": VOCAB, "mask_id": MASK, "length": 12, "hidden_size": SIZE, "blocks": 2, "heads": 2}
    torch.manual_seed(0)
    return shaken(DiT(DiTConfig(**{**defaults, "cond_size": 6, "dropout": 0.0, **settings}))).eval()


def write_mdlm(folder: Path, **settings: object) -> Path:
    """A checkpoint with the files, config fields and weight names of kuleshov-group/mdlm-owt, its rotary buffer included."""
    model = dit(**settings)
    assert isinstance(model, DiT)
    size = model.config
    config = {
        "architectures": ["MDLM"],
        "auto_map": {"AutoConfig": "configuration_mdlm.MDLMConfig", "AutoModelForMaskedLM": "modeling_mdlm.MDLM"},
        "cond_dim": size.cond_size,
        "dropout": 0.1,
        "hidden_dim": size.hidden_size,
        "model_length": size.length,
        "model_type": "mdlm",
        "n_blocks": size.blocks,
        "n_heads": size.heads,
        "return_dict": False,
        "time_conditioning": False,
        "torch_dtype": "float32",
        "transformers_version": "4.38.2",
        "vocab_size": size.vocab_size,
    }
    weights = {f"backbone.{name}": value for name, value in model.state_dict().items()}
    weights["backbone.rotary_emb.inv_freq"] = 10_000 ** (-torch.arange(0, 8, 2) / 8)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _masked_lm(model_type: str, **settings: object) -> Backbone:
    from transformers import AutoConfig, AutoModelForMaskedLM

    common = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **settings}
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **common))
    return MaskedLM(shaken(model).eval(), mask_id=MASK)


def _bert_like(model_type: str) -> Backbone:
    return _masked_lm(
        model_type,
        hidden_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=14,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def bert() -> Backbone:
    return _bert_like("bert")


def roberta() -> Backbone:
    return _bert_like("roberta")


def modernbert() -> Backbone:
    return _masked_lm(
        "modernbert",
        hidden_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        local_attention=4,
        global_attn_every_n_layers=2,
        cls_token_id=1,
        sep_token_id=2,
    )


def distilbert() -> Backbone:
    return _masked_lm(
        "distilbert", dim=SIZE, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=14, dropout=0.0
    )


def esm() -> Backbone:
    """Adds the bias of its vocabulary beside the projection."""
    return _bert_like("esm")


def electra() -> Backbone:
    """Embeddings narrower than the hidden states."""
    return _masked_lm(
        "electra", embedding_size=8, hidden_size=SIZE, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )


BACKBONES: dict[str, tuple[Callable[[], Backbone], tuple[str, ...]]] = {
    "dit": (dit, ("attn_qkv", "mlp.0")),
    "bert": (bert, ("query", "value")),
    "roberta": (roberta, ("attention.self.query", "dense")),
    "modernbert": (modernbert, ("Wqkv",)),
}
"""How to make one, and where LoRA goes."""


def tokens(rows: int = 3, length: int = 10, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, VOCAB, (rows, length), generator=generator)


def padding(lengths: list[int], length: int = 10) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]
