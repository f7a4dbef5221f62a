"""What compiled layers do instead of torch's own, which they are without a compiler."""

from __future__ import annotations

import sys

import pytest
import torch
from kernel_runs import run
from torch.nn import functional as F

from prism.models.frugal import Dropout, standardised


def test_a_rounded_norm_has_the_gradient_of_the_exact_one() -> None:
    assert run(__file__, "norm", interpreted=False) == ["torch.bfloat16"]


def test_compiled_dropout() -> None:
    assert run(__file__, "dropout", interpreted=False) == ["the same again"]


def test_the_norm_is_exact_where_nothing_is_compiled() -> None:
    x = torch.randn(4, 7, 64)
    assert torch.equal(in_bf16(x), F.layer_norm(x, (64,)))


def test_dropout_does_nothing_when_not_learning() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


def in_bf16(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return standardised(x)


def norm() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(4, 7, 64, requires_grad=True), torch.randn(4, 7, 64)
    rounded, exact = torch.compile(in_bf16)(x), F.layer_norm(x, (64,))
    torch.testing.assert_close(rounded.float(), exact, atol=0.01, rtol=0.01)
    (found,) = torch.autograd.grad((rounded.float() * weights).sum(), x)
    (expected,) = torch.autograd.grad((exact * weights).sum(), x)
    assert (found - expected).square().mean().sqrt() < 0.005 * expected.square().mean().sqrt()
    print(rounded.dtype)


def dropout() -> None:
    """The right share, none of it tied to a neighbour or to the time before, the same places on the way back, and again with
    the same seed."""
    layer, x = Dropout(0.1).train(), torch.ones(64, 128, 64, requires_grad=True)
    compiled = torch.compile(layer.forward, dynamic=False)
    torch.manual_seed(0)
    first, second = compiled(x), compiled(x)
    assert first.detach().unique().tolist() == pytest.approx([0.0, 1 / 0.9])
    gone, again = (result.detach() == 0 for result in (first, second))
    error = 5 * (0.1 * 0.9 / x.numel()) ** 0.5
    assert abs(gone.float().mean() - 0.1) < error
    for other in (again, gone.roll(1, -1), gone.roll(1, 1), gone.roll(1, 0)):
        assert abs((gone & other).float().mean() - 0.01) < error
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())
    torch.manual_seed(0)
    assert torch.equal(compiled(x), first)
    print("the same again")


if __name__ == "__main__":
    {"norm": norm, "dropout": dropout}[sys.argv[1]]()
