"""Tiny models on disk for the command line to work with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prism.models.attach import attach
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import FinalLayerConfig
from prism.models.hub import save_backbone, save_model

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


def tiny(vocab_size: int = 11, length: int = 89) -> DiT:
    torch.manual_seed(0)
    mask_id = 0 if vocab_size == 11 else vocab_size - 1
    model = DiT(DiTConfig(vocab_size, mask_id, length, hidden_size=16, blocks=1, heads=2, cond_size=8, dropout=0.0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sudoku` (with a head), `plain` (no head), `words` (another vocabulary), `broken` (truncated weights)."""
    root = tmp_path_factory.mktemp("models")
    save_model(attach(tiny(), FinalLayerConfig(16, cond_size=8), tune_backbone=True), root / "sudoku")
    save_backbone(tiny(), root / "plain")
    save_model(attach(tiny(7, 12), FinalLayerConfig(16, cond_size=8), tune_backbone=True), root / "words")
    save_backbone(tiny(), root / "broken")
    weights = root / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return root


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Good and bad inputs."""
    (tmp_path / "puzzles.txt").write_text(f"{PUZZLE}\n{PUZZLE.replace('.', '0')}\n")
    (tmp_path / "short.txt").write_text(f"{PUZZLE}\n{PUZZLE[:-1]}\n")
    (tmp_path / "letter.txt").write_text(PUZZLE.replace("5", "x", 1) + "\n")
    (tmp_path / "clash.txt").write_text("55" + PUZZLE[2:] + "\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.txt").write_bytes(bytes(range(256)))
    (tmp_path / "bad.yaml").write_text("steps: [")
    (tmp_path / "unknown.yaml").write_text("stpes: 3\n")
    np.save(tmp_path / "rows.npy", np.tile(np.arange(6), (40, 2)))
    np.save(tmp_path / "floats.npy", np.zeros((4, 4)))
    np.save(tmp_path / "flat.npy", np.arange(5))
    np.save(tmp_path / "large.npy", np.full((40, 12), 99))
    np.save(tmp_path / "none.npy", np.zeros((0, 12), dtype=int))
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "objects.npy", np.array([[None]]), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(
        (tmp_path / "rows.npy").read_bytes()[:-50]
    )  # as prism corpus leaves it when killed
    (tmp_path / "begun.npy").write_bytes(b"")
    for name in ("cut", "begun"):
        (tmp_path / f"{name}.npy.settings.json").write_text("{}")
    (tmp_path / "good.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "list.json").write_text('[\n  {"prompt": "a", "completion": "b"}\n]\n')
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "begun" / "training").mkdir(parents=True)
    (tmp_path / "begun" / "training" / "log.jsonl").write_text("")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.json").write_text('{"h": 0, "e": 1, "l": 2, "o": 3, "<|endoftext|>": 4}')
    (tmp_path / "words" / "merges.txt").write_text("")
    return tmp_path
