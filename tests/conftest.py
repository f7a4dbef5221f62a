"""Small tensors everywhere: one thread is faster than two, and workers of pytest-xdist do not fight over cores."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / "prism-tests-cache")  # and not the user's own
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Tests that share what their module has made once stay in one worker (`--dist loadgroup`), or it would be made in each.
    They come first, the studies before all, so that the small ones are left for whichever worker is done."""

    def place(item: Any) -> tuple[bool, bool, bool]:
        return (
            item.get_closest_marker("xdist_group") is None,
            item.path.parent.name != "recipes",
            len(item.path.parts) > depth,
        )

    depth = len(Path(__file__).parts)  # tests beside this file are the longest of those that stand alone
    for item in items:
        made = item._fixtureinfo.name2fixturedefs.values()
        if any(fixture.scope == "module" for fixtures in made for fixture in fixtures):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(Path(__file__).parent))))
    items.sort(key=place)
