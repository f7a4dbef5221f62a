"""Puts a tuned Sudoku model into the package, in bfloat16. Run: python docs/embed.py runs/sudoku-small/prism/model"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from prism.cli.command import EMBEDDED
from prism.models.attach import PrismModel
from prism.models.hub import load_model, save_model

model = load_model(sys.argv[1], dtype=torch.bfloat16)
assert isinstance(model, PrismModel)
assert model.quality_head is not None
model.quality_head.to(torch.bfloat16)
shutil.rmtree(EMBEDDED)
save_model(model, EMBEDDED)
size = sum(path.stat().st_size for path in Path(EMBEDDED).rglob("*.safetensors"))
print(f"{size / 1e6:.1f} MB in {EMBEDDED}")
