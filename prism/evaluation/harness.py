"""Any masked diffusion model as a model of EleutherAI's lm-evaluation-harness (`pip install 'prism-mdm[harness]'`).

Generation goes through the `Writer`: a task says where a text stops and how long it may be, everything else (policy, steps,
draws) is the writer's. Likelihoods are *lower bounds*, estimated (`likelihood`), so perplexities are upper bounds. This module
needs lm-eval and is imported by nothing that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from lm_eval.api.model import LM

from prism.data.writing import Text
from prism.evaluation.likelihood import Passage, likelihood_bounds
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.order import TopProbability
from prism.sampling.policy import Pair
from prism.sampling.unmask import Counted
from prism.writer import Eos, Writer, Written

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call the tokens of an answer. The first that is given counts, as in lm-eval."""

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""A bar: what is done and how much of it there is; what it yields is called with how much is done."""


def unwatched(what: str, total: int) -> AbstractContextManager[Callable[[int], object]]:
    """Nothing to see."""
    return nullcontext(lambda done: None)


class HarnessModel(LM):
    def __init__(
        self,
        writer: Writer,
        *,
        length: int | None,
        samples: int = 128,
        seed: int = 0,
        check: Callable[[int], object] = lambda new_tokens: None,
        watch: Watch = unwatched,
        tell: Callable[[str], object] = print,
    ) -> None:
        """`length` is the longest sequence the model takes, `samples` the forward passes behind each likelihood. `check` hears
        of every length of answers before the first is written, and refuses what cannot be."""
        super().__init__()
        if not isinstance(writer.writing, Text):
            raise ValueError("The harness speaks in text, and this model has no tokenizer; put one beside its weights.")
        self.writer, self.length, self.samples, self.seed = writer, length, samples, seed
        self.check, self.watch, self.tell = check, watch, tell
        self.text = writer.writing
        self.costs: list[tuple[int, int]] = []
        """Forward passes and remasks of every text written so far."""

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Each text up to the first of its task's stop strings, at most as long as its task wants it."""
        wanted = [self._wanted(options) for _, options in (request.args for request in requests)]
        self._check(sorted({new_tokens for _, new_tokens in wanted}))
        contexts = [self._read(request.args[0]) for request in requests]
        prompts = self._fitted(contexts, [new_tokens for _, new_tokens in wanted])
        noise = Noise.rows(self.seed, len(requests), device=self.writer.device)
        texts: dict[int, str] = {}
        with (unwatched if disable_tqdm else self.watch)("texts", len(requests)) as done:
            for stop, new_tokens in dict.fromkeys(wanted):
                mine = [number for number, wants in enumerate(wanted) if wants == (stop, new_tokens)]
                writer = replace(self.writer, stop=(*self.writer.stop, *stop), new_tokens=new_tokens)
                keys = noise.keys[torch.tensor(mine, device=noise.keys.device)]
                for place, found in writer.each([prompts[number] for number in mine], Noise(keys)):
                    texts[mine[place]] = found.text
                    self._note(requests[mine[place]], found)
                    done(len(texts))
        return [texts[number] for number in range(len(requests))]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The bound, and whether greedy decoding writes the very text, one token at a time, the surest first."""
        passages = self._passages([request.args for request in requests])
        found = list(zip(self._bounds(passages), self._greedy(passages), strict=True))
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The bounds of a text's windows added up. A window is given the half window before it."""
        windows = [self._windows(self._read(request.args[0])) for request in requests]
        bounds = iter(self._bounds([passage for passages in windows for passage in passages]))
        found = [sum(next(bounds) for _ in passages) for passages in windows]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return found

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.text.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.text.tokenizer.chat_template if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        return str(self.text.tokenizer.name_or_path).replace("/", "__")

    def _wanted(self, options: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
        until = options.get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(until)
        lengths = [options[name] for name in LENGTHS if options.get(name) is not None]
        return tuple(filter(None, stop)), int([*lengths, self.writer.new_tokens][0])

    def _note(self, request: Any, found: Written) -> None:
        self.costs.append((found.forwards, found.remasks))
        self.cache_hook.add_partial("generate_until", request.args, found.text)

    def _check(self, lengths: Sequence[int]) -> None:
        """What cannot be is refused before anything is written."""
        for new_tokens in lengths:
            if self.length is not None and new_tokens >= self.length:
                raise ValueError(
                    f"Answers of {new_tokens} tokens leave no room for a question in the model's {self.length}; make them "
                    f"shorter (the task's {LENGTHS[0]}, or new_tokens where it has none)."
                )
            self.check(new_tokens)

    def _read(self, text: str) -> list[int]:
        tokens, mask = self.text.prompt(text), self.writer.model.facts.mask_id
        if mask in tokens:
            raise ValueError(
                f"A question holds {self.text.tokenizer.decode([mask])!r}, the model's mask, which would be filled in and not "
                f"read; leave its task out. It begins: {text[:60]!r}"
            )
        return tokens

    def _passages(self, pairs: Sequence[tuple[str, str]]) -> list[Passage]:
        """Of contexts and continuations. Spaces between the two belong to the second, as tokenizers have it."""
        prompts = [self._read(context.rstrip()) if context.rstrip() else [] for context, _ in pairs]
        wholes = [self._read(context + continuation) for context, continuation in pairs]
        tokens = [whole[len(prompt) :] for prompt, whole in zip(prompts, wholes, strict=True)]
        fitted = self._fitted(prompts, list(map(len, tokens)))
        return [Passage(prompt, after) for prompt, after in zip(fitted, tokens, strict=True)]

    def _fitted(self, prompts: Sequence[list[int]], counts: Sequence[int]) -> list[list[int]]:
        """As much of each prompt's end as leaves room for so many tokens."""
        if self.length is None:
            return list(prompts)
        if max(counts, default=0) > self.length:
            raise ValueError(
                f"{max(counts)} tokens after a prompt are more than the model's {self.length}; ask for fewer."
            )
        over = [max(0, len(prompt) + count - self.length) for prompt, count in zip(prompts, counts, strict=True)]
        if cut := sum(map(bool, over)):
            self.tell(
                f"{cut} of {len(prompts)} questions lose their beginning: with what follows they are longer than the model's "
                f"{self.length} tokens."
            )
        return [prompt[excess:] for prompt, excess in zip(prompts, over, strict=True)]

    def _windows(self, tokens: list[int]) -> list[Passage]:
        length = self.length or max(1, len(tokens))
        half = max(1, length // 2)
        firsts = range(length, len(tokens), half)
        rest = [Passage(tokens[first - (length - half) : first], tokens[first : first + half]) for first in firsts]
        return [Passage([], tokens[:length]), *rest]

    def _greedy(self, passages: list[Passage]) -> list[bool]:
        policy, draw = Pair(Counted(TopProbability())), Draw(temperature=0.0)
        writer = replace(self.writer, policy=policy, draw=draw, steps=None, block=None, eos=Eos(stops=False), stop=())
        same = [not passage.tokens for passage in passages]
        for count in sorted({len(passage.tokens) for passage in passages if passage.tokens}):
            mine = [number for number, passage in enumerate(passages) if len(passage.tokens) == count]
            prompts = [passages[number].prompt for number in mine]
            for place, found in replace(writer, new_tokens=count).each(prompts):
                same[mine[place]] = found.tokens == passages[mine[place]].tokens
        return same

    def _bounds(self, passages: list[Passage]) -> list[float]:
        writer = self.writer
        return likelihood_bounds(
            writer.model, passages, samples=self.samples, seed=self.seed, batch=writer.batch, device=writer.device
        )
