"""The attention kernel for short sequences against its reference: interpreted on a CPU, compiled on a GPU, and compiled for one
where there is none."""

from __future__ import annotations

import sys

import torch
from kernel_runs import run

from prism.models.dit import SHORT, Rotary, attention

SIZES = [(3, 89, 2, 32), (2, 16, 3, 64), (2, SHORT, 1, 128), (4, 1, 2, 64)]


def test_values_and_gradients_are_those_of_plain_attention() -> None:
    assert run(__file__, "compare", interpreted=not torch.cuda.is_available()) == [str(size) for size in SIZES]


def test_it_compiles_for_a_gpu_that_is_not_here() -> None:
    assert run(__file__, "compile", interpreted=False) == ["_forward", "_backward"]


def compare() -> None:
    """On a GPU in bfloat16, where both round: neither is further from float64 than plain attention would be, give or take."""
    from prism.models.short_attention import short_attention

    on_gpu = torch.cuda.is_available()
    for rows, length, heads, width in SIZES:
        torch.manual_seed(0)
        rotation = tuple(part.to("cuda" if on_gpu else "cpu") for part in Rotary(width)(length))
        qkv = torch.randn(rows, length, 3 * heads * width).to(rotation[0]).requires_grad_()
        gradient = torch.randn(rows, length, heads * width).to(qkv)
        exact = together(attention(qkv.double(), heads, rotation, None), qkv, gradient.double())
        if not on_gpu:
            found = together(short_attention(qkv, *rotation, heads), qkv, gradient)
            torch.testing.assert_close(found, exact.float(), atol=1e-5, rtol=1e-5)
        else:
            short, gradient = qkv.detach().bfloat16().requires_grad_(), gradient.bfloat16()
            attend = torch.ones(rows, length, dtype=torch.bool, device="cuda")  # with it, plain attention is used
            errors = [
                (together(mixed, short, gradient).double() - exact).square().mean().sqrt()
                for mixed in (short_attention(short, *rotation, heads), attention(short, heads, rotation, attend))
            ]
            assert errors[0] < 1.2 * errors[1] + 1e-6, errors
        print((rows, length, heads, width))


def together(mixed: torch.Tensor, qkv: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return torch.cat([mixed, torch.autograd.grad(mixed, qkv, gradient)[0]], dim=-1)


def compile_for_hopper() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from prism.models import short_attention as kernels

    sizes = {"HEADS": 8, "HALF": 32, "BLOCK": 128}
    for kernel, tensors, constants in (
        (kernels._forward, ("qkv", "cosines", "sines", "mixed", "totals"), sizes | {"QUERIES": 64}),
        (kernels._backward, ("gradient", "qkv", "cosines", "sines", "mixed", "totals", "result"), sizes | {"KEYS": 64}),
    ):
        types = {name: "*fp32" if name in ("cosines", "sines", "totals") else "*bf16" for name in tensors}
        source = ASTSource(
            fn=kernel, signature=types | {"length": "i32"} | dict.fromkeys(constants, "constexpr"), constexprs=constants
        )
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(kernel.__name__)


if __name__ == "__main__":
    {"compare": compare, "compile": compile_for_hopper}[sys.argv[1]]()
