"""What `--recorded true` saves: whole texts by a `Writer`, as the command line writes them, at the size of LLaDA-8B with random
weights. Nothing is compiled; the recording of the steps, which every batch of texts begins with, is counted. Each
way is timed once.

PRISM with K_block = 8, the likeliest token, the surest first, one token a step: the last blocks of a text of 1,056 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import prism
from benchmarks.llada import POLICY, Size, attempted, parameters
from benchmarks.timing import DEVICE, DTYPE, timed
from prism.evaluation.record import plain
from prism.models.cached import Cached
from prism.models.folding import for_sampling

BLOCKS = 4
"""How many are written; what stands before them is given."""
CACHES: dict[str, Callable[[prism.PrismModel], Any]] = {"no cache": lambda model: model, "dual cache": Cached}


def measure(size: Size) -> Iterator[dict[str, Any]]:
    """The figures so far, again and again with more of them."""
    found: dict[str, Any] = {"size": plain(size), "parameters": parameters(size.model), "blocks": BLOCKS, "texts": {}}
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = prism.attach(prism.Llama(size.model), prism.ProjectionConfig(size.model.hidden_size))
    sampled = for_sampling(model.to(DEVICE).eval(), DTYPE)  # a backbone's forbidden ids are made on the CPU
    assert isinstance(sampled, prism.PrismModel)
    for rows in size.writing:
        caches = found["texts"][str(rows)] = {}
        for name, cached in CACHES.items():
            caches[name] = attempted(lambda cached=cached, rows=rows: both_ways(size, rows, cached(sampled)))  # type: ignore[misc]
            yield found


def both_ways(size: Size, rows: int, model: Any) -> dict[str, Any]:
    """The same texts, step by step and recorded."""
    step_by_step, texts = one_way(size, rows, model, recorded=False)
    recorded, again = one_way(size, rows, model, recorded=True)
    return {
        "step by step": step_by_step,
        "recorded": recorded,
        "times_faster": step_by_step["seconds"] / recorded["seconds"],
        "same_tokens": float((texts == again).double().mean()),
    }


def one_way(size: Size, rows: int, model: Any, *, recorded: bool) -> tuple[dict[str, Any], torch.Tensor]:
    length, tokens = size.prompt + size.new_tokens, BLOCKS * size.block
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

    write(size.block)  # kernels are loaded and chosen
    written: list[torch.Tensor] = []
    seconds = timed(lambda: written.append(write(tokens)))
    return {"seconds": seconds, "tokens_per_second": rows * tokens / seconds}, written[0]
