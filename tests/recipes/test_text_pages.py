"""The pages of the two studies of text that are in the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from prism.recipes.reproduce import stories_report, wikipedia_report

TEXT = Path(__file__).resolve().parents[2] / "results" / "text"
REPORTS = {"known-truth": stories_report, "wikipedia": wikipedia_report}


@pytest.mark.parametrize(("name", "report"), REPORTS.items())
def test_pages_are_made_from_the_files_beside_them(name: str, report: ModuleType, tmp_path: Path) -> None:
    for path in (TEXT / name).glob("*.json"):
        shutil.copy(path, tmp_path)
    report.write_report(tmp_path)
    for page in ("README.md", "samples.md"):
        assert (tmp_path / page).read_text(encoding="utf-8") == (TEXT / name / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_what_people_tell_is_of_files_that_are_there(name: str) -> None:
    told = json.loads((TEXT / name / "provenance.json").read_text(encoding="utf-8"))
    assert all((TEXT / name / f"{file}.json").is_file() for file in told.get("by_hand", {}))
    assert all(set(source) == {"what", "which", "licence"} for source in told["sources"])
