"""Two models at work: one writes, another, tuned with PRISM on the same distribution, judges (PRISM, Section 4.4, transfer).

Quality is defined by the data and not by the model that wrote the tokens, so a corrector may serve a writer it never saw.
"""

from __future__ import annotations

from torch import nn

from prism.models.attach import PrismModel
from prism.models.backbone import Backbone, Facts
from prism.models.heads import QualityHead
from prism.state import Mask, Prediction, Tokens


class Judged(nn.Module):
    """`writer`'s tokens, `judge`'s quality; two forward passes a prediction."""

    forwards: int = 2

    def __init__(self, writer: Backbone | PrismModel, judge: Backbone | PrismModel) -> None:
        super().__init__()
        if not isinstance(judge, PrismModel) or judge.quality_head is None:
            raise ValueError("The judge has no quality head; give a model tuned with the PRISM loss.")
        if (writer.facts.mask_id, writer.facts.vocab_size) != (judge.facts.mask_id, judge.facts.vocab_size):
            raise ValueError(
                f"Writer and judge must share a vocabulary; the writer has {writer.facts.vocab_size} tokens with mask "
                f"{writer.facts.mask_id}, the judge {judge.facts.vocab_size} with mask {judge.facts.mask_id}."
            )
        self.writer, self.judge = writer, judge

    @property
    def facts(self) -> Facts:
        return self.writer.facts

    @property
    def quality_head(self) -> QualityHead | None:
        return self.judge.quality_head

    def predict(self, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        return self.writer.predict(tokens, attend).judged_by(lambda: self.judge.predict(tokens, attend).quality_logits)
