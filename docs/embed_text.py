"""Makes the embedded text model from a causal one: see prism/recipes/stories_model.py. Interrupted, the same command goes on.

python docs/embed_text.py --truth stories15M.bin --tokenizer tokenizer.bin --output runs/stories-model --scale full
python docs/embed.py stories runs/stories-model/prism/model
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from prism.data.llama2c import Llama2c
from prism.evaluation.record import Stopwatch
from prism.models.causal import load_llama2c
from prism.recipes.reproduce.workshop import Workshop
from prism.recipes.stories_model import SCALES, StoriesModel


def main(words: Sequence[str] | None = None) -> Path:
    """The folder of the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, required=True, help="a llama2.c checkpoint such as stories15M.bin")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its tokenizer.bin")
    parser.add_argument("--output", type=Path, required=True, help="folder for everything that is made")
    parser.add_argument("--scale", choices=SCALES, default="full", help="full: one H200; tiny: a CPU, and nonsense")
    given = parser.parse_args(words)
    clock = Stopwatch()
    tell = lambda line: print(f"{clock.seconds:6.1f} s {line}", flush=True)  # noqa: E731
    workshop = Workshop(given.output, given.output, tell)
    given.output.mkdir(parents=True, exist_ok=True)
    workshop.begin({"scale": SCALES[given.scale], "truth": given.truth.name})
    truth, language = load_llama2c(given.truth), Llama2c.load(given.tokenizer)
    model = StoriesModel(SCALES[given.scale], workshop, truth, language, workers=os.cpu_count() or 1)
    path = model.tuned()
    chosen = workshop.story(path)["chosen"]
    workshop.tell(f"{path}: {', '.join(f'{name} {value:.4g}' for name, value in chosen.items())}")
    return path


if __name__ == "__main__":
    main()
