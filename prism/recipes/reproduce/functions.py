"""Python functions completed from signature and docstring: the paper's question about code (Section 4.3), at a size one GPU
can train.

A causal language model is adapted, or a Llama trained from nothing, on whole functions; then it learns to write bodies; then
PRISM teaches it to doubt what it wrote. Every method writes the bodies of the same held-out functions, of packages that
nothing was learnt from here, and is judged by whether they are Python and use only names that exist, without running
anything; and, where it is given programming tasks, it solves them, and they are run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prism.data.code import MbppSplit, Task, as_function, load_tasks
from prism.data.function_corpus import FunctionCorpus
from prism.data.function_rows import FunctionBodies, FunctionRows, WholeFunctions
from prism.data.functions import Function
from prism.data.text import load_tokenizer, vocabulary_size
from prism.evaluation.calibration import Asked
from prism.evaluation.code import CodeRun, evaluate_code
from prism.evaluation.extraction import undefined_names
from prism.evaluation.functions import Cost, FunctionsRun, Judging, Jury, write_bodies
from prism.evaluation.record import plain, write_json
from prism.evaluation.sandbox import cores, strongest
from prism.losses.denoising import DenoisingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.adapt import adapt, widening
from prism.models.attach import Lora, PrismModel, attach
from prism.models.backbone import Backbone
from prism.models.folder import Folder
from prism.models.heads import BlockConfig, HeadConfig, OddsConfig, ProjectionConfig
from prism.models.hub import load_backbone
from prism.models.judge import Judged
from prism.models.llama import Llama, LlamaConfig
from prism.recipes.reproduce.workshop import Model, Workshop, on_cpu, on_gpu, to_sample
from prism.recipes.sampling import Sampling
from prism.sampling.draw import Draw
from prism.sampling.order import AwayFrom, Order, RandomOrder, TopProbability
from prism.training import Optimisation, Precision

TEST_SEED = 2026
LORA_LR = 5e-4
EVERY_LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Variant:
    """One way to tune with PRISM: what it learns to doubt, and what learns."""

    about: str
    order: Order | None = None
    """The rule for S; if left out at random, but rarely where the text has probably ended (`AwayFrom`)."""
    head: type[BlockConfig | ProjectionConfig] = OddsConfig
    rank: int | None = None
    """Of LoRA on every linear layer of the backbone; without it the backbone stays as it is, so that all methods write with the
    same one."""
    regulariser: float = 0.0
    """λ, which a backbone that learns needs."""
    rounds: int = 1
    """In how many rounds at the most y is written, each seeing the ones before."""

    def head_for(self, hidden_size: int) -> HeadConfig:
        """Attention heads, where it has any, are 64 wide."""
        if issubclass(self.head, BlockConfig):
            return self.head(hidden_size, heads=max(1, hidden_size // 64))
        return self.head(hidden_size)

    @property
    def lora(self) -> Lora | None:
        return None if self.rank is None else Lora(self.rank, 2.0 * self.rank, EVERY_LAYER)


AT_RANDOM = Variant("S: masks at random", RandomOrder())
HEAD_ALONE = Variant("S: masks at random, few of them ends of text, written in up to four rounds", rounds=4)
WITH_LORA = replace(HEAD_ALONE, about=f"{HEAD_ALONE.about}; and LoRA on the backbone", rank=64, regulariser=5.0)
PAPERS = Variant(
    "the paper's way: its S and head, and LoRA on the backbone", TopProbability(), ProjectionConfig, 64, 0.5
)


@dataclass(frozen=True)
class Scale:
    """How large to do it."""

    pretraining: Optimisation
    """On whole functions; half of it widens the attention of an adapted causal model."""
    conditioning: Optimisation
    """On bodies, their prompts given."""
    finetuning: Optimisation
    """With PRISM, on bodies."""
    hidden_size: int
    """Of the Llama that is trained from nothing, where no causal model is given."""
    layers: int
    heads: int
    loss: PrismLoss
    """But for the rule of S, λ and the rounds, which a variant says."""
    length: int = 256
    """Tokens of prompt, body and what pads it."""
    longest_prompt: int = 128
    """Of held-out functions, so that all have room for a body."""
    validation: int = 512
    """Held-out functions by which checkpoints are chosen, and as many to write, by which each method's amount is."""
    functions: int = 1_024
    """Held-out ones to write that nothing was chosen by: a rate is told within 3 points."""
    compared: int = 1_024
    """As many where PRISM is compared with every other method in random order, or all there are; the same ones first."""
    at_once: int = 256
    steps: tuple[int, ...] = (32, 16, 8)
    ks: tuple[int, ...] = (2, 4)
    """Numbers of tokens to take back at each step, of which every method that takes any tries every one."""
    doubts: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {"random": (0.1, 0.2, 0.3, 0.5), "confidence": (0.9,)}
    )
    """By order, the same for the probability below which a token goes back where there is no number."""
    transfer_steps: int = 32
    """Of the tuned model that judges for others; one of `steps`."""
    block: int = 32
    """Tokens of a block, where bodies are written from left to right."""
    block_steps: tuple[int, ...] = (64, 32)
    k_blocks: tuple[int, ...] = (2, 4, 8)
    """Tokens taken back in each block, every number by every method; the most with the caches, too."""
    refresh: int = 4
    """Steps after which the more careful cache computes everything anew."""
    asked_steps: tuple[int, ...] = ()
    """Where the model is asked about every token instead of its head: 16 of them take up to 8,224 forward passes more."""
    solving_steps: tuple[int, ...] = (32,)
    """Where programs are run; some of `steps`, for which every method has its amount already."""

    variants: Mapping[str, Variant] = field(
        default_factory=lambda: {"prism": WITH_LORA, "head-alone": HEAD_ALONE, "the-papers": PAPERS}
    )
    """Ways to tune by the name of their folder, the main one called prism."""


def _on_two_cores(steps: int, **settings: Any) -> Optimisation:
    """How a model is trained that a CPU can train in an hour."""
    return replace(on_gpu(steps, 64, looks=5, **settings), compile=False, ema=0.995)


SCALES: dict[str, Scale] = {
    "full": Scale(
        pretraining=on_gpu(600, 128, lr=3e-4, warmup=50, looks=1),
        conditioning=on_gpu(2_300, 128, lr=3e-4, warmup=50, looks=1),
        finetuning=on_gpu(400, 128, lr=1e-3, warmup=30, looks=1),
        hidden_size=768,
        layers=12,
        heads=12,
        loss=PrismLoss(k=8, ys=2, draw=Draw(nucleus=0.9)),
        compared=8_192,
    ),
    "small": Scale(  # 4M parameters; functions in a vocabulary of their own, of about 4,096 tokens
        pretraining=_on_two_cores(500, lr=1e-3, muon_lr=3e-3, warmup=50),
        conditioning=_on_two_cores(3_500, lr=1e-3, muon_lr=3e-3, warmup=50),
        finetuning=_on_two_cores(800, lr=1e-3, warmup=30),
        hidden_size=192,
        layers=6,
        heads=3,
        loss=PrismLoss(k=8, draw=Draw(nucleus=0.9)),
        variants={"prism": WITH_LORA},
        length=96,
        longest_prompt=56,
        at_once=64,
        steps=(16, 8),
        ks=(2,),
        doubts={"random": (0.1, 0.2, 0.3, 0.5), "confidence": (0.5, 0.9)},
        transfer_steps=16,
        block=16,
        block_steps=(32, 16),
        k_blocks=(1, 2, 4),
        refresh=2,
        asked_steps=(8,),
        solving_steps=(16, 8),
    ),
    "tiny": Scale(
        pretraining=on_cpu(6, 8, lr=1e-3),
        conditioning=on_cpu(4, 8, lr=1e-3),
        finetuning=on_cpu(4, 8, lr=1e-3),
        hidden_size=32,
        layers=1,
        heads=2,
        loss=PrismLoss(k=4),
        variants={"prism": WITH_LORA, "head-alone": HEAD_ALONE, "S-at-random": AT_RANDOM, "the-papers": PAPERS},
        length=320,
        longest_prompt=240,
        validation=4,
        functions=3,
        compared=4,
        at_once=2,
        steps=(8, 4),
        doubts={"random": (0.1, 0.3), "confidence": (0.9,)},
        transfer_steps=8,
        block_steps=(40,),
        k_blocks=(1, 2),
        refresh=2,
        asked_steps=(4,),
        solving_steps=(4,),
    ),
}


@dataclass(frozen=True)
class Lens:
    """What stands between a model and the loop."""

    name: str
    put: Callable[[Any], Any]


NOTHING = Lens("", lambda model: model)


@dataclass(frozen=True)
class HeldOut:
    """Functions to write: so many of a side, or all there are, in an order by chance."""

    name: str
    split: str
    count: int


class FunctionsStudy:
    """The data, and the models by name, each made when it is first asked for."""

    def __init__(
        self,
        scale: Scale,
        workshop: Workshop,
        data: Path,
        base: str | None,
        tasks: Sequence[str] = (),
        *,
        unsafe: bool = False,
    ) -> None:
        """`tasks` are files or hub names of programming tasks, of MBPP its test split; read now and not after hours of work.
        `unsafe`: their solutions are run even where the machine can isolate them in no way."""
        self.scale, self.workshop, self.base, self.unsafe = scale, workshop, base, unsafe
        self.tasks = _by_name(tasks)
        self.corpus, self.tokens = FunctionCorpus.load(data), data / "tokens"
        self.tokenizer = load_tokenizer(self.tokens / "tokenizer")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.validation = HeldOut("validation functions", "validation", scale.validation)
        """To choose settings by."""
        self.test = HeldOut("test functions", "test", scale.functions)
        more = HeldOut("more test functions", "test", scale.compared)
        self.compared = more if scale.compared > scale.functions else self.test
        """To compare PRISM by with every other method; the first of them are those of `test`."""
        self._held: dict[HeldOut, tuple[list[Function], FunctionRows]] = {}
        self._judgings: dict[Path, Judging] = {}

    @cached_property
    def _jury(self) -> Jury:
        return Jury(min(8, os.cpu_count() or 1))

    def rows(self, split: str) -> FunctionRows:
        return FunctionRows.load(self.tokens, split, self.scale.length)

    @cached_property
    def _training(self) -> FunctionRows:
        return self.rows("train").to(self.device)

    def _held_out(self, *, bodies: bool) -> Batch:
        rows = self.rows("validation")
        chosen = rows[torch.randperm(len(rows), generator=_generator())[: self.scale.validation]]
        return Batch(chosen.tokens.long(), chosen.bodies if bodies else None)

    def to_write(self, held_out: HeldOut) -> tuple[list[Function], FunctionRows]:
        """Those that need nothing of their modules, and their rows."""
        if held_out not in self._held:
            self._held[held_out] = self._self_contained(held_out.split, held_out.count)
        return self._held[held_out]

    def _self_contained(self, split: str, count: int) -> tuple[list[Function], FunctionRows]:
        rows, functions = self.rows(split), list(self.corpus.functions(split))
        fitting = [
            number
            for number, (place, prompt) in enumerate(zip(rows.numbers.tolist(), rows.prompts.tolist(), strict=True))
            if prompt <= self.scale.longest_prompt and not functions[place].unknown
        ]
        order = torch.randperm(len(fitting), generator=_generator()).tolist()
        clean = (n for n in (fitting[i] for i in order) if not undefined_names(functions[int(rows.numbers[n])].text))
        chosen = rows[torch.tensor(list(islice(clean, count)), dtype=torch.long)]
        if not len(chosen):
            raise ValueError(
                f"No {split} function of {self.corpus.folder} has {self.scale.length} tokens at most, "
                f"{self.scale.longest_prompt} of them in its prompt, and needs nothing of its module; make a larger corpus."
            )
        return [functions[number] for number in chosen.numbers.tolist()], chosen

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def pretrained(self) -> Path:
        """A masked diffusion model of whole functions."""
        return self.workshop.model(
            "pretrained",
            self._begin,
            DenoisingLoss(),
            lambda: WholeFunctions(self._training, seed=0),
            lambda: self._held_out(bodies=False),
            self.scale.pretraining,
            each_step=None if self.base is None else self._widening,
        )

    def _begin(self) -> Backbone:
        torch.manual_seed(0)
        known = vocabulary_size(self.tokenizer)
        if self.base is not None:
            adapted = adapt(self.base, shifted=True)
            if adapted.facts.mask_id < known:
                raise ValueError(
                    f"{self.base} knows {adapted.facts.mask_id:,} tokens and the functions were written with {known:,}; "
                    "make them anew with its own tokenizer: prism functions --tokenizer"
                )
            return adapted.to(self.device)
        width, heads = self.scale.hidden_size, self.scale.heads
        return Llama(
            LlamaConfig(
                vocab_size=known + 1,
                mask_id=known,
                length=self.scale.length,
                hidden_size=width,
                layers=self.scale.layers,
                heads=heads,
                kv_heads=heads,
                intermediate_size=8 * width // 3,
                head_size=width // heads,
            )
        )

    def _widening(self, model: Model) -> Callable[[int], object]:
        """Only a causal model has to learn to look ahead."""
        assert isinstance(model, Llama)
        return widening(model, self.scale.pretraining.steps // 2)

    def conditioned(self) -> Path:
        """The same, having learnt to write bodies."""
        return self.workshop.model(
            "conditioned",
            lambda: load_backbone(self.pretrained()),
            DenoisingLoss(),
            lambda: FunctionBodies(self._training, seed=1),
            lambda: self._held_out(bodies=True),
            self.scale.conditioning,
        )

    def before(self) -> Path:
        """The backbone of the tuned model as it was before it learnt for the last time."""
        return self.pretrained() if self.scale.variants["prism"].rank is None else self.conditioned()

    def tuned(self, name: str = "prism") -> Path:
        """The same with PRISM, in the way of that name."""
        variant, end = self.scale.variants[name], self.rows("validation").end
        settings = self.scale.finetuning if variant.rank is None else replace(self.scale.finetuning, lora_lr=LORA_LR)

        def make() -> PrismModel:
            torch.manual_seed(0)
            backbone = load_backbone(self.conditioned())
            return attach(backbone, variant.head_for(backbone.facts.hidden_size), lora=variant.lora)

        return self.workshop.model(
            name,
            make,
            replace(
                self.scale.loss,
                order=variant.order or AwayFrom(end),
                regulariser=variant.regulariser,
                rounds=variant.rounds,
            ),
            lambda: FunctionBodies(self._training, seed=2),
            lambda: self._held_out(bodies=True),
            settings,
        )

    def load(self, path: Path) -> Any:
        return to_sample(path, self.device, half=self.scale.finetuning.precision is Precision.BF16)

    def write(
        self, writer: Path, *samplings: Sampling, lens: Lens = NOTHING, held_out: HeldOut | None = None
    ) -> list[FunctionsRun]:
        """The bodies of held-out functions, those of `test` if no others are named, by the model of that folder, in every way
        that is asked for. One way is judged while the next one is written, and what was ever written is kept."""
        judgings = [self._judging(writer, sampling, lens, held_out or self.test) for sampling in samplings]
        return [judging.run() for judging in judgings]

    def judged_by(self, judge: Path) -> Lens:
        """The quality of another model. What is written goes with that one when it is made anew."""
        return Lens(f"judged by {judge.parent.name}", lambda model: Judged(model, self.load(judge)))

    def asked(self) -> Lens:
        """Its own likelihood of every hidden token in place of its head's quality."""
        return Lens("asked", partial(Asked, length=self.scale.length))

    def _judging(self, writer: Path, sampling: Sampling, lens: Lens, held_out: HeldOut) -> Judging:
        file = self._file(held_out.name, writer, sampling, lens)
        if file not in self._judgings:
            functions, rows = self.to_write(held_out)
            self._judgings[file] = self._jury.call(functions, *self._written(file, writer, sampling, lens, rows))
        return self._judgings[file]

    def solve(self, name: str, writer: Path, sampling: Sampling) -> tuple[CodeRun, Cost]:
        """Programming tasks, run. One whose prompt leaves no room is left as it is, which is no solution."""
        tasks = self.tasks[name]
        prompts = [as_function(task) for task in tasks]
        rows = FunctionRows.asking(prompts, self.tokenizer, self.scale.length)
        # files of one name may hold other tasks
        known_by = hashlib.blake2b(rows.tokens.numpy().tobytes(), digest_size=4).hexdigest()
        file = self._file(f"{name} {known_by}", writer, sampling, NOTHING)
        bodies, cost = self._written(file, writer, sampling, NOTHING, rows)
        programs = list(prompts)
        for number, body in zip(rows.numbers.tolist(), bodies, strict=True):
            programs[number] += body
        found = {task.id: [program] for task, program in zip(tasks, programs, strict=True)}
        return evaluate_code(tasks, found, isolation=strongest(self.unsafe), workers=cores()), cost

    def _file(self, what: str, writer: Path, sampling: Sampling, lens: Lens) -> Path:
        """Beside the model that was made last, so that bodies go with it when it is made anew."""
        way = " ".join(f"{name}={value}" for name, value in sampling.described().items())
        name = ", ".join(part for part in (what, writer.parent.name, way, lens.name) if part)
        return self.tuned().parent / "written" / f"{name}.json"

    def _written(
        self, file: Path, writer: Path, sampling: Sampling, lens: Lens, rows: FunctionRows
    ) -> tuple[list[str], Cost]:
        """From the file, or by the model and into it."""
        if not file.is_file():
            model = lens.put(self.load(writer))
            assert sampling.steps is not None
            bodies, cost = write_bodies(
                model,
                self.tokenizer,
                rows,
                sampling.build_policy(),
                steps=sampling.steps,
                mask_id=model.facts.mask_id,
                draw=self.scale.loss.draw,
                block=sampling.block,
                batch=self.scale.at_once,
                device=self.device,
            )
            counts = {name: np.asarray(value).tolist() for name, value in asdict(cost).items()}
            write_json(file, {"sampling": plain(sampling), "bodies": bodies, "cost": counts})
            self.workshop.tell(f"  {file.stem}: {cost.seconds:.1f} s")
        found = Folder(file.parent).json(file.name)
        seconds = found["cost"].pop("seconds")
        return found["bodies"], Cost(
            **{name: np.array(counts) for name, counts in found["cost"].items()}, seconds=seconds
        )


def _by_name(sources: Sequence[str]) -> dict[str, list[Task]]:
    """The tasks of each source by the name under which its results are kept."""
    found: dict[str, list[Task]] = {}
    for source in dict.fromkeys(sources):
        if (name := Path(source).name) in found:
            raise ValueError(f"Two files of tasks are called {name}, so their results would be too; rename one.")
        tasks = load_tasks(source)
        found[name] = MbppSplit.TEST.of(tasks) if tasks[0].id.startswith("Mbpp/") else tasks
        if not found[name]:
            raise ValueError(f"{source}: no task of MBPP's test split is in it; name a file that has some.")
    return found


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(TEST_SEED)
