"""The fused draw against its reference: interpreted on a CPU, compiled on a GPU, and compiled for one where there is none.

In processes of their own: whether a kernel is interpreted is decided when it is imported, and Triton reads the source of its
functions, which the shape checks that tests run under would wrap.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from prism.sampling.draw import Draw

DRAWS = [
    Draw(),
    Draw(nucleus=0.9),
    Draw(nucleus=0.9, keep_crossing=True),
    Draw(temperature=0.6, nucleus=0.5),
    Draw(temperature=1.7, nucleus=0.999, keep_crossing=True),
    Draw(nucleus=1e-6),
]


def run(what: str, *, interpreted: bool) -> list[str]:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpreted else "0"}
    command = [sys.executable, __file__, what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_the_same_numbers_draw_the_same_tokens() -> None:
    assert run("compare", interpreted=not torch.cuda.is_available()) == [str(draw) for draw in DRAWS]


def test_it_compiles_for_a_gpu_that_is_not_here() -> None:
    """Types and loops are checked by the compiler, which the interpreter does not do."""
    assert run("compile", interpreted=False) == ["*fp32", "*bf16"]


def compare() -> None:
    """With equals (in bfloat16 most logits have some), a forbidden token, a certain row, and the smallest and the largest
    number `Noise` can give; then with a row that is padding."""
    from prism.sampling.kernel import draw as fused

    on_gpu = torch.cuda.is_available()
    rows, vocabulary, device = (2_000, 50_258, "cuda") if on_gpu else (4, 5_000, "cpu")
    uniforms = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    uniforms[0], uniforms[1] = 2.0**-53, 1 - 2.0**-53
    normal = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1)).to(device)
    for draw in DRAWS:
        for spread, dtype in ((0.5, torch.float32), (0.5, torch.bfloat16), (4.0, torch.float32))[: 3 if on_gpu else 2]:
            logits = (spread * normal).to(dtype)
            logits[:, 7] = -torch.inf
            logits[2] = -torch.inf
            logits[2, 4_321] = 0.0
            tokens, logs = fused(logits, uniforms, draw.temperature, draw.nucleus, draw.keep_crossing)
            expected = draw.tokens(logits, uniforms)
            assert torch.equal(tokens, expected), (draw, spread, dtype, (tokens != expected).sum())
            torch.testing.assert_close(logs, logits.float().log_softmax(-1).gather(-1, expected[:, None])[:, 0])
            skipped = uniforms.clone()
            skipped[3] = -1.0
            tokens, _ = fused(logits, skipped, draw.temperature, draw.nucleus, draw.keep_crossing)
            assert torch.equal(tokens[:3], expected[:3])
            assert 0 <= int(tokens[3]) < vocabulary
            roomy = torch.nn.functional.pad(logits, (0, 24), value=99.0)[
                :, :vocabulary
            ]  # what lies beyond is not looked at
            tokens, _ = fused(roomy, uniforms, draw.temperature, draw.nucleus, draw.keep_crossing)
            assert torch.equal(tokens, expected)
        print(draw)
    none, _ = fused(torch.zeros(0, 300, device=device), torch.zeros(0, device=device).double(), 1.0, 0.9, False)
    assert none.shape == (0,)


def compile_for_hopper() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from prism.sampling import kernel

    constants = {"NUCLEUS": 0.9, "KEEP_CROSSING": True, "REACH": 14.0, "QUANTILE": -1.28, "WARM": True, "BLOCK": 4096}
    constants |= {"INTERPRETED": False}
    types = {
        "uniforms": "*fp64",
        "tokens": "*i64",
        "log_probabilities": "*fp32",
        "vocabulary": "i32",
        "readable": "i32",
        "stride": "i32",
    }
    for logits in ("*fp32", "*bf16"):
        signature = {"logits": logits, **types, "per_temperature": "fp32", **dict.fromkeys(constants, "constexpr")}
        source = ASTSource(fn=kernel._draw, signature=signature, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(logits)


if __name__ == "__main__":
    {"compare": compare, "compile": compile_for_hopper}[sys.argv[1]]()
