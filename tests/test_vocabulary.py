"""Log-probabilities straight from hidden states against the obvious way; the kernels interpreted on a CPU, compiled on a GPU,
and compiled for one where there is none."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from kernel_runs import run
from torch import Tensor

import prism.vocabulary
from prism.state import log_probability
from prism.vocabulary import entropy_in, entropy_of, log_probability_in, log_probability_through

SIZES = [(7, 300), (3, 5000), (5, 4096), (1, 257)]


def case(
    rows: int = 9, vocabulary: int = 300, *, bias: bool = True
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    torch.manual_seed(0)
    weight, hidden = torch.randn(vocabulary, 8).double(), torch.randn(rows, 8).double()
    offset = torch.randn(vocabulary).double().requires_grad_() if bias else None
    tokens = torch.randint(2, vocabulary, (rows,))
    return hidden.requires_grad_(), weight.requires_grad_(), offset, torch.tensor([0, 1]), tokens


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("at_once", [1 << 28, 4 * 320, 1])
def test_values_and_gradients_are_those_of_the_logits(
    bias: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows at a time or all of them, with tokens that may not be drawn."""
    monkeypatch.setattr(prism.vocabulary, "LOGITS_AT_ONCE", at_once)
    hidden, weight, offset, forbidden, tokens = case(bias=bias)
    logits = torch.nn.functional.linear(hidden, weight, offset).index_fill(-1, forbidden, -torch.inf)
    expected, found = (
        log_probability(logits, tokens),
        log_probability_through(hidden, weight, offset, forbidden, tokens),
    )
    torch.testing.assert_close(found, expected)
    pull, learned = torch.randn(len(tokens)).double(), [part for part in (hidden, weight, offset) if part is not None]
    for one, other in zip(
        torch.autograd.grad(found, learned, pull), torch.autograd.grad(expected, learned, pull), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_logits_that_nobody_learns_from() -> None:
    """Also of a mask that is outside the vocabulary, which gets the last token's."""
    logits, tokens = torch.randn(9, 300), torch.randint(2, 301, (9,))
    torch.testing.assert_close(log_probability_in(logits, tokens), log_probability(logits, tokens))


def test_entropy_counts_no_forbidden_token() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, -torch.inf], [5.0, -torch.inf, -torch.inf, -torch.inf]])
    torch.testing.assert_close(entropy_in(logits), torch.tensor([math.log(3), 0.0]))


def test_what_does_not_learn_gets_no_gradient() -> None:
    hidden, weight, offset, forbidden, tokens = case()
    log_probability_through(hidden, weight.detach(), None, forbidden, tokens).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    assert offset is not None
    assert offset.grad is None


def test_no_rows() -> None:
    hidden, weight, offset, forbidden, tokens = case(0)
    found = log_probability_through(hidden, weight, offset, forbidden, tokens)
    assert found.shape == (0,)
    found.sum().backward()
    assert hidden.grad is not None


def test_the_kernels_are_the_formulas() -> None:
    assert run(__file__, "compare", interpreted=not torch.cuda.is_available()) == [str(size) for size in SIZES]


def test_they_compile_for_a_gpu_that_is_not_here() -> None:
    assert run(__file__, "compile", interpreted=False) == ["_normalise", "_entropy", "_differentiate"]


def compare() -> None:
    from prism.vocabulary_kernel import differentiate, entropy, normalise

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for rows, vocabulary in SIZES:
        torch.manual_seed(0)
        whole = (3 * torch.randn(rows, vocabulary + 23)).to(device)
        logits = whole[:, :vocabulary]
        logits[:, 5] = -torch.inf
        tokens, pull = torch.randint(6, vocabulary, (rows,), device=device), torch.randn(rows, device=device)
        exact = logits.double().requires_grad_()
        expected = log_probability(exact, tokens)
        (expected * pull).sum().backward()
        found, normalisers = normalise(logits, tokens)
        torch.testing.assert_close(found.double(), expected.detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(normalisers.double(), exact.detach().logsumexp(-1), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy(logits).double(), entropy_of(logits.double()), atol=1e-5, rtol=1e-5)
        beyond = whole[:, vocabulary:].clone()
        differentiate(logits, tokens, normalisers, pull)
        assert exact.grad is not None
        torch.testing.assert_close(logits.double(), exact.grad, atol=1e-5, rtol=1e-4)
        assert torch.equal(whole[:, vocabulary:], beyond)
        print((rows, vocabulary))


def compile_for_hopper() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from prism.vocabulary_kernel import _differentiate, _entropy, _normalise

    floats = dict.fromkeys(("log_probabilities", "normalisers", "entropies", "gradient"), "*fp32")
    types = {"logits": "*bf16", "tokens": "*i64", "vocabulary": "i32", "stride": "i32", **floats}
    for kernel in (_normalise, _entropy, _differentiate):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs={"BLOCK": 4096})
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
        print(kernel.__name__)


if __name__ == "__main__":
    {"compare": compare, "compile": compile_for_hopper}[sys.argv[1]]()
