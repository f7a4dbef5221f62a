"""A corpus of functions: sides, copies, licences, and going on after a death."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from wheels import MIT, function, write_packages, write_wheel

from prism.data import function_corpus
from prism.data.function_corpus import FunctionCorpus, FunctionRecipe, FunctionsError, make_functions
from prism.data.functions import Selection, functions_of
from prism.data.packages import find_packages

RECIPE = FunctionRecipe(held_out=0.25)


def made(wheels: Path, folder: Path, recipe: FunctionRecipe = RECIPE, **published: list[str]) -> FunctionCorpus:
    return make_functions(find_packages([wheels]), folder, recipe, published=published)


def names(corpus: FunctionCorpus) -> dict[str, set[str]]:
    return {split: {f.name for f in corpus.functions(split)} for split in corpus.manifest["splits"]}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_packages(tmp_path_factory.mktemp("wheels"), 12, 5)


@pytest.fixture(scope="module")
def corpus(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> FunctionCorpus:
    return made(wheels, tmp_path_factory.mktemp("corpus"))


def test_all_functions_each_package_on_one_side(corpus: FunctionCorpus) -> None:
    assert sum(map(len, names(corpus).values())) == 60
    packages = [{f.package for f in corpus.functions(split)} for split in corpus.manifest["splits"]]
    assert all(packages)
    assert sum(map(len, packages)) == len(set.union(*packages)) == 12
    assert {entry["side"] for entry in corpus.manifest["packages"].values()} == {"train", "validation", "test"}


def test_what_is_read_is_what_was_found(corpus: FunctionCorpus, wheels: Path) -> None:
    [first, *_] = find_packages([wheels])
    [(path, source)] = first.sources()
    expected = [f for f, _ in functions_of(source, first.name, path, Selection())]
    assert [f for split in names(corpus) for f in corpus.functions(split) if f.package == first.name] == expected


def test_licences_go_with_it(corpus: FunctionCorpus) -> None:
    assert (corpus.folder / "licences" / "package3.txt").read_text() == "Copyright the authors of package3\n"
    assert "| package3 | 1.0 | MIT | 5 |" in (corpus.folder / "NOTICE.md").read_text()
    assert corpus.manifest["licences"] == {"MIT": 12}


def test_packages_without_a_permissive_licence_stay_out(tmp_path: Path) -> None:
    write_wheel(tmp_path / "w", "free", {"free.py": function(1)}, MIT)
    write_wheel(tmp_path / "w", "left", {"left.py": function(2)}, "License-Expression: GPL-3.0-only")
    corpus = made(tmp_path / "w", tmp_path / "c")
    assert list(corpus.manifest["packages"]) == ["free"]
    assert corpus.manifest["left_out"] == {"left": {"version": "1.0", "licence": "GPL-3.0-only"}}
    with pytest.raises(FunctionsError, match="None of the 1 packages names a permissive licence"):
        make_functions(
            find_packages([tmp_path / "w" / "left-1.0-py3-none-any.whl"]), tmp_path / "d", RECIPE, published={}
        )


def test_copies_are_dropped_and_the_held_out_one_stays(tmp_path: Path) -> None:
    """Renamed, reworded, or with one more statement at its end."""
    sides = {RECIPE.side(f"p{n}"): f"p{n}" for n in range(40)}
    body = "".join(f"    total += table[{n}] * weight_{n}(x)\n" for n in range(20))
    original = f'def f(x, table):\n    """Weighted."""\n    total = 0\n{body}    return total\n'
    renamed = (
        original.replace("total", "s").replace("def f(x", "def g(y").replace("(x)", "(y)").replace("Weighted", "W.")
    )
    longer = original.replace("    return total", "    print(total)\n    return total")
    write_wheel(tmp_path / "w", sides["train"], {"a.py": original, "b.py": longer, "c.py": function(5)}, MIT)
    write_wheel(tmp_path / "w", sides["test"], {"a.py": renamed}, MIT)
    corpus = made(tmp_path / "w", tmp_path / "c")
    assert [(f.package, f.path) for f in corpus.functions("test")] == [(sides["test"], "a.py")]
    assert [f.path for f in corpus.functions("train")] == ["c.py"]
    assert corpus.manifest["dropped"] == {"published": 0, "equal": 1, "nearly equal": 1}


def test_published_solutions_are_dropped(tmp_path: Path) -> None:
    write_wheel(tmp_path / "w", "p", {"p.py": function(1) + "\n\n" + function(2)}, MIT)
    [(kept, _), (_, form)] = functions_of(function(1) + "\n\n" + function(2), "p", "p.py", Selection())
    corpus = made(tmp_path / "w", tmp_path / "c", tasks=[form])
    assert set.union(*names(corpus).values()) == {kept.name}
    assert corpus.manifest["dropped"]["published"] == 1


def test_undocumented_ones_have_a_file_of_their_own(tmp_path: Path) -> None:
    name = next(f"p{n}" for n in range(40) if RECIPE.side(f"p{n}") == "train")
    bare = "def bare(x):\n    y = x.left + 1\n    return y * x.right\n"
    write_wheel(tmp_path / "w", name, {"p.py": function(1) + "\n\n" + bare}, MIT)
    recipe = FunctionRecipe(Selection(undocumented=True), held_out=0.25)
    assert names(made(tmp_path / "w", tmp_path / "c", recipe))["undocumented"] == {"bare"}


def test_the_files_do_not_depend_on_the_processes_or_on_a_death(
    corpus: FunctionCorpus, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = find_packages([wheels])

    def die(done: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_functions(packages, tmp_path, RECIPE, published={}, workers=2, report=die)
    with pytest.raises(FunctionsError, match="unfinished"):
        FunctionCorpus.load(tmp_path)
    with pytest.raises(FunctionsError, match="was begun with seed=0, not 1"):
        make_functions(packages, tmp_path, FunctionRecipe(held_out=0.25, seed=1), published={})
    again = make_functions(packages, tmp_path, RECIPE, published={}, workers=2)
    assert digests(again.folder) == digests(corpus.folder)
    monkeypatch.setattr(function_corpus, "_begin", lambda *_: pytest.fail("made again"))
    assert make_functions(packages, tmp_path, RECIPE, published={}).manifest == again.manifest


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_damage_is_told(wheels: Path, tmp_path: Path) -> None:
    folder = made(wheels, tmp_path / "c").folder
    with pytest.raises(FunctionsError, match="not empty"):
        made(wheels, tmp_path)
    (folder / "train.jsonl.gz").write_bytes(b"")
    with pytest.raises(FunctionsError, match=r"train\.jsonl\.gz is damaged"):
        list(FunctionCorpus.load(folder).functions("train"))
    assert list(FunctionCorpus.load(folder).functions("test"))  # which is whole
    (folder / "manifest.json").write_text(json.dumps({"format": "prism-tokens", "version": 1}))
    with pytest.raises(FunctionsError, match="not of prism functions"):
        FunctionCorpus.load(folder)
