"""A model as it is sampled from: weights cast once, and the DiT's constant condition worked into them.

Without time conditioning adaLN's scale, shift and gate are the same numbers at every step of every run (PRISM and MDLM), so
they belong into the weights they stand beside (`Folded`). The residual stream and the norms stay in float32, as under
autocast in training.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeGuard, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from prism.models.attach import PrismModel, attach
from prism.models.backbone import Backbone, Cache
from prism.models.dit import DiT, DiTBlock, FinalLayer, Places, Rotation, attention, gathered
from prism.models.fused import FusedLlama, can_be_fused, linear, round_rows
from prism.models.heads import BlockHead, FinalLayerHead, QualityHead, Verdict
from prism.models.llama import Llama
from prism.state import SMALL_VOCABULARY, Hidden, Mask, Tokens

Model = Backbone | PrismModel


@torch.no_grad()
def for_sampling(model: Model, dtype: torch.dtype) -> Model:
    """The same predictions from weights of `dtype`: a folded copy of a DiT; a Llama fused, over the memory of the one given;
    any other model cast, and itself where it already has that type."""
    if not isinstance(model, PrismModel) and can_be_fused(model):
        return FusedLlama(cast(Llama, model), dtype).eval()
    if isinstance(model, PrismModel) and can_be_fused(model.backbone):
        fused = FusedLlama(cast(Llama, model.backbone), dtype).eval()
        if model.quality_head is None:
            return fused
        judged = _judging_on(fused, model)
        assert judged.quality_head is not None
        judged.quality_head.to(dtype)
        return judged.eval()
    if isinstance(model, PrismModel) and _folds(model.backbone):
        folded = FoldedDiT(model.backbone, dtype).eval()
        if model.quality_head is None:
            return folded
        judged = _judging_on(folded, model)
        if isinstance(judged.quality_head, BlockHead):
            judged.quality_head = FoldedBlockHead(judged.quality_head, dtype)
        elif isinstance(judged.quality_head, FinalLayerHead):
            judged.quality_head = FoldedFinalLayerHead(judged.quality_head)
        return judged.eval()
    if _folds(model):
        return FoldedDiT(model, dtype).eval()
    if all(weight.dtype == dtype for weight in model.parameters()):
        return model
    return deepcopy(model).to(dtype).eval()


def _judging_on(backbone: Backbone, model: PrismModel) -> PrismModel:
    """A copy of the head of `model` on another backbone."""
    judged = attach(backbone, model.head_config)
    assert judged.quality_head is not None
    assert model.quality_head is not None
    judged.quality_head.load_state_dict(model.quality_head.state_dict())
    judged.calibration = model.calibration
    return judged


def _folds(model: nn.Module) -> TypeGuard[DiT]:
    """LoRA's layers are more than their weights, and a condition that follows the time is no constant."""
    plain = all(type(layer) is nn.Linear for layer in model.modules() if isinstance(layer, nn.Linear))
    lora = any(".lora_" in name for name, _ in model.named_parameters())
    return isinstance(model, DiT) and plain and not lora and not model.config.time_conditioning


class FoldedDiT(Backbone):
    def __init__(self, model: DiT, dtype: torch.dtype) -> None:
        super().__init__()
        self.facts, self.config = model.facts, model.config
        condition = model.constant_condition()
        self.embedding = _kept(model.vocab_embed.embedding.float())
        self.positions = _kept(model.position_embed.embedding.float()) if model.config.learned_positions else None
        self.rotary = deepcopy(model.rotary)
        self.blocks = nn.ModuleList(_FoldedBlock(cast(DiTBlock, block), condition, dtype) for block in model.blocks)
        last = model.output_layer
        shift, scale = last.adaLN_modulation(condition)[0].chunk(2)
        self.norm_scale, self.norm_shift = _kept((last.norm_final.weight * (1 + scale)).float()), _kept(shift.float())
        # what may not be drawn is forbidden by the bias, and rows of logits begin where a GPU likes to read them
        bias = last.linear.bias.index_fill(0, model.forbidden, -torch.inf)
        self.forbidden = model.forbidden[:0]
        weight = last.linear.weight
        whole = (round_rows(weight), round_rows(bias)) if len(bias) > SMALL_VOCABULARY else (weight, bias)
        self.vocabulary = linear(*whole, dtype)

    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        if cache is not None:
            raise ValueError("The DiT keeps no cache; leave cache=None.")
        length = tokens.shape[1]
        x = F.embedding(tokens, self.embedding)
        if self.positions is not None:
            x = x + self.positions[:length]
        for block in self.blocks:
            x = block(x, self.rotary(length), attend)
        return F.layer_norm(x, x.shape[-1:], self.norm_scale, self.norm_shift).to(self.vocabulary.weight.dtype)

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return self.vocabulary(hidden)[..., : self.facts.vocab_size]


class _FoldedBlock(nn.Module):
    def __init__(self, block: DiTBlock, condition: Float[Tensor, "1 c"], dtype: torch.dtype) -> None:
        super().__init__()
        weights = block.folded(condition)
        self.heads = block.heads
        self.qkv = linear(weights.qkv, weights.qkv_bias, dtype)
        self.out = linear(weights.out, None, dtype)
        self.up = linear(weights.up, weights.up_bias, dtype)
        self.down = linear(weights.down, weights.down_bias, dtype)

    def forward(self, x: Float[Tensor, "b l d"], rotation: Rotation, attend: Mask | None) -> Float[Tensor, "b l d"]:
        x = x + self.out(attention(self.qkv(self._norm(x)), self.heads, rotation, attend))
        return x + self.down(gelu_of(self.up, self._norm(x)))

    def _norm(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return F.layer_norm(x, x.shape[-1:]).to(self.qkv.weight.dtype)


class FoldedFinalLayerHead(QualityHead):
    looks_around = False

    def __init__(self, head: FinalLayerHead) -> None:
        super().__init__()
        self.score = _FoldedScore(head.output_layer, head.condition)

    def forward(self, hidden: Hidden, attend: Mask | None = None, places: Places | None = None) -> Verdict:
        return Verdict(self.score(hidden if places is None else gathered(hidden, places)))


class FoldedBlockHead(QualityHead):
    """The block as one of the backbone's."""

    def __init__(self, head: BlockHead, dtype: torch.dtype) -> None:
        super().__init__()
        self.reads_vocabulary = head.reads_vocabulary
        self.rotary = deepcopy(head.rotary)
        self.block = _FoldedBlock(head.block, head.condition, dtype)
        self.score = _FoldedScore(head.output_layer, head.condition)

    def forward(self, hidden: Hidden, attend: Mask | None = None, places: Places | None = None) -> Verdict:
        mixed = self.block(hidden, self.rotary(hidden.shape[1]), attend)
        mixed = mixed if places is None else gathered(mixed, places)
        return Verdict(self.score(mixed), mixed if self.reads_vocabulary else None)


class _FoldedScore(nn.Module):
    """A final layer with one output, in float32: w·(LN(x)·s + t) + b = (w·s)·LN(x) + (w·t + b)."""

    def __init__(self, last: FinalLayer, condition: Float[Tensor, "1 c"]) -> None:
        super().__init__()
        shift, scale = last.adaLN_modulation(condition)[0].float().chunk(2)
        weight = last.linear.weight[0].float()
        self.weight = _kept(weight * last.norm_final.weight * (1 + scale))
        self.bias = _kept(weight @ shift + last.linear.bias[0])

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        normed = F.layer_norm(x.float(), x.shape[-1:])
        return (normed.flatten(0, -2).mv(self.weight) + self.bias).view(x.shape[:-1])  # compiled, one kernel


def gelu_of(linear: nn.Linear, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l e"]:
    """GELU of the linear layer as one operation: on a CPU tanh-GELU by itself takes as long as the matrix product before it,
    on an H200 nearly half as long."""
    if x.is_cuda and x.dtype != torch.float64:  # on a GPU this GELU is tanh's
        flat = torch._addmm_activation(linear.bias, x.flatten(0, -2), linear.weight.T, use_gelu=True)
        return flat.view(*x.shape[:-1], -1)
    plain = torch.compiler.is_compiling()  # which joins the two by itself, and knows no such operation
    if not plain and x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return torch.ops.mkldnn._linear_pointwise(x, linear.weight, linear.bias, "gelu", [], "tanh")
    return F.gelu(linear(x), approximate="tanh")


def _kept(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)
