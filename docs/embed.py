"""Puts a tuned model, and the tokenizer beside it, into the package, in bfloat16: the one for Sudoku or the one for stories.

python docs/embed.py sudoku runs/sudoku-small/prism/model
python docs/embed.py stories runs/stories-model/prism/model
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from prism.cli.command import ASSETS
from prism.data.writing import TOKENIZER_FILES
from prism.models.attach import PrismModel
from prism.models.hub import load_model, save_model


def embed(source: Path, place: Path) -> int:
    """The bytes of the weights."""
    model = load_model(source, dtype=torch.bfloat16)
    assert isinstance(model, PrismModel)
    assert model.quality_head is not None
    model.quality_head.to(torch.bfloat16)
    shutil.rmtree(place, ignore_errors=True)
    save_model(model, place)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, place)
    return sum(path.stat().st_size for path in place.rglob("*.safetensors"))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("sudoku", "stories"))
    parser.add_argument("model", type=Path, help="the folder it was saved in")
    given = parser.parse_args(words)
    size = embed(given.model, ASSETS / given.name)
    print(f"{size / 1e6:.1f} MB in {ASSETS / given.name}")


if __name__ == "__main__":
    main()
