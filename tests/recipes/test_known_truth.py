from __future__ import annotations

import torch
from stand_ins import tiny_truth

from prism.recipes.known_truth import corpus


def test_a_corpus_does_not_depend_on_its_batches() -> None:
    truth = tiny_truth()
    truth.llama.double()
    heard: list[int] = []
    rows = corpus(truth, 10, 6, seed=4, batch=4, done=heard.append)
    assert rows.dtype == torch.int16
    assert heard == [4, 8, 10]
    assert torch.equal(rows, corpus(truth, 10, 6, seed=4, batch=10))
    assert len(rows.unique(dim=0)) == 10
    assert not torch.equal(rows, corpus(truth, 10, 6, seed=5, batch=10))
