"""A tokenizer that is made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from texts import write_tokenizer

from prism.data.text import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Any:
    return load_tokenizer(tokenizer_folder)
