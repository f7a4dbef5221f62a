"""The benchmarks run where there is no GPU, and the fast path is the faster one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_in_miniature(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--small", "--case", "text, 1", "--only", "sampling,training"]
    done = subprocess.run([*command, "--output", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    sampling = json.loads((tmp_path / "sampling_text_16_sequences.json").read_text())
    assert sampling["published_over_ours"] > 1
    assert json.loads((tmp_path / "training_text_16_sequences.json").read_text())["published_over_ours"] > 1
    page = (tmp_path / "README.md").read_text()
    assert f"{sampling['milliseconds_per_step']['prism']:.2f}" in page


def test_a_wrong_part_is_named() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "singing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "singing" in done.stderr
