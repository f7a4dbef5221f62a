"""Packages nobody published, as wheels."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Mapping
from pathlib import Path

MIT = "License-Expression: MIT"
VERBS = ("add", "keep", "drop", "count", "merge", "rank", "scale", "shift", "group", "split")
NOUNS = ("rows", "items", "names", "prices", "edges", "words", "days", "cells", "paths", "colours")


def write_wheel(folder: Path, name: str, files: Mapping[str, str], *metadata: str, version: str = "1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    header = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *metadata])
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", header + "\n\nA package.\n")
        wheel.writestr(f"{name}-{version}.dist-info/licenses/LICENSE", f"Copyright the authors of {name}\n")
    return path


def function(seed: int) -> str:
    """A function that no other seed gives."""
    draw = random.Random(seed)
    verb, noun, numbers = draw.choice(VERBS), draw.choice(NOUNS), [draw.randrange(100_000) for _ in range(4)]
    return (
        f"def {verb}_{noun}_{seed}({noun}, limit={numbers[0]}):\n"
        f'    """{verb.capitalize()} the {noun} up to {numbers[0]}."""\n'
        f"    found = [item * {numbers[1]} for item in {noun} if item.{verb} < limit]\n"
        f"    if len(found) > {numbers[2]}:\n"
        f"        return found[:{numbers[3]}]\n"
        f"    return math.{draw.choice(('sqrt', 'floor', 'ceil'))}(sum(found))\n"
    )


def write_packages(folder: Path, count: int, functions: int) -> Path:
    """Wheels full of functions that differ."""
    for number in range(count):
        texts = [function(number * functions + each) for each in range(functions)]
        write_wheel(
            folder, f"package{number}", {f"package{number}/__init__.py": "import math\n\n\n" + "\n\n".join(texts)}, MIT
        )
    return folder
