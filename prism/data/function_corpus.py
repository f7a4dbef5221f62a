"""A corpus of functions on disk, made from packages: licences minded, copies dropped, packages kept on one side each.

    train.jsonl.gz validation.jsonl.gz test.jsonl.gz   a function a line: text, how much of it is the prompt, where it is from
    undocumented.jsonl.gz                              if asked for: functions of the training packages that have no docstring
    manifest.json                                      packages, versions and licences; what was left out; counts, sha256 sums
    NOTICE.md, licences/                               whose work it is, and the texts that must go with it

A package's side is decided by a hash of its name. Of functions that are equal or nearly equal one is kept, those of the test
packages first, so that nothing that is judged by has a copy among what is learnt from.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, UInt32, UInt64

from prism.data.duplicates import Known, sketch
from prism.data.functions import Function, Selection, functions_of
from prism.data.packages import Package, open_package
from prism.data.processes import helpers
from prism.models.folder import Folder, write_whole

FORMAT, VERSION = "prism-functions", 1
MANIFEST, PARTS = "manifest.json", ".parts"
SIDES = ("test", "validation", "train")
UNDOCUMENTED = "undocumented"
Result = TypeVar("Result")


class FunctionsError(ValueError):
    """A folder of functions that cannot be read or made: what, why, and how to mend it."""


@dataclass(frozen=True)
class FunctionRecipe:
    selection: Selection = field(default_factory=Selection)
    held_out: float = 0.04
    """The share of packages whose functions are for testing, and the share for validation."""
    similarity: float = 0.8
    """From this share of common shingles on, two functions are nearly equal."""
    seed: int = 0
    """Of the choice of packages to hold out."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 0.5:
            raise ValueError(
                f"held_out={self.held_out}: the share of packages on each held-out side must lie in [0, 0.5)."
            )

    def side(self, package: str) -> str:
        digest = hashlib.blake2b(f"{self.seed} {package}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "little") / (1 << 64)
        return "test" if place < self.held_out else "validation" if place < 2 * self.held_out else "train"


@dataclass(frozen=True)
class FunctionCorpus:
    """A finished folder of functions."""

    folder: Path
    manifest: Mapping[str, Any]

    @staticmethod
    def load(folder: Path) -> FunctionCorpus:
        if (folder / PARTS).exists() and not (folder / MANIFEST).exists():
            raise FunctionsError(f"{folder} is unfinished; repeat the prism functions that began it.")
        manifest = Folder(folder, FunctionsError).json(MANIFEST)
        if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
            raise FunctionsError(
                f"{folder / MANIFEST} is not of prism functions, version {VERSION}; name another folder."
            )
        return FunctionCorpus(folder, manifest)

    def functions(self, split: str) -> Iterator[Function]:
        """Read from its file, which is checked first; a machine that only trains on the tokens needs none of these files."""
        if split not in self.manifest["splits"]:
            raise FunctionsError(
                f"{self.folder} has no {split!r} functions; it has {', '.join(self.manifest['splits'])}."
            )
        about = self.manifest["splits"][split]
        path = Folder(self.folder, FunctionsError).file(about["file"])
        if _sum(path) != about["sha256"]:
            raise FunctionsError(f"{path} is damaged: its sha256 differs; copy it again.")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(_read, file)


def make_functions(
    packages: Sequence[Package],
    folder: Path,
    recipe: FunctionRecipe,
    *,
    published: Mapping[str, Sequence[str]],
    workers: int = 1,
    report: Callable[[int], object] = lambda done: None,
) -> FunctionCorpus:
    """The corpus of all packages whose licence is permissive, without the `published` normal forms, given by the name of their
    set. Killed, the same call goes on where it was; `report` hears how many packages are read."""
    settings = json.loads(json.dumps({**asdict(recipe), "published": {name: len(f) for name, f in published.items()}}))
    if (folder / MANIFEST).exists():
        corpus = FunctionCorpus.load(folder)
        _refuse_another(folder, corpus.manifest["recipe"], settings)
        return corpus
    usable = [package for package in packages if package.licence.permissive]
    if not usable:
        raise FunctionsError(f"None of the {len(packages)} packages names a permissive licence; give others.")
    parts = _begin(folder, settings)
    usable.sort(key=lambda package: (SIDES.index(recipe.side(package.name)), package.name))
    files = [parts / f"{package.name}.jsonl.gz" for package in usable]
    extract = partial(_extract, selection=recipe.selection)
    for done, _ in enumerate(_each(extract, [package.path for package in usable], files, workers=workers), start=1):
        report(done)
    sketched = list(_each(_sketches, files, workers=workers))
    kept, dropped = _decide(sketched, published, recipe.similarity)
    splits, counts = _write(folder, parts, usable, kept, recipe)
    about = {
        package.name: {**package.describe(), "side": recipe.side(package.name), "functions": counts[package.name]}
        for package in usable
    }
    left_out = {p.name: {"version": p.version, "licence": str(p.licence)} for p in packages if not p.licence.permissive}
    _write_notice(folder, usable, counts)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": settings,
        "splits": splits,
        "found": sum(len(part.keys) for part in sketched),
        "dropped": dropped,
        "licences": dict(Counter(entry["licence"] for entry in about.values()).most_common()),
        "packages": about,
        "left_out": left_out,
    }
    write_whole(folder / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    shutil.rmtree(parts)
    return FunctionCorpus.load(folder)


def _begin(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder of what is known of each package so far."""
    parts = folder / PARTS
    if not parts.exists() and folder.exists() and any(folder.iterdir()):
        raise FunctionsError(f"{folder} is not empty and holds no functions; choose another folder.")
    parts.mkdir(parents=True, exist_ok=True)
    if (parts / "recipe.json").exists():
        _refuse_another(folder, Folder(parts, FunctionsError).json("recipe.json"), settings)
    write_whole(parts / "recipe.json", json.dumps(settings))
    return parts


def _refuse_another(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if before[name] != value:
            raise FunctionsError(f"{folder} was begun with {name}={before[name]}, not {value}; choose another folder.")


def _each(work: Callable[..., Result], *arguments: Sequence[Path], workers: int) -> Iterator[Result]:
    """`map`, by several processes if there are to be several."""
    if workers == 1:
        yield from map(work, *arguments)
    else:
        with helpers(workers, __name__) as pool:
            yield from pool.map(work, *arguments)


# ── one package ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sketched:
    """The functions of a package, told apart."""

    keys: UInt64[np.ndarray, " n"]
    """Equal for equal normal forms."""
    sketches: UInt32[np.ndarray, "n orders"]
    documented: Bool[np.ndarray, " n"]


def _extract(path: Path, part: Path, selection: Selection) -> None:
    """All functions of a package with their normal forms, in a file of its own."""
    if part.exists():
        return
    package = open_package(path)
    assert package is not None
    partial = part.with_name(f".{part.name}")
    with _gzipped(partial) as file:
        for source_path, source in package.sources():
            for function, form in functions_of(source, package.name, source_path, selection):
                file.write(json.dumps({**_row(function), "form": form}) + "\n")
    partial.replace(part)


def _sketches(part: Path) -> Sketched:
    with gzip.open(part, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    forms = [row["form"] for row in rows]
    sketches = np.stack([sketch(form) for form in forms]) if forms else np.zeros((0, len(sketch(""))), np.uint32)
    return Sketched(
        np.array([_key(form) for form in forms], np.uint64),
        sketches,
        np.array([row["documented"] for row in rows], bool),
    )


def _key(form: str) -> int:
    return int.from_bytes(hashlib.blake2b(form.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _row(function: Function) -> dict[str, Any]:
    fields = asdict(function)
    prompt, body = fields.pop("prompt"), fields.pop("body")
    return {**fields, "text": prompt + body, "prompt": len(prompt)}


def _read(line: str) -> Function:
    row = json.loads(line)
    text, end = row.pop("text"), row.pop("prompt")
    return Function(**{**row, "unknown": tuple(row["unknown"])}, prompt=text[:end], body=text[end:])


# ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _decide(
    sketched: Sequence[Sketched], published: Mapping[str, Sequence[str]], similarity: float
) -> tuple[list[Bool[np.ndarray, " _"]], dict[str, int]]:
    """Which functions of each package stay, the packages in the order of their right to stay, and why how many go."""
    forms = [form for set_of_forms in published.values() for form in set_of_forms]
    solutions, known = Known(similarity), Known(similarity)
    solved, seen = {_key(form) for form in forms}, set()  # type: tuple[set[int], set[int]]
    for form in forms:
        solutions.add(sketch(form))
    kept = [np.zeros(len(part.keys), bool) for part in sketched]
    dropped = {"published": 0, "equal": 0, "nearly equal": 0}
    for documented in (True, False):
        for part, stays in zip(sketched, kept, strict=True):
            for number in np.flatnonzero(part.documented == documented):
                key, drawn = int(part.keys[number]), part.sketches[number]
                if key in seen:
                    dropped["equal"] += 1
                elif key in solved or solutions.nearest(drawn) is not None:
                    dropped["published"] += 1
                elif known.nearest(drawn) is not None:
                    dropped["nearly equal"] += 1
                else:
                    seen.add(key)
                    known.add(drawn)
                    stays[number] = True
    return kept, dropped


def _write(
    folder: Path,
    parts: Path,
    packages: Sequence[Package],
    kept: Sequence[Bool[np.ndarray, " _"]],
    recipe: FunctionRecipe,
) -> tuple[dict[str, Any], dict[str, int]]:
    names = (*SIDES, UNDOCUMENTED) if recipe.selection.undocumented else SIDES
    files = {name: _gzipped(folder / f".{name}.jsonl.gz") for name in names}
    functions, characters, counts = Counter[str](), Counter[str](), Counter[str]()
    for package, stays in zip(packages, kept, strict=True):
        with gzip.open(parts / f"{package.name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for row in (json.loads(line) for line, stay in zip(lines, stays, strict=True) if stay):
                split = recipe.side(package.name) if row["documented"] else UNDOCUMENTED
                if split == UNDOCUMENTED and recipe.side(package.name) != "train":
                    continue
                del row["form"]
                files[split].write(json.dumps(row) + "\n")
                functions[split] += 1
                characters[split] += len(row["text"])
                counts[package.name] += 1
    splits = {}
    for name, file in files.items():
        file.close()
        final = (folder / f".{name}.jsonl.gz").rename(folder / f"{name}.jsonl.gz")
        about = {"functions": functions[name], "characters": characters[name]}
        splits[name] = {**about, "file": final.name, "sha256": _sum(final)}
    return splits, {package.name: counts[package.name] for package in packages}


def _write_notice(folder: Path, packages: Sequence[Package], counts: Mapping[str, int]) -> None:
    """Whose work the functions are."""
    (folder / "licences").mkdir(exist_ok=True)
    lines = [
        "# Where these functions come from",
        "",
        "Each function is the work of the authors of its package and comes under that package's licence, as its metadata",
        "states it; the texts and notices that came with the packages are in `licences/`.",
        "",
        "| package | version | licence | functions |",
        "|---|---|---|---|",
    ]
    for package in sorted(packages, key=lambda package: package.name):
        if counts[package.name]:
            (folder / "licences" / f"{package.name}.txt").write_text(package.terms(), encoding="utf-8")
            lines.append(f"| {package.name} | {package.version} | {package.licence} | {counts[package.name]:,} |")
    write_whole(folder / "NOTICE.md", "\n".join(lines) + "\n")


def _gzipped(path: Path) -> TextIOWrapper:
    """To write text to; equal texts give equal files."""
    return TextIOWrapper(gzip.GzipFile(path, "wb", 6, mtime=0), encoding="utf-8")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
