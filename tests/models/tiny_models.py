"""Real models at toy size, with weights that leave nothing at zero: what every contract of the models room is tested on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import BlockConfig, FinalLayerConfig, HeadConfig, ProjectionConfig
from prism.models.masked_lm import MaskedLM

SIZE = 16
VOCAB = 13
MASK = 4

HEADS: tuple[HeadConfig, ...] = (
    FinalLayerConfig(SIZE, cond_size=6),
    BlockConfig(SIZE, heads=2, cond_size=6, dropout=0.0),
    ProjectionConfig(SIZE),
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
