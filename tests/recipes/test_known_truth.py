from __future__ import annotations

import torch

from prism.models.causal import Causal
from prism.models.llama import Llama, LlamaConfig
from prism.recipes.known_truth import corpus


def test_a_corpus_does_not_depend_on_its_batches() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12, mask_id=0, length=10, hidden_size=16, layers=1, heads=2, kv_heads=2, intermediate_size=16, head_size=8
    )  # fmt: skip
    truth = Causal(Llama(config).double(), start=1)
    heard: list[int] = []
    rows = corpus(truth, 10, 6, seed=4, batch=4, done=heard.append)
    assert rows.dtype == torch.int16
    assert heard == [4, 8, 10]
    assert torch.equal(rows, corpus(truth, 10, 6, seed=4, batch=10))
    assert len(rows.unique(dim=0)) == 10
    assert not torch.equal(rows, corpus(truth, 10, 6, seed=5, batch=10))
