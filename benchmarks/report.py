"""The measurements to read and to look at, from the JSON files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prism.recipes.reproduce.report import table


def write_report(results: Path) -> Path:
    """`results/README.md` and `results/growth.svg`."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    record = next((result["record"] for result in found.values()), {})
    parts = [
        "# Speed: results\n\nMade by `python -m benchmarks` from the JSON files beside this page, random weights, "
        f"{record.get('device', '?')}, {record.get('dtype', '?')}, torch {record.get('versions', {}).get('torch', '?')}. "
        "“Published” is the obvious way to write the published algorithms (`benchmarks/published.py`), the bare forward pass "
        "the backbone alone, as fast as we can make it.",
        sampling_table(found),
        training_table(found),
        _growth(found, results),
    ]
    page = results / "README.md"
    page.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return page


def sampling_table(found: dict[str, Any]) -> str:
    rows = [
        [
            result["case"]["name"],
            _ms(result, "bare forward"),
            _ms(result, "vanilla"),
            _ms(result, "prism"),
            f"{result['over_bare']['prism']:.2f}",
            f"{100 * (result['prism_over_vanilla'] - 1):+.1f} %",
            f"{100 * (result['block_head_over_vanilla'] - 1):+.1f} %",
            _ms(result, "published prism"),
            f"{result['published_over_ours']:.1f}",
        ]
        for name, result in found.items()
        if name.startswith("sampling")
    ]
    headings = [
        "sampling, ms a step",
        "bare forward",
        "vanilla",
        "PRISM",
        "over bare",
        "over vanilla",
        "with the block head",
        "published",
        "times ours",
    ]
    return table(headings, rows) if rows else ""


def training_table(found: dict[str, Any]) -> str:
    rows = [
        [
            result["case"]["name"],
            _ms(result, "ours"),
            _gib(result, "ours"),
            _ms(result, "published"),
            _gib(result, "published"),
            f"{result['published_over_ours']:.1f}",
        ]
        for name, result in found.items()
        if name.startswith("training")
    ]
    headings = ["PRISM training step", "ours, ms", "GiB", "published, ms", "GiB", "times ours"]
    return table(headings, rows) if rows else ""


def _growth(found: dict[str, Any], results: Path) -> str:
    if "growth" not in found:
        return ""
    from matplotlib.figure import Figure

    axes_of = {axis: points for axis, points in found["growth"].items() if axis != "record"}
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for place, (axis, points) in zip(figure.subplots(1, len(axes_of)), axes_of.items(), strict=True):
        for name, style in (("bare forward", "k--"), ("prism", "r-o"), ("prism, margin order", "b-o")):
            place.loglog(
                [point["value"] for point in points], [point[name] for point in points], style, label=name, ms=3
            )
        place.set_xlabel(axis)
    figure.axes[0].set_ylabel("ms a step")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(results / "growth.svg", metadata={"Date": None})
    return (
        "## Growth\n\nTime of a step against batch, length and vocabulary (recorded, not compiled). With a random order only "
        "the rows that are written see the vocabulary; by margin every row does.\n\n![growth](growth.svg)"
    )


def _ms(result: dict[str, Any], name: str) -> str:
    return f"{result['milliseconds_per_step'][name]:.2f}" if name in result["milliseconds_per_step"] else "–"


def _gib(result: dict[str, Any], name: str) -> str:
    value = result["gib"].get(name)
    return "–" if value is None else f"{value:.1f}"
