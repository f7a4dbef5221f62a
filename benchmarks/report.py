"""The measurements to read and to look at, from the JSON files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prism.recipes.reproduce.report import table


def write_report(results: Path) -> Path:
    """`results/README.md` and `results/growth.svg`."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    record: dict[str, Any] = next((result["record"] for result in found.values()), {})
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


def write_llada_report(results: Path) -> Path:
    """`results/README.md` about a model of LLaDA-8B's size, from what was measured of it."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    parts = [
        "# LLaDA at full size: results\n\nRandom weights write nonsense: these figures are about time and memory alone.",
        *(_full_size(found["full_size"]) if "chip" in found.get("full_size", {}) else []),  # may have been cut off
        *(_recorded(found["recorded"]) if "recorded" in found else []),
    ]
    page = results / "README.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _about_large(found: dict[str, Any], part: str) -> str:
    record = found["record"]
    return (
        f"Made by `python -m benchmarks --only {part}`: {found['parameters'] / 1e9:.2f}B weights, {record['device']}, "
        f"{record['dtype']}, torch {record['versions'].get('torch', '?')}, on {record['date'][:10]} with commit "
        f"{(record['commit'] or '?')[:7]}. What is measured and how stands in `benchmarks/{part}.py` of that commit."
    )


def _full_size(found: dict[str, Any]) -> list[str]:
    size, checkpoint = found["size"], found["checkpoint"]
    chip = next(iter(found["chip"].values()))
    step = (
        f"{size['rows']} sequences of {size['length']} tokens; LoRA of rank {size['rank']} and the head learn. The chip "
        f"multiplies matrices of {size['square']} at {chip:.4g} TFLOP/s; asked for are 45 % of that, below 80 GiB."
    )
    text = (
        f"{size['new_tokens']} tokens in blocks of {size['block']}, one token a step; {size['blocks']} blocks in the middle "
        "are timed, with what a cache computes when they begin. Asked for: the dual cache 4 times as fast as none with 1 "
        "sequence, 12 times with 8."
    )
    files = [
        ["checkpoint written, shard by shard", f"{checkpoint['seconds']:.1f}", _gb(checkpoint)],
        [f"loaded, from {found['loading']['from']}", f"{found['loading']['seconds']:.1f}", _gb(checkpoint)],
        *_adapter_rows(found.get("adapter", {})),
    ]
    return [
        _about_large(found, "llada"),
        table(["", "seconds", "GB"], files),
        f"## One PRISM step\n\n{step}",
        table(["way", "seconds a step", "TFLOP/s", "of the chip's", "GiB"], _training_rows(found, chip)),
        f"## Writing\n\n{text}",
        table(["sequences", "way", "ms a step", "tokens/s", "times as fast as none", "GiB"], _writing_rows(found)),
    ]


def _recorded(found: dict[str, Any]) -> list[str]:
    size, texts = found["size"], found["texts"]
    ways = list(dict.fromkeys(way for caches in texts.values() for case in caches.values() for way in case["ways"]))
    about = (
        f"The last tokens of texts of {size['prompt'] + size['new_tokens']}, in blocks of {size['block']}, one token a step, "
        "by a `Writer` as `prism sample` and `prism evaluate code` build it, once each way; tokens a second, in brackets how "
        "many times as many as step by step without a cache. The recording is counted, compiling is not."
    )
    headings = ["texts at once", "cache", "tokens written", *ways, "same tokens as step by step, %"]
    rows = []
    for count, caches in texts.items():
        slowest = next(iter(next(iter(caches.values()))["ways"].values())).get("tokens_per_second")
        for cache, case in caches.items():
            tried = [case["ways"][way] for way in ways if way in case["ways"]]  # a run may be cut off
            same = ", ".join(f"{100 * way['same_tokens']:.1f}" for way in tried[1:] if "same_tokens" in way)
            paces = [_pace(way, slowest) for way in tried] + [""] * (len(ways) - len(tried))
            rows.append([count, cache, case["tokens"], *paces, same])
    return [
        f"## With and without `--recorded`\n\n{_about_large(found, 'recorded')}\n\n{about}",
        table(headings, rows),
    ]


def _pace(way: dict[str, Any], slowest: float | None) -> str:
    if "failed" in way:
        return str(way["failed"])
    pace = way["tokens_per_second"]
    return f"{pace:.1f}" if slowest is None else f"{pace:.1f} ({pace / slowest:.1f})"


def _training_rows(found: dict[str, Any], chip: float) -> list[list[str]]:
    rows = []
    for name, way in found.get("training", {}).items():
        if "failed" in way:
            rows.append([name, way["failed"], "", "", ""])
            continue
        pace = way["tflops"]
        rows.append(
            [name, f"{way['seconds_per_step']:.3f}", f"{pace:.4g}", f"{100 * pace / chip:.0f} %", _peak(way)],
        )
    return rows


def _adapter_rows(adapter: dict[str, Any]) -> list[list[str]]:
    if "same_quality" not in adapter:
        return []
    then = "the same quality to the last bit" if adapter["same_quality"] else "ANOTHER quality"
    return [
        ["adapter saved", f"{adapter['saving_seconds']:.1f}", _gb(adapter)],
        [f"adapter loaded: {then}", f"{adapter['loading_seconds']:.1f}", _gb(adapter)],
    ]


def _writing_rows(found: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = []
    for count, cases in found.get("writing", {}).items():
        plain = next(iter(cases.values())).get("tokens_per_second")
        for name, case in cases.items():
            if name == "times_faster":
                continue
            if "failed" in case:
                rows.append([count, name, case["failed"], "", "", ""])
                continue
            pace = case["tokens_per_second"]
            times = "" if plain is None else f"{pace / plain:.1f}"
            rows.append([count, name, f"{case['milliseconds_per_step']:.2f}", f"{pace:.0f}", times, _peak(case)])
    return rows


def _gb(about: dict[str, Any]) -> str:
    return f"{about['bytes'] / 1e9:.2f}"


def _peak(about: dict[str, Any]) -> str:
    return "–" if about["peak_gib"] is None else f"{about['peak_gib']:.1f}"


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
