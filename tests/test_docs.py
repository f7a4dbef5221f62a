"""The snippets of README and docs run, every public name is documented, every method has its line."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import prism
from prism.cli.cite import entries

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": page.stem}
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec", dont_inherit=True), scope)


def test_tables_are_those_of_the_results() -> None:
    """After a new measurement: python docs/tables.py"""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tables.filled(readme, ROOT / "results") == readme


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
