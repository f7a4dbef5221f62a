"""prism pretrain, prism adapt, prism finetune."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from prism.cli.command import (
    Command,
    check_folder,
    console,
    own_length,
    parameters,
    progress,
    show_record,
    warn_of_length,
)
from prism.cli.material import Material, WithData
from prism.data import sudoku
from prism.data.conversations import FORMS, Conversation, Conversations, Padding, encode
from prism.data.text import end_of_text, load_tokenizer
from prism.data.writing import TOKENIZER_FILES, has_tokenizer, may_be_npy
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import weights_digest
from prism.losses.loss import TrainingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.adapt import adapt, widening
from prism.models.attach import PrismModel, attach
from prism.models.backbone import Backbone, Facts
from prism.models.dit import DiT, DiTConfig
from prism.models.four_bit import import_bitsandbytes, in_four_bits, outline_in_four_bits
from prism.models.hub import load_backbone, locate, outline_backbone, save_backbone
from prism.models.llama import Llama
from prism.recipes import sudoku as recipe
from prism.recipes.adapting import adapt_to
from prism.recipes.training import (
    AttachmentOptions,
    ConversationOptions,
    LossOptions,
    MaskingOptions,
    TrainingOptions,
    held_out_loss,
)
from prism.training import calibrate, train, use_ema, whole_state
from prism.training.folder import check_new
from prism.training.loop import check_trackers
from prism.training.memory import Memory, estimate
from prism.training.meter import Share
from prism.training.sharding import launched

WHAT_TO_LEARN = "say what to learn from: --data chat.jsonl, a folder of prism tokenize or a .npy file, or --dataset."


@dataclass(frozen=True, kw_only=True)
class _Run(WithData, TrainingOptions, Command):
    smaller: ClassVar[str] = (
        "take a larger --accumulate, --recompute true, a shorter --length, or more GPUs and fsdp2.yaml"
    )

    output: Path
    """Folder for the model; checkpoints and log go to its `training` folder."""
    resume: bool = False
    """Continue from the newest checkpoint in --output, with the same settings."""
    trackers: tuple[str, ...] = ()
    """tensorboard, wandb."""

    def check(self) -> None:
        super().check()
        check_folder("--output", self.output)
        if not self.resume:
            check_new(self.training)
        check_trackers(self.trackers)
        settings = self.build_optimisation()
        Share(settings.batch, settings.accumulate, launched()[0], process=0)  # which refuses what cannot be shared out
        if self.ends and not Path(self.data).is_dir():
            raise ValueError(f"--ends: only text has ends, a folder of prism tokenize, and not --data {self.data}.")

    def announce(self, model: Backbone | PrismModel, loss: TrainingLoss, material: Material) -> None:
        """What is to come, and whether there is room for it; of a model that may be an outline on the meta device."""
        processes, shards = launched()
        turns = loss.passes_by_turn  # alone, each goes its way back before the next begins
        passes = max(turns) if processes == 1 else sum(turns)
        settings, rows, length = self.build_optimisation(), self.rows_at_once, material.length
        needed = estimate(model, settings, rows=rows, length=length, passes=passes, shards=shards)
        learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
        console.print(
            f"{parameters(model):,} parameters, {learning:,} of them learn; "
            f"{material.count:,} sequences of {length} tokens, {self.steps:,} steps of {self.batch}"
        )
        console.print(told(needed, rows, length))
        console.print(warned(needed, _room_for(model), self.smaller), end="")

    @property
    def training(self) -> Path:
        """Where checkpoints and log lie."""
        return self.output / "training"

    @property
    def rows_at_once(self) -> int:
        """Sequences a process learns from between two looks back."""
        return max(1, self.batch // (launched()[0] * self.accumulate))

    def fit(
        self,
        model: Backbone | PrismModel,
        loss: TrainingLoss,
        material: Material,
        each_step: Callable[[int], object] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> _Fitted:
        """Train, and take the averaged weights. A run that is resumed must begin with the same weights and the same data."""
        same = {"data": material.digest(), "first_weights": weights_digest(model)[:16]}
        rows, settings = self.rows_at_once, self.build_optimisation()
        trained = train(
            model,
            loss,
            material.examples,
            settings,
            folder=self.training,
            resume=self.resume,
            evaluate=held_out_loss(loss, material.held_out, at_once=rows),
            each_step=each_step,
            notes=same | dict(notes or {}),
            trackers=self.trackers,
        )
        if trained.has_ema:
            use_ema(model, trained.checkpoint)
        calibration = {}
        if isinstance(model, PrismModel):
            with trained.evaluating():
                calibration = calibrate(model, material.held_out, loss, at_once=rows)
        last = {
            name.removeprefix("evaluation/"): value
            for line in trained.history
            for name, value in line.items()
            if name.startswith("evaluation/")
        }
        if trained.is_main:
            console.print("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in last.items()))
        if trained.is_main and calibration:
            was, now = calibration["before"], calibration["after"]
            console.print(f"quality calibrated for tokens at all places: loss there {was:.4f}, now {now:.4f}")
        return _Fitted(last, whole_state(model), trained.is_main, calibration)

    def save(self, model: Backbone, fitted: _Fitted, material: Material) -> None:
        """A backbone, and the tokenizer it was trained with."""
        save_backbone(model, self.output / "backbone", state=fitted.weights)
        if material.text is not None:
            material.text.tokenizer.save_pretrained(self.output)
        console.print(f"saved to {self.output}; next: prism finetune --model {self.output} --output …")


@dataclass(frozen=True, kw_only=True)
class _RunOnBoards(_Run):
    """A run that may learn from Sudoku boards."""

    data: str = "sudoku"
    """sudoku (boards made from --data_seed), a folder of prism tokenize, a .npy file of token ids, one sequence a row, or (for
    finetune) JSON lines of conversations: {"prompt": …, "completion": …} or {"messages": [{"role": …, "content": …}, …]}."""
    data_seed: int = 0
    """Seed of the generated boards, and of the conversations held out."""
    boards: int = recipe.TRAINING_BOARDS
    """How many boards to make for training."""
    augment: bool = True
    """Sudoku: show every board under a fresh symmetry of the game each time."""

    @property
    def makes_boards(self) -> bool:
        return self.data == "sudoku"

    def check(self) -> None:
        super().check()
        if not self.makes_boards and (self.boards != recipe.TRAINING_BOARDS or not self.augment):
            raise ValueError("--boards and --augment are of --data sudoku; leave them out with other data.")

    def found(self, seed: int, vocab_size: int | None, own: int | None) -> Material:
        return self._boards(seed) if self.makes_boards else super().found(seed, vocab_size, own)

    def _boards(self, seed: int) -> Material:
        if self.boards < 1:
            raise ValueError(f"--boards {self.boards}: make at least 1 board.")
        self.check_rows(sudoku.LENGTH, "a board")
        rows = recipe.board_tokens(self.boards + self.held_out, self.data_seed)
        learn, aside = rows[: -self.held_out], rows[-self.held_out :].long()
        examples = recipe.examples(learn, seed=seed, augment=self.augment)
        held_out = Batch(aside, recipe.cells_only(len(aside)))
        content = hashlib.sha256(rows.numpy().data).hexdigest()
        return Material(examples, held_out, len(learn), sudoku.VOCABULARY, sudoku.MASK, content)


def told(needed: Memory, rows: int, length: int) -> str:
    """One line about memory."""
    size, unit = (1e9, "GB") if needed.total >= 1e9 else (1e6, "MB")
    return (
        f"about {needed.total / size:.1f} {unit} on each device: weights {needed.weights / size:.1f}, gradients, moments and "
        f"average {needed.learning / size:.1f}, activations {needed.activations / size:.1f} ({rows} sequences of {length} at "
        "once)"
    )


def warned(needed: Memory, free: int | None, smaller: str) -> str:
    if free is None or needed.total <= free:
        return ""
    return f"[yellow]The GPU has {free / 1e9:.1f} GB free; {smaller}.[/yellow]\n"


def _room_for(model: Backbone | PrismModel) -> int | None:
    """Bytes of GPU memory that are free, or taken by this very model; None where there is no GPU."""
    if not torch.cuda.is_available():
        return None
    there = sum(weight.nbytes for weight in model.parameters() if weight.is_cuda)
    return torch.cuda.mem_get_info(_own_gpu())[0] + there


def _own_gpu() -> torch.device:
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def _home(*, packed: bool) -> torch.device:
    """Where a model is read to: this process's GPU, past the host's memory. The host where there is none, and where one GPU is
    not to hold the whole model: cut up among several it gets its part, packed into four bits it gets it layer by layer."""
    from accelerate.utils import parse_flag_from_env

    to_gpu = torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")
    return _own_gpu() if to_gpu and not packed and launched()[1] == 1 else torch.device("cpu")


@dataclass(frozen=True)
class _Fitted:
    held_out: dict[str, float]
    """The last evaluation."""
    weights: dict[str, torch.Tensor]
    """All of them, also where every process trained only a part."""
    is_main: bool
    """Whether this process is the one that saves."""
    calibration: dict[str, float]
    """Of a quality head that needs one."""


@dataclass(frozen=True, kw_only=True)
class Pretrain(MaskingOptions, _RunOnBoards):
    """Train a masked diffusion model (MDLM's diffusion transformer) from scratch."""

    hidden_size: int = 256
    """Width."""
    layers: int = 6
    """Depth."""
    heads: int = 8
    """Attention heads."""
    dropout: float = 0.0
    """Dropout."""
    vocab_size: int | None = None
    """For --data FILE: token ids and the mask; the largest id + 2 if left out, the mask being the last one. For text: the
    tokenizer's and a mask if left out; more leaves ids unused."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        loss, _ = self.build_denoising(), self.build_optimisation()
        material = self.read(self.seed, self.vocab_size)
        torch.manual_seed(self.seed)
        model = DiT(self._config(material))
        self.announce(model, loss, material)
        fitted = self.fit(model, loss, material)
        record = clock.record("pretrain", self, seed=self.seed, model=model)
        if fitted.is_main:
            self.save(model, fitted, material)
            show_record(record)
        return {"held_out": fitted.held_out, "record": plain(record)}

    def _config(self, material: Material) -> DiTConfig:
        return DiTConfig(
            vocab_size=material.vocab_size,
            mask_id=material.mask_id,
            length=material.length,
            hidden_size=self.hidden_size,
            blocks=self.layers,
            heads=self.heads,
            dropout=self.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class Adapt(MaskingOptions, _Run):
    """Turn a causal Llama, Mistral or Qwen into a masked diffusion model: a mask token, bidirectional attention, training."""

    model: str
    """Folder, hub name or GGUF file of the causal model."""
    data: str
    """A folder of prism tokenize, made with the model's tokenizer, or a .npy file of token ids, one sequence a row."""
    shifted: bool = True
    """Go on reading the prediction of token i at position i - 1, as the causal model did (Dream, DiffuLLaMA); false: at i."""
    widen: int = 0
    """Steps over which attention widens from the past to both sides (DiffuLLaMA's annealing); 0 for both sides at once."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        loss, _ = self.build_denoising(), self.build_optimisation()
        if not 0 <= self.widen <= self.steps:
            raise ValueError(f"--widen {self.widen}: must be in 0..{self.steps}, or attention is not whole at the end.")
        material = self.read(self.seed)
        model = self._start(material)
        self.announce(model, loss, material)
        notes = {"shifted": self.shifted, "widen": self.widen}
        fitted = self.fit(model, loss, material, widening(model, self.widen), notes)
        model.future = 1.0  # also after a resumed run that had nothing left to do
        record = clock.record("adapt", self, seed=self.seed, model=model)
        if fitted.is_main:
            self.save(model, fitted, material)
            show_record(record)
        return {"held_out": fitted.held_out, "record": plain(record)}

    def _start(self, material: Material) -> Llama:
        """The causal model with a mask, in float32."""
        if material.text is None:
            model = adapt(self.model, shifted=self.shifted, length=material.length)
            if material.vocab_size > model.facts.vocab_size:
                raise ValueError(
                    f"{self.data} has token ids up to {material.vocab_size - 2}; the model knows 0..{model.facts.mask_id - 1}."
                )
            return model.float()
        corpus, tokenizer = material.text.corpus, material.text.tokenizer
        return adapt_to(corpus, tokenizer, self.model, shifted=self.shifted, length=material.length)


@dataclass(frozen=True, kw_only=True)
class Finetune(LossOptions, AttachmentOptions, ConversationOptions, _RunOnBoards):
    """Attach a quality head to a masked diffusion model and train it with the PRISM loss."""

    smaller: ClassVar[str] = f"{_Run.smaller}, or LoRA (--lora_rank) on --base bfloat16 or --base 4bit"

    recipe: str | None = None
    """Begin from the settings of a published run, llada; whatever else is given here goes before them."""
    model: str
    """Folder or hub name of the pretrained model."""
    mask_id: int | None = None
    """The mask token, for models whose config does not name it."""

    @property
    def makes_boards(self) -> bool:
        return self.dataset is None and super().makes_boards

    def check(self) -> None:
        super().check()
        self.check_dataset(None if super().makes_boards else self.data)
        self._check_data(Path(self.data))
        if self.recipe is not None and self.makes_boards:
            raise ValueError(f"--recipe {self.recipe} learns text and --data sudoku makes boards; {WHAT_TO_LEARN}")
        self.base_dtype()
        self.build_padding()
        self.build_too_long()
        if self.in_four_bits:
            if not torch.cuda.is_available():
                raise ValueError("--base 4bit needs an NVIDIA GPU and this machine has none; use --base bfloat16.")
            if launched()[1] > 1:
                raise ValueError("--base 4bit cannot be sharded; launch with ddp.yaml, or use --base bfloat16.")
            import_bitsandbytes()

    def _check_data(self, path: Path) -> None:
        """Whether a file may be what there is to learn from."""
        if self.makes_boards or path.is_dir() or self.holds_conversations(self.data):
            return
        if not (path.is_file() and may_be_npy(path)):
            why = "neither JSON lines nor a .npy array" if path.is_file() else "no such file"
            raise ValueError(
                f"{path}: {why}; to learn conversations name JSON lines (.jsonl), on each {FORMS}; to learn text a folder of "
                "prism tokenize, or a .npy array of token ids, one sequence a row."
            )

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        loss, _ = self.build_loss(), self.build_optimisation()
        if self.head == "none" and self.target == "quality":
            raise ValueError("--head none has nothing to learn quality with; give a head, or --target likelihood.")
        inside = Path(self.model) / "backbone"  # where prism pretrain puts it
        beside = Path(self.model) if inside.is_dir() else locate(self.model)
        local = inside if inside.is_dir() else Path(self.model)
        source = str(local.resolve()) if local.is_dir() else self.model
        found = list(self.read_conversations(self.data)) if self.holds_conversations(self.data) else None
        outline = outline_backbone(source, dtype=self.base_dtype(), mask_id=self.mask_id)
        material = self._material(found, outline, beside)
        warn_of_length(outline, material.length)
        self.announce(self._outlined(outline), loss, material)
        model = self._loaded(source)
        fitted = self.fit(model, loss, material)
        record = clock.record("finetune", self, seed=self.seed, model=model)
        if fitted.is_main:
            self._save(model, fitted, source, beside, loss)
            show_record(record)
        return {"held_out": fitted.held_out, "calibration": fitted.calibration, "record": plain(record)}

    def _outlined(self, backbone: Backbone) -> PrismModel:
        """What will learn, on the meta device."""
        with torch.device("meta"):
            return self._attached(outline_in_four_bits(backbone) if self.in_four_bits else backbone)

    def _loaded(self, source: str) -> PrismModel:
        """What will learn, with its weights."""
        home = _home(packed=self.in_four_bits)
        backbone = load_backbone(source, dtype=self.base_dtype(), device=home, mask_id=self.mask_id)
        if self.in_four_bits:
            backbone = in_four_bits(backbone, _own_gpu())
        torch.manual_seed(self.seed)
        return self._attached(backbone)

    def _attached(self, backbone: Backbone) -> PrismModel:
        head, lora = self.build_head(backbone.facts.hidden_size), self.build_lora()
        return attach(backbone, head, lora=lora, tune_backbone=self.backbone_learns)

    def _material(self, found: list[Conversation] | None, backbone: Backbone, beside: Path) -> Material:
        """For the backbone, which may be an outline."""
        if found is not None:
            return self._conversations(found, backbone, beside)
        if self.makes_boards:
            self._check_boards(backbone.facts)
        material = self.read(self.seed, backbone.facts.vocab_size, own_length(backbone))
        if material.text is not None and has_tokenizer(beside):
            material.text.corpus.require_tokenizer(load_tokenizer(beside), f"that of {self.model}")
        return material

    def _check_boards(self, facts: Facts) -> None:
        """Whether the model knows what boards are made of, and no more."""
        if (facts.vocab_size, facts.mask_id) != (sudoku.VOCABULARY, sudoku.MASK):
            raise ValueError(
                f"--data sudoku makes boards, with vocabulary {sudoku.VOCABULARY} and mask {sudoku.MASK}, and {self.model} has "
                f"vocabulary {facts.vocab_size:,} and mask {facts.mask_id}; {WHAT_TO_LEARN}"
            )

    def _conversations(self, found: list[Conversation], backbone: Backbone, beside: Path) -> Material:
        if not has_tokenizer(beside):
            raise ValueError(
                f"{self.model} has no tokenizer beside its weights, which conversations need; put one there."
            )
        length = self.tokens_of(own_length(backbone))
        if length < 2:
            raise ValueError(f"--length {length}: a prompt and its answer are at least 2 tokens.")
        facts, tokenizer = backbone.facts, load_tokenizer(beside)
        with progress("conversations", len(found)) as report:
            encoded = encode(
                found,
                tokenizer,
                length=length,
                too_long=self.build_too_long(),
                mask_id=facts.mask_id,
                vocab_size=facts.vocab_size,
                report=report,
            )
        source, kept = self.dataset or self.data, len(encoded.exchanges)
        if kept <= self.held_out:
            raise ValueError(
                f"{source} has {len(found)} conversations, {encoded.dropped} of them longer than --length {length}; "
                f"--held_out {self.held_out} leaves none to learn from."
            )
        rows = Conversations(encoded.exchanges, length, end_of_text(tokenizer), self.build_padding(), self.seed)
        learn, aside = rows.split(self.held_out, self.data_seed)
        answers = sum(len(exchange.tokens) - exchange.prompt for exchange in encoded.exchanges)
        padding = sum(length - len(exchange.tokens) for exchange in encoded.exchanges)
        learned = padding if rows.padding is Padding.LEARNED else 0
        console.print(
            f"{kept:,} conversations ({encoded.dropped:,} dropped and {encoded.truncated:,} cut short, being longer than "
            f"{length} tokens); {answers:,} tokens of answers and {learned:,} of padding to learn"
        )
        held_out = aside.read(range(len(aside)))
        return Material(learn, held_out, len(learn), facts.vocab_size, facts.mask_id, rows.digest())

    def _save(self, model: PrismModel, fitted: _Fitted, source: str, beside: Path, loss: PrismLoss) -> None:
        notes = {"loss": plain(loss), "training": plain(self.build_optimisation()), "held_out": fitted.held_out}
        notes |= {"calibration": fitted.calibration} if fitted.calibration else {}
        if model.tuned:
            own = {
                name.removeprefix("backbone."): w for name, w in fitted.weights.items() if name.startswith("backbone.")
            }
            save_backbone(model.backbone, self.output / "backbone", state=own)
        if model.quality_head is not None or model.lora is not None:
            base = "../backbone" if model.tuned else source
            model.save(self.output / "corrector", base=base, notes=notes, state=fitted.weights)
        for name in TOKENIZER_FILES:
            if (found := beside / name).is_file():
                shutil.copy(found, self.output / name)
        task = "evaluate sudoku" if self.makes_boards else "sample"
        unjudged = " --policy prism-likelihood" if model.quality_head is None else ""
        console.print(f"saved to {self.output}; next: prism {task} --model {self.output}{unjudged}")
