"""Sampling and training as published code does them: plain PyTorch under autocast, logits of the whole vocabulary at every
position, probabilities and noise in float64, nothing compiled, the host asking the device as it goes.

Not copied from anywhere: the obvious way to write MDLM's and PRISM's Algorithms 1 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prism.models.attach import PrismModel


def sample_steps(
    model: PrismModel, tokens: Tensor, free: Tensor, steps: int, of: int, nucleus: float, eta: float
) -> Tensor:
    """The first `steps` of `of` steps from `tokens`; eta > 0 takes tokens back by the quality head."""
    head = _head(model)
    mask, x, length = model.facts.mask_id, tokens.clone(), int(free.sum(1).max())
    for step in range(steps):
        with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            hidden = model.backbone(x)
            logits = model.backbone.unembed(hidden)
            quality = head(hidden.float()).score if eta > 0 else None
        logits = logits.double()
        logits[..., mask] = -torch.inf
        p = logits.softmax(-1)
        if nucleus < 1:
            ordered, order = p.sort(dim=-1, descending=True)
            keep = ordered.cumsum(-1) <= nucleus
            keep[..., 0] = True
            p = torch.zeros_like(p).scatter(-1, order, ordered * keep)
            p = p / p.sum(-1, keepdim=True)
        gumbel = -torch.log(torch.rand_like(p))
        draft = (p / gumbel).argmax(-1)

        masked = (x == mask) & free
        committed = free & ~masked
        back = 0
        if quality is not None:
            back = int(
                torch.binomial(committed.sum(1).double(), torch.full((len(x),), eta, device=x.device).double()).max()
            )
            back = min(back, int(masked.sum(1).min()), int(committed.sum(1).min()))
        count = max(0, -(-length * (step + 1) // of) - int(committed.sum(1).min())) + back
        chosen = (
            torch.rand(x.shape, dtype=torch.float64, device=x.device)
            .masked_fill(~masked, -1)
            .topk(count, dim=1)
            .indices
        )
        after = x.scatter(1, chosen, draft.gather(1, chosen))
        if quality is not None and back:
            doubtful = quality.float().masked_fill(~committed, torch.inf).topk(back, dim=1, largest=False).indices
            after = after.scatter(1, doubtful, mask)
        x = torch.where(free, after, x)
    return x


def training_loss(model: PrismModel, x: Tensor, k: int, ys: int, regulariser: float, nucleus: float) -> Tensor:
    """PRISM's loss: logits everywhere in both passes, every y in one large second batch."""
    head, mask = _head(model), model.facts.mask_id
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        t = torch.rand(len(x), 1, device=x.device)
        masked = torch.rand(x.shape, device=x.device) < t
        z = x.masked_fill(masked, mask)
        logits = model.backbone.unembed(model.backbone(z)).float()
        logits[..., mask] = -torch.inf
        denoising = (F.cross_entropy(logits.flatten(0, 1), x.flatten(), reduction="none").view_as(z) * masked).sum(1)
        denoising = (denoising / masked.sum(1).clamp_min(1)).mean()
        with torch.no_grad():
            p = logits.double().softmax(-1)
            if nucleus < 1:
                ordered, order = p.sort(dim=-1, descending=True)
                keep = ordered.cumsum(-1) <= nucleus
                keep[..., 0] = True
                p = torch.zeros_like(p).scatter(-1, order, ordered * keep)
            drawn, places_of = [], []
            for _ in range(ys):
                draft = (p / -torch.log(torch.rand_like(p))).argmax(-1)
                places = torch.rand(x.shape, device=x.device).masked_fill(~masked, -1).topk(k, dim=1).indices
                here = torch.zeros_like(masked).scatter(1, places, True) & masked
                drawn.append(torch.where(here, draft, z))
                places_of.append(here)
        y, chosen, x = torch.cat(drawn), torch.cat(places_of), x.repeat(ys, 1)
        hidden = model.backbone(y)
        model.backbone.unembed(hidden)
        quality = head(hidden.float()).score.float()
    right = F.binary_cross_entropy_with_logits(quality, (x == y).float(), reduction="none")
    return (right * chosen).sum() / chosen.sum().clamp_min(1) + regulariser * denoising


def _head(model: PrismModel) -> nn.Module:
    assert model.quality_head is not None
    return model.quality_head
