"""The kernel of one query against its reference: interpreted on a CPU, compiled on a GPU, and compiled for one where there is
none."""

from __future__ import annotations

import sys

import torch
from kernel_runs import run

from prism.models.causal import look_back

CASES = [
    (rows, heads, groups, length, size, position, dtype)
    for rows, heads, groups, length, size in [(3, 2, 2, 70, 48), (2, 6, 2, 40, 16), (1, 1, 1, 1, 64)]
    for position in sorted({0, length // 2, length - 1})
    for dtype in ("float32", "float16")
]


def test_it_is_plain_attention_to_what_is_there() -> None:
    assert run(__file__, "compare", interpreted=not torch.cuda.is_available()) == list(map(str, CASES))


def test_it_compiles_for_a_gpu_that_is_not_here() -> None:
    assert run(__file__, "compile", interpreted=False) == ["float32", "float16"]


def compare() -> None:
    from prism.models.look_back import look_back as kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for case in CASES:
        rows, heads, groups, length, size, position, dtype = case
        torch.manual_seed(0)
        q = torch.randn(rows, 1, heads, size).transpose(1, 2)  # as a projection leaves it, not in one piece
        past = torch.randn(2, rows, groups, length, size).to(getattr(torch, dtype))
        where = torch.tensor([position])
        exact = look_back(q, *past, where)
        past[:, :, :, position + 1 :] = torch.nan  # what is not there yet may be anything
        found = kernel(*(part.to(device) for part in (q, *past, where)))
        torch.testing.assert_close(found.cpu(), exact, atol=1e-5, rtol=1e-5)
        print(case)


def compile_for_hopper() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from prism.models.look_back import _look_back

    constants = {"HEADS": 6, "SHARED": 1, "SIZE": 48, "WIDTH": 64, "KEYS": 32}
    for name, kept in (("float32", "*fp32"), ("float16", "*fp16")):
        types = {"queries": "*fp32", "keys": kept, "values": kept, "mixed": "*fp32", "position": "*i64"}
        signature = types | {"length": "i32", "scale": "fp32"} | dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=_look_back, signature=signature, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(name)


if __name__ == "__main__":
    {"compare": compare, "compile": compile_for_hopper}[sys.argv[1]]()
