"""Unconditional text at the paper's size (World B): a causal model becomes a masked diffusion model of Wikipedia, PRISM
corrects what it writes, and a causal model of another family judges it.

The paper's text experiment (Section 4.2 and Appendix D) for whoever has no MDLM checkpoint: SmolLM2-135M, adapted, stands in
for it. How to begin is decided by evidence, the bound on held-out text after short trainings on equally many tokens: the causal
model read one position to the left as it always was (shifted), or read in place, or a DiT of MDLM's size from nothing.

Every sequence begins and ends with the end-of-text token, which is given and never masked: a shifted model reads the first two
predictions at the same place, and could tell them apart in no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from prism.data.shards import MANIFEST, Corpus
from prism.data.text import end_of_text, load_tokenizer, vocabulary_size, with_mask
from prism.data.windows import TextWindows
from prism.data.writing import Text
from prism.evaluation.judge import Judge, load_judge
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import SampleFile, Written
from prism.evaluation.statistics import bootstrap_mean
from prism.evaluation.text import Likelihood, figure
from prism.losses.denoising import DenoisingLoss, denoising_loss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.adapt import widening
from prism.models.attach import Lora, PrismModel, attach
from prism.models.backbone import Backbone
from prism.models.dit import DiT, DiTConfig
from prism.models.folder import files_digest
from prism.models.heads import BlockConfig, OddsConfig
from prism.models.hub import load_backbone, model_files
from prism.models.llama import Llama
from prism.noise import Noise
from prism.recipes.adapting import adapt_to
from prism.recipes.reproduce.texts import Features, Kept, about, digest_of, write_texts
from prism.recipes.reproduce.workshop import Model, Workshop, on_cpu, on_gpu, to_sample
from prism.recipes.sampling import Sampling
from prism.sampling.order import TopProbability
from prism.state import State, start
from prism.training import Examples, Optimisation

TUNED_ON = 50
"""PRISM sees at most one token for so many that the model was trained on."""
WIDENED_OVER = 4
"""Attention widens over this part of an adaptation, a quarter."""


@dataclass(frozen=True)
class Scale:
    """How large to do it."""

    length: int
    """Tokens of a sequence."""
    hidden_size: int
    """Of the DiT from nothing."""
    blocks: int
    heads: int
    evidence: Optimisation
    """Of every candidate."""
    adaptation: Optimisation
    """Of the one that is chosen."""
    tuning: Optimisation
    """With PRISM."""
    held_out: int
    """Sequences that weights are chosen on."""
    samples: int
    """Written by every method, and as many held-out sequences to compare them with."""
    screened: int
    """Written with every setting of a method to find its best, which then writes `samples` others: had it been chosen by the
    same texts, its figures would flatter it."""
    at_once: int
    """Sequences sampled at a time."""
    steps: tuple[int, ...]
    """Forward passes, the fewest first; with the most, only the best methods are compared."""
    witnesses: int
    """Sequences watched for calibration."""

    def __post_init__(self) -> None:
        learnt, tuned = self.tokens(self.adaptation), self.tokens(self.tuning)
        if tuned * TUNED_ON > learnt:
            most = learnt // (TUNED_ON * self.tuning.batch * self.length)
            raise ValueError(
                f"PRISM would see {tuned:,} tokens, more than 1/{TUNED_ON} of the {learnt:,} the model is trained on; tune it "
                f"for at most {most:,} steps of {self.tuning.batch} sequences."
            )

    @property
    def swept(self) -> tuple[int, ...]:
        """Where every method is tried at every strength."""
        return self.steps[:-1]

    def tokens(self, settings: Optimisation) -> int:
        """Of the data that a training sees. PRISM draws several y from each of its sequences, which are no data."""
        return settings.steps * settings.batch * self.length


SCALES: dict[str, Scale] = {
    "full": Scale(
        length=512,
        hidden_size=768,
        blocks=12,
        heads=12,
        evidence=on_gpu(200, 128, lr=3e-4, warmup=20, looks=1),  # 13M tokens
        adaptation=on_gpu(4_500, 128, lr=3e-4, warmup=200, looks=3),  # 295M tokens
        tuning=on_gpu(360, 32, lr=1e-4, warmup=30, looks=2),  # 5.9M tokens, with n_y = 8 nine forward passes of each
        held_out=256,
        samples=1_024,
        screened=128,
        at_once=128,  # one shape for all, compiled once
        steps=(16, 32, 64, 128),
        witnesses=128,
    ),
    "tiny": Scale(
        length=16,
        hidden_size=32,
        blocks=1,
        heads=2,
        evidence=on_cpu(4, 8, lr=1e-3),
        adaptation=on_cpu(50, 8, lr=1e-3),
        tuning=on_cpu(2, 4, lr=1e-3),
        held_out=4,
        samples=6,
        screened=2,
        at_once=4,
        steps=(4, 6, 8),
        witnesses=3,
    ),
}


@dataclass(frozen=True)
class Candidate:
    """One way to begin."""

    about: str
    make: Callable[[WikipediaStudy], Backbone]
    suited: Callable[[Optimisation], Optimisation] = lambda settings: settings
    """The settings it is trained with; the tokens are the same for all."""


CANDIDATES: dict[str, Candidate] = {
    "adapted-shifted": Candidate(
        "the causal model, read one position to the left", lambda study: study.from_causal(shifted=True)
    ),
    "adapted-unshifted": Candidate("the causal model, read in place", lambda study: study.from_causal(shifted=False)),
    "from-scratch": Candidate(
        "a DiT from nothing",
        lambda study: study.from_scratch(),
        lambda settings: replace(settings, lr=1e-3, muon_lr=3e-3),  # the larger steps that served World A best
    ),
}


MAIN = PrismLoss(k=16, ys=8, regulariser=0.0)
"""Few sequences, so many draws of each; S at random, and nothing to keep a frozen backbone in shape for."""
PUBLISHED = PrismLoss(k=8, ys=4, regulariser=0.5, order=TopProbability())
"""The paper's λ and S, and k and n_y of its released code (the paper's own on text are 32 and 1)."""


@dataclass(frozen=True)
class Variant:
    """One way to tune. What is left out is the main way: an odds head on the backbone as it is."""

    loss: PrismLoss = MAIN
    head: type[BlockConfig] = OddsConfig
    tune_backbone: bool = False
    rank: int | None = None
    """Of LoRA on all of attention, in place of training the whole backbone."""
    head_lr: float | None = 1e-3
    """The backbone's if left out."""

    @property
    def leaves_backbone(self) -> bool:
        """As it is, so that methods without a head write the same as before."""
        return self.rank is None and not self.tune_backbone

    def lora(self, backbone: Backbone) -> Lora | None:
        if self.rank is None:
            return None
        names = ("q_proj", "k_proj", "v_proj", "o_proj") if isinstance(backbone, Llama) else ("attn_qkv", "attn_out")
        return Lora(self.rank, 2.0 * self.rank, names)


VARIANTS: dict[str, Variant] = {
    "prism": Variant(),
    "prism-confident": Variant(replace(MAIN, order=TopProbability())),
    "prism-paper": Variant(PUBLISHED, BlockConfig, tune_backbone=True, head_lr=None),
    "prism-lora": Variant(PUBLISHED, BlockConfig, rank=64, head_lr=None),
}
"""By the name of their folder; `prism-paper` is the paper's way but for k and n_y."""


class BetweenEnds(Examples):
    """Windows of text whose first and last token are given."""

    def __init__(self, windows: TextWindows) -> None:
        self.windows = windows

    def batch(self, rows: range, device: torch.device) -> Batch:
        return with_ends_given(self.windows.batch(rows, device).tokens)


def with_ends_given(tokens: Tensor) -> Batch:
    inside = torch.ones_like(tokens, dtype=torch.bool)
    inside[:, [0, -1]] = False
    return Batch(tokens, inside)


class WikipediaStudy:
    """The data, the models by name and the judge, each made or loaded when it is first asked for."""

    def __init__(self, scale: Scale, workshop: Workshop, data: Path, base: str, judge: str) -> None:
        self.scale, self.workshop = scale, workshop
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # What may be missing is looked for now and not after hours of work.
        self.base, self.judged_by = model_files(base), model_files(judge)
        if self.base.resolve() == self.judged_by.resolve():
            raise ValueError(f"--judge {judge} is the base itself; name a causal model of another family to judge.")
        self.corpus = Corpus.load(data)
        self.tokenizer = with_mask(load_tokenizer(data / "tokenizer"))
        self.end = end_of_text(self.tokenizer)
        self.kept = Kept(workshop.models / "samples")
        wanted, there = scale.held_out + scale.samples, len(self.corpus.validation) // (scale.length - 2)
        if there < wanted:
            raise ValueError(
                f"{data} has {there:,} held-out sequences of {scale.length} tokens, and {wanted:,} are needed "
                f"({scale.held_out:,} to choose weights on, {scale.samples:,} to compare with); make it anew by prism "
                "tokenize with a larger --validation."
            )

    def describe(self) -> dict[str, Any]:
        """What everything here is made with."""
        models = {"base": self.base, "judge": self.judged_by}
        files = {name: f"{path.name} {files_digest(path)}" for name, path in models.items()}
        return {"scale": self.scale, **files, "tokens": files_digest(self.corpus.folder / MANIFEST)}

    # ── data ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _examples(self, seed: int) -> BetweenEnds:
        return BetweenEnds(TextWindows(self.corpus.train, self.scale.length, seed=seed, end=self.end))

    def held_out(self) -> Batch:
        return with_ends_given(self._aside(range(self.scale.held_out)))

    def texts(self) -> list[list[int]]:
        """Held-out sequences, as many as a method writes, and others than weights are chosen on."""
        first = self.scale.held_out
        return self._aside(range(first, first + self.scale.samples)).tolist()

    def _aside(self, rows: range) -> Tensor:
        return TextWindows(self.corpus.validation, self.scale.length, end=self.end).read(rows)

    def learnt(self) -> list[list[int]]:
        """As many of those that models learn from: what MAUVE says of text against text is the most there is to reach."""
        return TextWindows(self.corpus.train, self.scale.length, end=self.end).read(range(self.scale.samples)).tolist()

    def blank(self, count: int) -> State:
        """Masks between two ends."""
        mask = self.tokenizer.mask_token_id
        tokens = torch.full((count, self.scale.length), mask, device=self.device)
        tokens[:, [0, -1]] = self.end
        return start(tokens, mask)

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def from_causal(self, *, shifted: bool) -> Llama:
        return adapt_to(self.corpus, self.tokenizer, str(self.base), shifted=shifted, length=self.scale.length)

    def from_scratch(self) -> DiT:
        torch.manual_seed(0)
        return DiT(
            DiTConfig(
                vocab_size=vocabulary_size(self.tokenizer),
                mask_id=self.tokenizer.mask_token_id,
                length=self.scale.length,
                hidden_size=self.scale.hidden_size,
                blocks=self.scale.blocks,
                heads=self.scale.heads,
                dropout=0.0,
            )
        )

    def evidence(self) -> dict[str, Any]:
        """Every candidate after a short training on the same tokens, and the one whose bound is lowest."""
        clock, rows = Stopwatch(), []
        for name, candidate in CANDIDATES.items():
            path = self._trained(f"evidence-{name}", candidate, self.scale.evidence)
            bound, story = bootstrap_mean(self.bounds(path)), self.workshop.story(path)
            about = {"name": name, "about": candidate.about, "parameters": story["record"]["model"]["parameters"]}
            rows.append({**about, **figure("bound", bound), "seconds": story["record"]["wall_seconds"]})
            self.workshop.tell(f"  {name}: {bound.value:.4f} nats a token")
        best = min(rows, key=lambda row: row["bound"])
        record = clock.record("reproduce wikipedia", self.scale, seed=0, device=self.device)
        tokens = self.scale.tokens(self.scale.evidence)
        return {"tokens": tokens, "chosen": best["name"], "rows": rows, "record": plain(record)}

    @torch.no_grad()
    def bounds(self, path: Path, *, draws: int = 4) -> Float[np.ndarray, " n"]:
        """The bound on -log p of every held-out sequence, in nats a token: the mean over its masks, of several maskings."""
        model, held_out, loss = self.load(path, compiled=False), self.held_out(), DenoisingLoss()
        found = []
        for first in range(0, len(held_out.tokens), self.scale.at_once):
            batch = held_out.rows(first, first + self.scale.at_once).to(self.device)
            noise = Noise.rows(54321, len(batch.tokens), first=first, device=self.device)
            maskings = [loss.masking(batch, model.facts.mask_id, noise.replica(number)) for number in range(draws)]
            losses = [denoising_loss(model.predict(z.tokens), batch, z, loss.weighting) for z in maskings]
            found.append(torch.stack(losses).double().mean(0).cpu().numpy())
        return np.concatenate(found)

    def adapted(self) -> Path:
        """The candidate the evidence is for, trained at length; weights made elsewhere may be put in its place."""
        if (there := self.workshop.made("adapted")) is not None:
            return there
        chosen = self.workshop.result("evidence", self.evidence)["chosen"]
        return self._trained("adapted", CANDIDATES[chosen], self.scale.adaptation)

    def _trained(self, name: str, candidate: Candidate, settings: Optimisation) -> Path:
        def each_step(model: Model) -> Callable[[int], object]:
            """Only a causal model has to learn to look ahead."""
            return widening(model, settings.steps // WIDENED_OVER) if isinstance(model, Llama) else lambda step: None

        return self.workshop.model(
            name,
            lambda: candidate.make(self),
            DenoisingLoss(),
            lambda: self._examples(0),
            self.held_out,
            candidate.suited(settings),
            each_step=each_step,
        )

    def tuned(self, name: str = "prism") -> Path:
        """The same with PRISM, in the way of that name."""
        variant = VARIANTS[name]
        settings = replace(self.scale.tuning, head_lr=variant.head_lr)

        def make() -> PrismModel:
            backbone = load_backbone(self.adapted(), dtype=torch.float32)  # it will learn
            torch.manual_seed(settings.seed)
            width = backbone.facts.hidden_size
            head = variant.head(width, heads=max(1, width // 64))
            return attach(backbone, head, lora=variant.lora(backbone), tune_backbone=variant.tune_backbone)

        return self.workshop.model(name, make, variant.loss, lambda: self._examples(100), self.held_out, settings)

    def load(self, path: Path, *, compiled: bool = True) -> Any:
        return to_sample(path, self.device, compiled=compiled)

    # ── texts, and the judge ────────────────────────────────────────────────────────────────────────────────────────

    def screen(self, weights: Path, sampling: Sampling) -> list[Written]:
        """A few texts, to compare settings by."""
        return self._write(weights, sampling, self.scale.screened, None)

    def write(self, weights: Path, sampling: Sampling) -> list[Written]:
        """All texts, from their file as far as they are there."""
        settings = {"weights": digest_of(weights), "length": self.scale.length, **vars(sampling)}
        path = self.kept.path(about(weights.parent.name, sampling)["name"], ".jsonl")
        return self._write(weights, sampling, self.scale.samples, SampleFile(path, settings))

    def _write(self, weights: Path, sampling: Sampling, samples: int, file: SampleFile | None) -> list[Written]:
        return write_texts(
            self.load(weights),
            sampling,
            self.tokenizer,
            self.blank,
            samples=samples,
            batch=self.scale.at_once,
            file=file,
        )

    def text(self, tokens: list[int]) -> str:
        return Text(self.tokenizer).text(tokens)

    @cached_property
    def judge(self) -> Judge:
        """Loaded once, and on the device with the models that write: both are small. On a GPU in bfloat16."""
        on_gpu = self.device.type == "cuda"
        return load_judge(
            str(self.judged_by),
            device=self.device,
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            batch=32 if on_gpu else 8,
            end=self.tokenizer.convert_ids_to_tokens(self.end),
        )

    def likelihood(self, texts: Sequence[str]) -> Likelihood:
        nll, tokens = zip(*self.judge.likelihood(texts), strict=True)
        return Likelihood(np.array(nll), np.array(tokens))

    def keep(self, name: str, tokens: Sequence[list[int]], texts: Sequence[str]) -> None:
        """For MAUVE, by the judge's hidden states."""
        last, mean = (np.stack(states) for states in zip(*self.judge.states(texts), strict=True))
        self.kept.write(name, np.array(tokens), Features(last, mean))
