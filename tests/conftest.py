"""Small tensors everywhere: one thread is faster than two, and workers of pytest-xdist do not fight over cores."""

import os
import tempfile
from pathlib import Path

import torch

os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / "prism-tests-cache")  # and not the user's own
torch.set_num_threads(1)
