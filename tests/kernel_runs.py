"""Kernels are tried in processes of their own: whether one is interpreted is decided when it is imported, and Triton reads the
source of its functions, which the shape checks that tests run under would wrap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(script: str, what: str, *, interpreted: bool) -> list[str]:
    """The lines that `script` prints when told to do `what`."""
    pytest.importorskip("triton")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpreted else "0", "PYTHONPATH": path}
    command = [sys.executable, script, what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
