"""The wheel holds every module and data file, and works from elsewhere."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files git knows (or, before they are added, does not ignore), as a clean checkout would."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, text=True).split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("prism_mdm-*.whl"))


def test_wheel_holds_everything(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "prism").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - packed == set()
    assert [name for name in packed if name.startswith(("tests", "docs", "vendor"))] == []


def test_wheel_works_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
    )
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import prism, prism.cli\n"
        "print(prism.__file__)\n"
        "prism.cli.main(['cite'])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout
    assert "@inproceedings{kim2026prism" in done.stdout
    assert (site / "bin" / "prism").exists()
