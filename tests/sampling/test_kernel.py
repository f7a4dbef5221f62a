"""The fused draw against its reference: interpreted on a CPU, compiled on a GPU, and compiled for one where there is none."""

from __future__ import annotations

import sys
import threading
import time
from functools import cache
from typing import Any

import torch
from kernel_runs import run

from prism.sampling.draw import Draw

DRAWS = [
    Draw(),
    Draw(nucleus=0.9),
    Draw(nucleus=0.9, keep_crossing=True),
    Draw(temperature=0.6, nucleus=0.5),
    Draw(temperature=1.7, nucleus=0.999, keep_crossing=True),
    Draw(nucleus=1e-6),
]
PIECES = (2, 6)


def test_the_same_numbers_draw_the_same_tokens() -> None:
    assert run(__file__, "compare", interpreted=not torch.cuda.is_available()) == [str(draw) for draw in DRAWS]


def test_rows_in_pieces_draw_the_same_tokens() -> None:
    expected = [f"{pieces} {draw}" for pieces in PIECES for draw in DRAWS]
    assert run(__file__, "pieces", interpreted=not torch.cuda.is_available()) == expected


def test_it_compiles_for_a_gpu_that_is_not_here() -> None:
    """Types and loops are checked by the compiler, which the interpreter does not do."""
    assert run(__file__, "compile", interpreted=False) == ["1 *fp32", "1 *bf16", "6 *fp32", "6 *bf16"]


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


def pieces() -> None:
    """Programs that wait for each other: blocks are small, so that a row has enough of them; one of 6 pieces is empty."""
    from prism.sampling import kernel

    kernel._BLOCK, kernel._WARPS = 256, 4
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, vocabulary = 6, 1_200
    uniforms = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    uniforms[0], uniforms[1], uniforms[3] = 2.0**-53, 1 - 2.0**-53, -1.0
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    logits[:, 7] = -torch.inf
    logits[2] = -torch.inf
    logits[2, 1_000] = 0.0
    logits[4, :700] = -torch.inf  # pieces that weigh nothing
    logits[5] = 0.0
    drawn = uniforms >= 0
    if device == "cpu":
        run_programs_of_a_row_together()
    for count in PIECES:
        for draw in DRAWS:
            tokens, logs = kernel._launch(logits, uniforms, draw.temperature, draw.nucleus, draw.keep_crossing, count)
            expected = draw.tokens(logits, uniforms)
            assert torch.equal(tokens[drawn], expected[drawn]), (count, draw, tokens, expected)
            assert 0 <= int(tokens[3]) < vocabulary
            log_probabilities = logits.float().log_softmax(-1).gather(-1, expected[:, None])[:, 0]
            torch.testing.assert_close(logs[drawn], log_probabilities[drawn])
            print(count, draw)


def run_programs_of_a_row_together() -> None:
    """Makes the interpreter, which runs one program after the other, run one per piece at a time, each in a thread."""
    from triton.runtime import interpreter

    deadline = time.monotonic() + 120
    thread = threading.local()
    one_by_one, builder = interpreter.GridExecutor.__call__, interpreter.interpreter_builder

    class Builder(interpreter.InterpreterBuilder):
        @property
        def grid_idx(self) -> tuple[int, int, int]:
            return thread.row * thread.pieces + thread.piece, 0, 0

        def set_grid_idx(self, x: int, y: int, z: int) -> None:
            thread.row = x

        def create_atomic_rmw(self, *operation: Any) -> Any:
            time.sleep(0)  # whoever waits lets the others run
            if time.monotonic() > deadline:
                raise TimeoutError("programs wait for one that does not come")
            return super().create_atomic_rmw(*operation)

    def together(executor: Any, *arguments: Any, **constants: Any) -> None:
        pieces = constants["PIECES"]
        executor.grid = (executor.grid[0] // pieces,)
        errors: list[Exception] = []

        def run_piece(piece: int) -> None:
            thread.pieces, thread.piece = pieces, piece
            try:
                one_by_one(executor, *arguments, **constants)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=run_piece, args=(piece,)) for piece in range(pieces)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if errors:
            raise errors[0]

    builder.__class__ = Builder
    interpreter.GridExecutor.__call__ = together
    # the language is made interpretable once and for good: the first thread to end would undo it for all
    interpreter._patch_lang = cache(interpreter._patch_lang)
    interpreter._LangPatchScope.restore = lambda scope: None


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
    meeting = {"arrivals": "*i32", "slots": "*fp64"}
    for count, logits in ((1, "*fp32"), (1, "*bf16"), (6, "*fp32"), (6, "*bf16")):
        fixed = {**constants, "PIECES": count, "LANES": triton.next_power_of_2(count)}
        fixed |= {} if count > 1 else dict.fromkeys(meeting)
        varying = {"logits": logits, **types, **meeting, "per_temperature": "fp32"}
        signature = {**varying, **dict.fromkeys(fixed, "constexpr")}
        source = ASTSource(fn=kernel._draw, signature=signature, constexprs=fixed)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(count, logits)


if __name__ == "__main__":
    {"compare": compare, "pieces": pieces, "compile": compile_for_hopper}[sys.argv[1]]()
