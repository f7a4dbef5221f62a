"""What `--recorded true` saves, and what compiling the layers would save beside it: texts by a `Writer`, as the command line
writes them, at the size of LLaDA-8B with random weights. The recording of the steps, which every batch of texts begins with, is
counted, compiling is not. Each way is timed once.

PRISM with K_block = 8, the likeliest token, the surest first, one token a step: with a cache whole texts, without one their
last block, since there every step costs the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import prism
from benchmarks.llada import POLICY, Size, attempted, parameters
from benchmarks.timing import DEVICE, DTYPE, timed
from prism.evaluation.record import plain
from prism.models.cached import Cached
from prism.models.folding import for_sampling

CACHES: dict[str, Callable[[prism.PrismModel], Any]] = {"no cache": lambda model: model, "dual cache": Cached}
PLAIN, RECORDED, COMPILED = "step by step", "recorded", "compiled and recorded"


def measure(size: Size, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """The figures so far, again and again with more of them."""
    found: dict[str, Any] = {"size": plain(size), "parameters": parameters(size.model), "texts": {}}
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = prism.attach(prism.Llama(size.model), prism.ProjectionConfig(size.model.hidden_size))
    sampled = for_sampling(model.to(DEVICE).eval(), DTYPE)  # a backbone's forbidden ids are made on the CPU
    assert isinstance(sampled, prism.PrismModel)
    written: dict[tuple[str, str], torch.Tensor] = {}
    for rows in size.writing:
        found["texts"][str(rows)] = {name: {"tokens": _tokens(size, name), "ways": {}} for name in CACHES}
    for way in (PLAIN, RECORDED, *([COMPILED] if compiled else [])):
        if way == COMPILED:  # for texts of all lengths at once, or every prompt would be compiled for anew
            sampled.backbone.compile(dynamic=True)
        for rows, caches in found["texts"].items():
            for name, case in caches.items():
                how = partial(one_way, size, int(rows), CACHES[name](sampled), case["tokens"], recorded=way != PLAIN)
                case["ways"][way] = attempted(partial(_compared, how, written, (rows, name)))
                yield found


def _tokens(size: Size, cache: str) -> int:
    return size.block if cache == "no cache" else size.new_tokens


def _compared(
    how: Callable[[], tuple[dict[str, Any], torch.Tensor]],
    written: dict[tuple[str, str], torch.Tensor],
    key: tuple[str, str],
) -> dict[str, Any]:
    """With the share of tokens that are those of the first way."""
    found, texts = how()
    return {**found, "same_tokens": float((texts == written.setdefault(key, texts)).double().mean())}


def one_way(size: Size, rows: int, model: Any, tokens: int, *, recorded: bool) -> tuple[dict[str, Any], torch.Tensor]:
    """Pace and texts of one way to write the last `tokens` of each."""
    length = size.prompt + size.new_tokens
    given = torch.randint(0, size.model.mask_id, (rows, length), generator=torch.Generator().manual_seed(0))

    def write(count: int) -> torch.Tensor:
        writer = prism.Writer(
            model,
            prism.Numbers(size.model.vocab_size),
            POLICY,
            new_tokens=count,
            block=size.block,
            draw=prism.Draw(temperature=0.0),
            batch=rows,
            recorded=recorded,
            device=DEVICE,
        )
        return torch.tensor([text.tokens for text in writer(given[:, : length - count].tolist())])

    before = timed(lambda: write(size.block))  # kernels are loaded, chosen and compiled
    written: list[torch.Tensor] = []
    seconds = timed(lambda: written.append(write(tokens)))
    return {"seconds": seconds, "tokens_per_second": rows * tokens / seconds, "seconds_before": before}, written[0]
