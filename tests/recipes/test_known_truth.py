from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stand_ins import tiny_truth

from prism.recipes.known_truth import corpus, write_corpus


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


def write(path: Path, sequences: int = 10, **changed: Any) -> None:
    truth = tiny_truth()
    truth.llama.double()
    options = {"seed": 4, "batch": 4} | changed
    write_corpus(truth, path, {"sequences": sequences, "seed": options["seed"]}, sequences, 6, **options)


@pytest.mark.parametrize("dies_at", [4, 8])
@pytest.mark.parametrize("left_over", [0, 5, -3])
def test_a_corpus_on_disk_goes_on_where_it_stopped(tmp_path: Path, dies_at: int, left_over: int) -> None:
    def die(count: int) -> None:
        if count == dies_at:
            raise KeyboardInterrupt

    write(tmp_path / "whole.npy")
    truth = tiny_truth()
    truth.llama.double()
    assert np.array_equal(np.load(tmp_path / "whole.npy"), corpus(truth, 10, 6, seed=4, batch=4).numpy())
    assert np.load(tmp_path / "whole.npy").dtype == np.int16

    path = tmp_path / "parts.npy"
    with pytest.raises(KeyboardInterrupt):
        write(path, done=die)
    with pytest.raises(ValueError, match=r"reshape|read all data"):
        np.load(path)
    content = path.read_bytes()
    path.write_bytes(content + b"x" * left_over if left_over >= 0 else content[:left_over])
    heard: list[int] = []
    write(path, done=heard.append)
    assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert heard[0] == min(10, (dies_at if left_over >= 0 else dies_at - 1) + 4)
    write(path, done=heard.append)
    assert heard.count(10) == 1  # nothing is written again
    assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_corpus_is_not_written_over_another_file(tmp_path: Path) -> None:
    (tmp_path / "mine.npy").write_text("precious")
    with pytest.raises(ValueError, match="it is another file"):
        write(tmp_path / "mine.npy")
    write(tmp_path / "c.npy")
    with pytest.raises(ValueError, match="begun with seed=4, not 5"):
        write(tmp_path / "c.npy", seed=5)
    with pytest.raises(ValueError, match="begun with sequences=10, not 11"):
        write(tmp_path / "c.npy", 11)
    assert (tmp_path / "mine.npy").read_text() == "precious"
