"""What the bar of a run shows."""

from __future__ import annotations

import pytest

from prism.training.meter import progress_bar, show


def test_the_bar_shows_figures_once_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    """And none where a finished run is resumed, which has nothing left to measure."""
    with progress_bar(2, 2, shown=True):
        pass
    said = capsys.readouterr().out
    assert "2/2" in said
    assert not any(word in said for word in ("loss", "nan", "rows/s"))
    with progress_bar(2, 0, shown=True) as bar:
        show(bar, {"loss": 0.25, "rows_per_second": 1234.0})
    assert "loss 0.2500 · 1,234 rows/s" in capsys.readouterr().out
