"""prism cite."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.cli.command import Command, console, show_record
from prism.evaluation.record import Stopwatch, plain
from prism.recipes.sampling import Sampling

BIBLIOGRAPHY = Path(__file__).resolve().parent.parent / "papers.bib"


def entries() -> dict[str, str]:
    """BibTeX by key."""
    text = BIBLIOGRAPHY.read_text(encoding="utf-8")
    return {match[1]: match[0].strip() for match in re.finditer(r"@\w+\{([^,]+),.*?\n\}", text, re.DOTALL)}


@dataclass(frozen=True, kw_only=True)
class Cite(Sampling, Command):
    """Print the BibTeX of the methods a sampler is made of."""

    def run(self) -> dict[str, Any]:
        clock, known = Stopwatch(), entries()
        keys = list(dict.fromkeys(("kim2026prism", *self.build_policy().cites)))
        for key in keys:
            console.print(known[key], markup=False, soft_wrap=True)
            console.print()
        record = clock.record("cite", self, seed=self.seed)
        show_record(record, before="% ")  # a comment, should the output become a .bib file
        return {"keys": keys, "bibtex": [known[key] for key in keys], "record": plain(record)}
