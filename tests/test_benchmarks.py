"""The benchmarks run where there is no GPU, and the fast path is the faster one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import prism
from benchmarks import llada
from benchmarks.__main__ import main
from prism.losses.masking import Masking

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


def test_llada_in_miniature(tmp_path: Path) -> None:
    """Every part of it runs."""
    command = [sys.executable, "-m", "benchmarks", "--small", "--only", "llada", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "full_size.json").read_text())
    assert "failed" not in json.dumps(found), done.stderr[-2000:]
    assert found["checkpoint"]["shards"] == 4
    assert found["adapter"]["same_quality"]
    assert found["adapter"]["quality_spread"] > 0
    assert found["writing"]["1"]["times_faster"] > 0
    assert found["writing"].keys() == {"1", "2"}
    assert found["writing"]["1"].keys() - {"times_faster"} > found["writing"]["2"].keys() - {"times_faster"}
    assert f"{found['training']['recomputed']['seconds_per_step']:.3f}" in (tmp_path / "README.md").read_text()


def test_recorded_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--small", "--only", "recorded", "--output", str(tmp_path)])
    main()
    found = json.loads((tmp_path / "recorded.json").read_text())
    assert found["texts"].keys() == {"1", "2"}
    for caches in found["texts"].values():
        assert caches.keys() == {"no cache", "dual cache"}
        for name, case in caches.items():
            assert case["tokens"] == (llada.SMALL.block if name == "no cache" else llada.SMALL.new_tokens)
            assert case["ways"].keys() == {"step by step", "recorded"}
            assert {way["same_tokens"] for way in case["ways"].values()} == {1}
    page = (tmp_path / "README.md").read_text()
    pace, base = (
        found["texts"]["2"][name]["ways"][way]["tokens_per_second"]
        for name, way in (("dual cache", "recorded"), ("no cache", "step by step"))
    )
    assert f"{pace:.1f} ({pace / base:.1f})" in page
    assert "One PRISM step" not in page, "of which nothing was measured"


def test_llada_s_size() -> None:
    assert llada.parameters(llada.LLADA_8B.model) == 8_015_581_184
    bytes_ = 2 * sum(math.prod(shape) for shard in llada.shards(llada.LLADA_8B) for shape in shard.values())
    assert bytes_ == 2 * 8_015_581_184


def test_a_step_s_operations_are_those_a_counter_counts() -> None:
    """A step without anything computed anew, half of it masked, against torch's own counter."""
    size = replace(llada.SMALL, rank=8)
    torch.manual_seed(0)
    model = prism.attach(prism.Llama(size.model), prism.ProjectionConfig(64), lora=prism.Lora(8, 8.0, llada.TARGETS))
    tokens = torch.randint(0, size.model.mask_id, (size.rows, size.length))
    half = torch.arange(size.length).expand(size.rows, -1) % 2 == 0
    loss = prism.PrismLoss(k=8, regulariser=0.5, order=prism.RandomOrder(), masking=Given(half))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss(model, prism.Batch(tokens), size.model.mask_id, prism.Noise.rows(0, size.rows)).total.backward()
    drawn = 2 * size.rows * 8 * 64 * size.model.vocab_size  # y's tokens
    again = 2 * int(half.sum()) * 64 * size.model.vocab_size  # the vocabulary on the way back
    assert counter.get_total_flops() - drawn - again == llada.step_flops(size)


@dataclass(frozen=True)
class Given(Masking):
    masks: torch.Tensor

    def where(self, free: torch.Tensor, noise: prism.Noise) -> tuple[torch.Tensor, torch.Tensor]:
        return self.masks, torch.full((len(free),), 0.5, dtype=torch.float64)


@pytest.mark.parametrize("option", ["--only", "--case"])
def test_what_is_not_there_is_named(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", option, "singing"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "singing" in capsys.readouterr().err
