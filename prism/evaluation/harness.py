"""Any masked diffusion model as a model of EleutherAI's lm-evaluation-harness (`pip install 'prism-mdm[harness]'`).

Generation goes through the `Writer`: a task says where a text stops and how long it may be, everything else (policy, steps,
draws) is the writer's. Likelihoods are *lower bounds*, estimated (`likelihood`), so perplexities are upper bounds. This module
needs lm-eval and is imported by nothing that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class HarnessModel(LM):
    def __init__(self, writer: Writer, *, length: int | None, samples: int = 128, seed: int = 0) -> None:
        """`length` is the longest sequence the model takes, `samples` the forward passes behind each likelihood."""
        super().__init__()
        if not isinstance(writer.writing, Text):
            raise ValueError("The harness speaks in text, and this model has no tokenizer; put one beside its weights.")
        self.writer, self.length, self.samples, self.seed = writer, length, samples, seed
        self.text = writer.writing
        self.costs: list[tuple[int, int]] = []
        """Forward passes and remasks of every text written so far."""

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Each text up to the first of its task's stop strings, at most as long as its task wants it."""
        asked = [(context, *self._wanted(options)) for context, options in (request.args for request in requests)]
        noise = Noise.rows(self.seed, len(asked), device=self.writer.device)
        texts: dict[int, str] = {}
        for stop, new_tokens in dict.fromkeys((stop, new_tokens) for _, stop, new_tokens in asked):
            mine = [number for number, (_, *wants) in enumerate(asked) if wants == [stop, new_tokens]]
            writer = replace(self.writer, stop=(*self.writer.stop, *stop), new_tokens=new_tokens)
            prompts = [self._room(self.text.prompt(asked[number][0]), new_tokens) for number in mine]
            keys = noise.keys[torch.tensor(mine, device=noise.keys.device)]
            for place, found in writer.each(prompts, Noise(keys)):
                texts[mine[place]] = found.text
                self._note(requests[mine[place]], found)
        return [texts[number] for number in range(len(asked))]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The bound, and whether greedy decoding writes the very text, one token at a time, the surest first."""
        passages = [self._passage(*request.args) for request in requests]
        found = list(zip(self._bounds(passages), self._greedy(passages), strict=True))
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The bounds of a text's windows added up. A window is given the half window before it."""
        windows = [self._windows(self.text.prompt(request.args[0])) for request in requests]
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
        return tuple(filter(None, stop)), int(options.get("max_gen_toks", self.writer.new_tokens))

    def _note(self, request: Any, found: Written) -> None:
        self.costs.append((found.forwards, found.remasks))
        self.cache_hook.add_partial("generate_until", request.args, found.text)

    def _passage(self, context: str, continuation: str) -> Passage:
        """Spaces between the two belong to the second, as tokenizers have it."""
        given = context.rstrip()
        prompt = self.text.prompt(given) if given else []
        tokens = self.text.prompt(context + continuation)[len(prompt) :]
        return Passage(self._room(prompt, len(tokens)), tokens)

    def _room(self, prompt: list[int], count: int) -> list[int]:
        """As much of the prompt's end as leaves room for `count` tokens."""
        if self.length is None:
            return prompt
        if count > self.length:
            raise ValueError(f"{count} tokens after the prompt are more than the model's {self.length}; ask for fewer.")
        return prompt[max(0, len(prompt) + count - self.length) :]

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
