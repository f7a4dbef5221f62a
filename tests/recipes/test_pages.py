"""The pages of studies that are in the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from prism.recipes.reproduce import functions_report, stories_report, wikipedia_report

RESULTS = Path(__file__).resolve().parents[2] / "results"
REPORTS = {
    "text/known-truth": stories_report,
    "text/wikipedia": wikipedia_report,
    "functions/full": functions_report,
    "functions/small": functions_report,
}


@pytest.mark.parametrize(("name", "report"), REPORTS.items())
def test_pages_are_made_from_the_files_beside_them(name: str, report: ModuleType, tmp_path: Path) -> None:
    for path in (RESULTS / name).glob("*.json"):
        shutil.copy(path, tmp_path)
    report.write_report(tmp_path)
    for page in tmp_path.glob("*.md"):
        assert page.read_text(encoding="utf-8") == (RESULTS / name / page.name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_what_people_tell_is_of_files_that_are_there(name: str) -> None:
    told = json.loads((RESULTS / name / "provenance.json").read_text(encoding="utf-8"))
    assert all((RESULTS / name / f"{file}.json").is_file() for file in told.get("by_hand", {}))
    assert all(set(source) == {"what", "which", "licence"} for source in told["sources"])
