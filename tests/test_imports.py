"""Imports point one way, and importing the package stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import prism

PACKAGE = Path(prism.__file__).parent
LINE = (
    {"version", "noise_kernel", "vocabulary", "vocabulary_kernel"},
    {"state"},
    {"noise", "recording"},
    {"schedule"},
    {"models", "sampling"},
    {"losses"},
    {"training", "evaluation", "data", "writer"},
    {"recipes", "cli", "server", "__main__"},
)
RANK = {room: rank for rank, rooms in enumerate(LINE) for room in rooms}
STRANGERS = {"models", "sampling"}  # side by side, and neither knows the other
EXTRAS = (
    "matplotlib",
    "datasets",
    "pyflakes",
    "backports.zstd",
    "bitsandbytes",
    "mauve",
    "fastapi",
    "uvicorn",
    "tensorboard",
    "wandb",
    "beartype",
    "hypothesis",
    "scipy",
    "lm_eval",
)
NEEDS_LM_EVAL = ("evaluation/harness.py", "cli/plugin.py")  # loaded by lm-eval, or once a command asks for it
LAZY = ("transformers", "peft", "accelerate", "matplotlib", "jsonargparse")


def imported(tree: ast.Module) -> set[str]:
    """The modules of this package that a file names, wherever in the file."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name for name in names if name.split(".")[0] == "prism"}


def test_imports_point_backwards() -> None:
    """state → noise → schedule → {models, sampling} → losses → {training, evaluation, data, writer} → {recipes, cli}."""
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in RANK, f"{file} is in no room of the line; give it a place in tests/test_imports.py"
        for name in imported(ast.parse(file.read_text())):
            other = name.split(".")[1] if "." in name else ""
            rank = RANK.get(other, len(LINE) - 1)  # the package itself holds everything, so only the last rooms may
            assert rank <= RANK[room], f"{file} imports {name}"
            assert {room, other} != STRANGERS, f"{file} imports {name}"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_pulls_in_nothing_heavy() -> None:
    loaded = run(f"import sys, prism; print([name for name in {LAZY + EXTRAS} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_every_module_imports_without_the_extras() -> None:
    modules = [
        ".".join(["prism", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        for file in PACKAGE.rglob("*.py")
        if file.name != "__main__.py" and "server" not in file.parts and not str(file).endswith(NEEDS_LM_EVAL)
    ]
    run(
        f"import sys, importlib\nfor extra in {EXTRAS}: sys.modules[extra] = None\n"
        f"for module in {sorted(modules)}: importlib.import_module(module)"
    )
