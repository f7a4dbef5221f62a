"""PRISM on a tiny LLaDA in the hub's format, from the command line: the recipe, conversations, the adapter folder."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, configuration, in_two_processes
from safetensors.torch import load_file
from test_llama import both_ways
from test_published import DREAM, as_dream, llada, published
from texts import chat_tokenizer, write_conversations, write_tokenizer

import prism
from prism.cli import main
from prism.cli.parser import parse
from prism.cli.train import Finetune, told, warned
from prism.models.attach import attach
from prism.models.hub import load_backbone, outline_backbone
from prism.recipes.training import RECIPES
from prism.training.memory import Memory, estimate

MASK = 5
SMALL = "--lora_rank 4 --lora_alpha 4 --batch 4 --accumulate 2 --length 64 --held_out 6 --log_every 1"
RECIPE = ["finetune", "--recipe", "llada", "--model", "m", "--output", "o"]

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's own, when oneDNN is switched off


@pytest.fixture(autouse=True)
def plain_products() -> Iterator[None]:
    """Some virtual machines announce instructions for bfloat16 and then forbid them."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`llada`, weights in bfloat16 and tokenizer beside them, and `chat.jsonl`."""
    path = tmp_path_factory.mktemp("hub")
    model = both_ways(vocab_size=320, mask_id=MASK, length=64, head_size=6).to(torch.bfloat16)
    llada(path, model, vocab_size=320, embedding_size=320, mask_token_id=MASK)
    chat_tokenizer().save_pretrained(path / "llada")
    write_conversations(path / "chat.jsonl", 40)
    return path


def finetune(folder: Path, output: Path, *words: str) -> list[str]:
    start = ["finetune", "--recipe", "llada", "--model", str(folder / "llada"), "--data", str(folder / "chat.jsonl")]
    return [*start, "--output", str(output), *SMALL.split(), *words]


# ── the recipe ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_paper_s_settings() -> None:
    command = parse([*RECIPE, "--data", "d.jsonl"])
    assert isinstance(command, Finetune)
    loss, lora, settings = command.build_loss(), command.build_lora(), command.build_optimisation()
    assert (loss.k, loss.ys, loss.regulariser, loss.draw.temperature) == (8, 1, 0.5, 0.0)
    assert lora == prism.Lora(256, 256.0, ("q_proj", "k_proj", "v_proj"), 0.1)
    assert command.build_head(4096) == prism.ProjectionConfig(4096)
    assert (settings.lr, settings.batch, settings.weight_decay, settings.warmup) == (1e-4, 144, 0.1, 3900)
    assert settings.rate == prism.training.CosineCycles(5.0)
    assert settings.precision is prism.Precision.BF16
    assert command.base_dtype() == torch.bfloat16


def test_what_the_user_says_goes_first(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: llada\nk: 3\nbatch: 12\n")
    for words in (RECIPE, ["finetune", "--model", "m", "--output", "o"]):
        command = parse([*words, "--config", str(tmp_path / "mine.yaml"), "--batch", "24", "--steps", "100"])
        assert isinstance(command, Finetune)
        assert (command.k, command.batch, command.lr, command.recipe) == (3, 24, 1e-4, "llada")
        assert command.build_optimisation().warmup == 5
    plain = parse(["finetune", "--model", "m", "--output", "o"])
    assert isinstance(plain, Finetune)
    assert (plain.k, plain.lora_rank) == (4, None)


def test_every_line_of_a_recipe_is_an_option() -> None:
    for name in RECIPES:
        parse(["finetune", "--recipe", name, "--model", "m", "--output", "o"])


# ── from data to adapter ────────────────────────────────────────────────────────────────────────────────────────────


def test_end_to_end(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned, out, hub = tmp_path / "tuned", tmp_path / "out.json", tmp_path / "hub"
    shutil.copytree(folder, hub)
    assert main(finetune(hub, tuned, "--steps", "3", "--json", str(out))) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "40 conversations (0 dropped and 0 cut short" in said
    assert "34 sequences of 64 tokens, 3 steps of 4" in said
    assert "MB on each device: weights" in said
    assert f"next: prism sample --model {tuned}" in said
    assert {"loss", "quality", "denoising", "right"} == json.loads(out.read_text())["held_out"].keys()

    assert {path.name for path in (tuned / "corrector").iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "prism_config.json",
        "README.md",
    }
    weights = load_file(tuned / "corrector" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(".lora_" in name or ".quality_head." in name for name in weights)
    assert {name.split(".")[-3] for name in weights if ".lora_" in name} == {"q_proj", "k_proj", "v_proj"}
    assert not [name for name in weights if "lm_head" in name]
    assert not (tuned / "backbone").exists()

    model = prism.load_model(tuned)
    assert isinstance(model, prism.PrismModel)
    with torch.no_grad():
        x = torch.randint(6, 320, (2, 20), generator=torch.Generator().manual_seed(0))
        quality = model.predict(x).quality
    assert quality.shape == (2, 20)
    assert bool(((quality > 0) & (quality < 1)).all())
    assert float(quality.std()) > 0

    words = ["sample", "--prompt", "the cat", "--length", "12", "--k", "1", "--steps", "6", "--model"]
    assert main([*words, str(tuned), "--json", str(out)]) == 0
    assert MASK not in json.loads(out.read_text())["tokens"][0]
    assert (tuned / "chat_template.jinja").is_file()

    moved, written = tmp_path / "moved", out.read_text()
    (hub / "llada").rename(moved)
    assert main([*words, str(tuned)]) == 2
    assert "say where it is: --backbone FOLDER beside --model" in capsys.readouterr().err
    assert main([*words, str(tuned / "corrector"), "--backbone", str(moved), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["texts"] == json.loads(written)["texts"]


def test_dream_takes_the_same_recipe(folder: Path, tmp_path: Path) -> None:
    """Its tokenizer brings code of its own, which is not run; its conversations come from a dataset."""
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    model = both_ways(vocab_size=330, mask_id=321, length=64, head_size=6, qkv_bias=True, norm_eps=1e-6)
    weights = {as_dream(name): weight for name, weight in model.state_dict().items()}
    dream = published(tmp_path / "dream", DREAM | {"vocab_size": 330, "mask_token_id": 321}, weights)
    write_tokenizer(dream)
    for name in ("vocab.json", "merges.txt"):
        (dream / f"tiny-{name}").rename(dream / name)
    added = {str(320 + i): {"content": token, "special": True} for i, token in enumerate(["<|im_end|>", "<|mask|>"])}
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>\n{% endfor %}"
    settings = {"tokenizer_class": "DreamTokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    settings |= {"eos_token": "<|endoftext|>", "mask_token": "<|mask|>", "added_tokens_decoder": added}
    settings["chat_template"] = template + "{% if add_generation_prompt %}assistant:{% endif %}"
    (dream / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "data").mkdir()
    pairs = [{"instruction": f"{number}?", "output": "the cat sat"} for number in range(20)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    words = ["finetune", "--recipe", "llada", "--model", str(dream), "--dataset", str(tmp_path / "data")]
    words += ["--prompt_field", "instruction", "--completion_field", "output", "--output", str(tmp_path / "tuned")]
    assert main([*words, *SMALL.split(), "--steps", "2"]) == 0
    tuned = prism.load_model(tmp_path / "tuned")
    assert tuned.facts.field is prism.Field.SHIFTED
    assert prism.data.text.load_tokenizer(tmp_path / "tuned").chat_template is not None


def test_what_learns_is_float32_on_a_frozen_bfloat16_base(folder: Path) -> None:
    lora = prism.Lora(rank=2, alpha=2.0, targets=("q_proj",))
    model = attach(load_backbone(folder / "llada"), prism.ProjectionConfig(24), lora=lora)
    learns = {weight.dtype for group in model.trainable().values() for weight in group}
    frozen = {weight.dtype for weight in model.parameters() if not weight.requires_grad}
    assert (learns, frozen) == ({torch.float32}, {torch.bfloat16})


def test_a_backbone_that_learns_is_float32_though_stored_in_bfloat16(folder: Path, tmp_path: Path) -> None:
    words = finetune(folder, tmp_path / "tuned", "--steps", "1", "--lora_rank", "null", "--base", "auto")
    assert main(words) == 0
    checkpoint = load_file(tmp_path / "tuned" / "training" / "checkpoints" / "step-00000001" / "weights.safetensors")
    assert "backbone.layers.0.mlp.up_proj.weight" in checkpoint
    assert {weight.dtype for weight in checkpoint.values()} == {torch.float32}


def test_interrupted_and_resumed_it_ends_with_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LoRA's dropout, the order of the conversations and the moments included."""
    words = ["--steps", "6", "--checkpoint_every", "2", "--padding", "unseen"]
    assert main(finetune(folder, tmp_path / "calm", *words)) == 0

    def fail(*_: Any, **__: Any) -> Any:
        def measure(model: Any, step: int) -> dict[str, float]:
            raise KeyboardInterrupt

        return measure

    with monkeypatch.context() as patch:
        patch.setattr("prism.cli.train.held_out_loss", fail)
        assert main([*finetune(folder, tmp_path / "run", *words), "--evaluate_every", "5"]) == 130
    assert not (tmp_path / "run" / "corrector").exists()
    assert main([*finetune(folder, tmp_path / "run", *words), "--resume", "true"]) == 0
    for file in ("training/checkpoints/step-00000006/moments.safetensors", "corrector/adapter_model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "calm" / file).read_bytes(), file


def test_a_run_is_not_resumed_with_other_conversations_or_another_scale(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One other answer of forty, and LoRA's scale, which the first weights do not tell."""
    words = finetune(folder, tmp_path / "run", "--steps", "1")
    assert main(words) == 0
    lines = (folder / "chat.jsonl").read_text().splitlines(keepends=True)
    other = tmp_path / "other.jsonl"
    other.write_text("".join([*lines[:20], lines[0], *lines[21:]]))
    for changed, said in ((["--data", str(other)], "data="), (["--lora_alpha", "8"], "lora=Lora(rank=4, alpha=4.0")):
        capsys.readouterr()
        assert main([*words, *changed, "--resume", "true"]) == 2
        assert f"was begun with {said}" in capsys.readouterr().err


def test_the_documented_commands_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand, on files of those names, with a smaller adapter."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "llada", "GSAI-ML/LLaDA-8B-Instruct")
    lines = page.partition("```json\n")[2].partition("```")[0]
    Path("chat.jsonl").write_text(lines * 20)
    commands = [shlex.split(line, comments=True) for line in page.split("```")[1].splitlines()[1:]]
    smaller = {"finetune": [*SMALL.split(), "--steps", "2", "--length", "200"], "score": []}
    assert [words[:2] for words in commands] == [["prism", command] for command in smaller]
    for (_, command, *words), options in zip(commands, smaller.values(), strict=True):
        assert main([command, *words, *options]) == 0, capsys.readouterr().err
    assert re.search(r"40 conversations \(0 dropped", capsys.readouterr().out)


def test_what_learns_is_as_large_as_the_paper_says() -> None:
    """LLaDA-8B without its weights; the paper rounds 218M to 240M and 250M."""
    sizes = {
        "hidden_size": 4096,
        "layers": 32,
        "heads": 32,
        "kv_heads": 32,
        "intermediate_size": 12288,
        "head_size": 128,
    }
    command = parse([*RECIPE, "--data", "d.jsonl"])
    assert isinstance(command, Finetune)
    with torch.device("meta"):
        backbone = prism.Llama(prism.LlamaConfig(vocab_size=126464, mask_id=126336, length=4096, **sizes))
        model = attach(backbone, command.build_head(4096), lora=command.build_lora())
    learned = {name: sum(weight.numel() for weight in group) for name, group in model.trainable().items()}
    assert learned == {"backbone": 0, "lora": 201_326_592, "head": 16_793_601}


# ── several processes ───────────────────────────────────────────────────────────────────────────────────────────────


EXACT = ["--lora_dropout", "0", "--precision", "fp32", "--base", "float32", "--accumulate", "2"]
CLIPPED = ["--steps", "2", "--clip", "0.1", *EXACT]


def recipe(folder: Path, output: Path) -> list[str]:
    """The recipe as it is: LoRA and head in float32 beside what is frozen in bfloat16, blocks computed anew."""
    return [*finetune(folder, output, "--steps", "4", "--checkpoint_every", "2"), "--accumulate", "1"]


@pytest.fixture(scope="module")
def together(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What two processes make in one launch with a configuration that comes with the package, in a folder: under its name
    what a single process must agree with; `run`, resumed after it was killed; and `before`, the adapter it would have made."""

    @functools.cache
    def made(way: str) -> Path:
        path = tmp_path_factory.mktemp(way)
        words, run = recipe(folder, path / "run"), path / "run"
        steps = [
            {"words": finetune(folder, path / way, *CLIPPED)},
            {"words": words},
            {"move": [str(run / "corrector"), str(path / "before")]},
            {"move": [str(run / "training" / "checkpoints" / "step-00000004")]},  # as if killed before it
            {"words": [*words, "--resume", "true"]},
        ]
        if way == "fsdp2":  # without sharding it is the other way
            alike = {"words": finetune(folder, path / "ddp", *CLIPPED), "environment": {"ACCELERATE_USE_FSDP": "false"}}
            steps.append(alike)
        (path / "steps.json").write_text(json.dumps(steps))
        environment = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # see `plain_products`
        script = [str(ROOT / "tests" / "commands_script.py"), str(path / "steps.json")]
        said = in_two_processes(configuration(way), script, **environment)
        assert said.count("34 sequences") == sum("words" in step for step in steps)  # one of them speaks
        assert ("deepspeed_shm_comm_op built" in said) == (way == "deepspeed")  # what its engine says on CPUs
        return path

    return made


needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (`pip install deepspeed`; on a CPU it compiles for minutes, so CI leaves it out)",
)
zero = pytest.param("deepspeed", marks=needs_deepspeed)


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a single process makes."""
    path = tmp_path_factory.mktemp("alone") / "one"
    with torch.backends.mkldnn.flags(enabled=False):  # see `plain_products`
        assert main(finetune(folder, path, *CLIPPED)) == 0
    return path


@pytest.mark.parametrize("way", ["ddp", "fsdp2", zero])
def test_two_processes_agree_with_one(alone: Path, together: Callable[[str], Path], way: str) -> None:
    """Without dropout, which each process draws for itself."""
    runs = alone, together("fsdp2" if way == "ddp" else way) / way
    one, two = (load_file(run / "corrector" / "adapter_model.safetensors") for run in runs)
    torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-3)
    logs = [(run / "training" / "log.jsonl").read_text().splitlines() for run in runs]
    one, two = ([json.loads(line).get("gradient_norm", 0.0) for line in lines] for lines in logs)
    assert two == pytest.approx(one, rel=1e-3)
    assert max(one) > 0.1  # else nothing was clipped
    last = Path("training", "checkpoints", "step-00000002", "moments.safetensors")
    one, two = (load_file(run / last) for run in runs)  # Adam's steps hide how long a gradient was
    torch.testing.assert_close(two, one, atol=1e-7, rtol=1e-2)


@needs_deepspeed
def test_one_process_goes_on_with_what_two_under_deepspeed_left(folder: Path, tmp_path: Path) -> None:
    """A checkpoint does not tell who shared the moments: its weights, its average and they are whole."""
    words = [*finetune(folder, tmp_path / "run", "--steps", "4", "--checkpoint_every", "2"), *EXACT]
    in_two_processes(configuration("deepspeed"), ["-m", "prism", *words], ONEDNN_MAX_CPU_ISA="AVX2")
    adapter, checkpoints = (tmp_path / "run" / name for name in ("corrector", "training/checkpoints"))
    before = load_file(adapter / "adapter_model.safetensors")
    shutil.rmtree(adapter)
    shutil.rmtree(checkpoints / "step-00000004")
    assert main([*words, "--resume", "true"]) == 0
    torch.testing.assert_close(load_file(adapter / "adapter_model.safetensors"), before, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("way", ["fsdp2", zero])
def test_two_processes_share_a_bfloat16_base_and_resume(together: Callable[[str], Path], way: str) -> None:
    path = together(way)
    before, after = (load_file(path / run / "adapter_model.safetensors") for run in ("before", "run/corrector"))
    assert {weight.dtype for weight in before.values()} == {torch.float32}
    torch.testing.assert_close(after, before, atol=0, rtol=0)
    assert isinstance(prism.load_model(path / "run"), prism.PrismModel)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_tells_what_the_command_estimates() -> None:
    """LLaDA-8B in shape alone; packed, a weight of its blocks takes half a byte instead of two."""
    page = (Path(__file__).parents[2] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) sequences?(.*?) \| (\d+) GB \| (\d+) GB \| (\d+) GB \|$", page, re.MULTILINE)
    assert len(rows) == 3
    sizes = {"hidden_size": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "intermediate_size": 12288}
    config = prism.LlamaConfig(vocab_size=126464, mask_id=126336, length=4096, head_size=128, **sizes)
    for at_once, several, *stated in rows:
        needed = []
        for recompute in ("true", "false"):
            command = parse([*RECIPE, "--data", "d.jsonl", "--recompute", recompute])
            assert isinstance(command, Finetune)
            with torch.device("meta"):
                backbone = prism.Llama(config).to(torch.bfloat16)
                blocks = sum(weight.numel() for weight in backbone.layers.parameters() if weight.ndim == 2)
                model = attach(backbone, command.build_head(4096), lora=command.build_lora())
            settings, passes = command.build_optimisation(), 2 if several else 1
            needed.append(estimate(model, settings, rows=int(at_once), length=1024, passes=passes).total)
        assert [int(figure) for figure in stated] == [round(n / 1e9) for n in (*needed, needed[0] - 1.5 * blocks)]


# ── what cannot be ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "lada"], "Unknown recipe 'lada' (did you mean 'llada'?); choose from llada."),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--held_out", "40"], "has 40 conversations, 0 of them longer than --length 64; --held_out 40 leaves none"),
        (["--length", "8"], "has 40 conversations, 40 of them longer than --length 8"),
        (["--length", "1"], "--length 1: a prompt and its answer"),
        (["--padding", "zeros"], "Unknown padding 'zeros' (did you mean 'eos'?); choose from eos, unseen."),
        (["--too_long", "cut"], "choose from drop, truncate."),
        (["--prompt_field", "question"], "line 2 has no text under 'question'"),
        (["--base", "8bit"], "Unknown base '8bit' (did you mean '4bit'?)"),
        (["--base", "bfloat16", "--lora_rank", "null"], "a backbone that learns is kept in float32"),
        (["--warmup", "1.5"], "--warmup 1.5: give whole steps, or a share"),
    ],
)
def test_bad_words(
    folder: Path, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*finetune(folder, tmp_path / "out", "--steps", "2"), *words])
    error = capsys.readouterr().err
    assert code == 2, error
    assert said in error
    assert not (tmp_path / "out").exists()


def test_bad_lines_and_missing_tokenizers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a", "completion": ""}\n')
    assert main([*finetune(folder, tmp_path / "out"), "--data", str(bad)]) == 2
    assert f"{bad}, line 2: the completion is empty" in capsys.readouterr().err
    prism.save_backbone(both_ways(), tmp_path / "bare")
    assert main([*finetune(folder, tmp_path / "out"), "--model", str(tmp_path / "bare")]) == 2
    assert "has no tokenizer beside its weights" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_four_bits_without_a_gpu(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*finetune(folder, tmp_path / "out"), "--base", "4bit"]) == 2
    assert "--base 4bit needs an NVIDIA GPU and this machine has none; use --base bfloat16." in capsys.readouterr().err


class AskedError(Exception):
    """Where the weights should go."""


@pytest.mark.parametrize(
    ("there", "launch", "words", "where"),
    [
        (False, {}, (), "cpu"),
        (True, {}, (), "cuda:0"),
        (True, {"LOCAL_RANK": "3", "WORLD_SIZE": "8"}, (), "cuda:3"),
        (True, {"LOCAL_RANK": "3", "WORLD_SIZE": "8", "ACCELERATE_USE_DEEPSPEED": "true"}, (), "cuda:3"),
        (True, {"LOCAL_RANK": "3", "WORLD_SIZE": "8", "ACCELERATE_USE_FSDP": "true"}, (), "cpu"),
        (True, {"ACCELERATE_USE_CPU": "true"}, (), "cpu"),
        (True, {}, ("--base", "4bit"), "cpu"),
    ],
    ids=str,
)
def test_weights_are_read_to_the_process_s_own_gpu(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    launch: dict[str, str],
    words: tuple[str, ...],
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless no GPU is to hold all of them as they are."""

    def asked(*_: object, device: torch.device, **__: object) -> None:
        raise AskedError(device)

    for name in ("LOCAL_RANK", "WORLD_SIZE", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("prism.cli.train.import_bitsandbytes", lambda: None)
    monkeypatch.setattr("prism.cli.train.load_backbone", asked)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (10**5, 10**5))
    command = parse(finetune(folder, tmp_path / "out", "--batch", "16", *words))
    command.check()
    with pytest.raises(AskedError) as found:
        command.run()
    assert found.value.args == (torch.device(where),)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)  # before a weight is read
    assert "MB on each device: weights" in said
    assert ("The GPU has 0.0 GB free; take a larger --accumulate" in said) == there


def test_memory_is_told_in_a_unit_that_fits_it() -> None:
    small, large = Memory(4 * 10**6, 9 * 10**6, 30 * 10**6), Memory(16 * 10**9, 3 * 10**9, 60 * 10**9)
    assert told(small, 4, 64).startswith(
        "about 43.0 MB on each device: weights 4.0, gradients, moments and average 9.0"
    )
    assert told(large, 4, 64).startswith("about 79.0 GB on each device: weights 16.0,")


def test_too_little_memory_is_said_with_what_to_change() -> None:
    needed = Memory(weights=16 * 10**9, learning=3 * 10**9, activations=60 * 10**9)
    assert warned(needed, None, "wait") == warned(needed, 80 * 10**9, "wait") == ""
    line = warned(needed, 40 * 10**9, Finetune.smaller)
    assert all(word in line for word in ("40.0 GB", "--accumulate", "--recompute", "--length", "--base 4bit"))


def test_out_of_memory_is_told_with_what_to_change(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr("prism.cli.train.load_backbone", full)
    assert main(finetune(folder, tmp_path / "out", "--steps", "1")) == 1
    error = capsys.readouterr().err
    assert all(word in error for word in ("not enough memory", "--accumulate", "fsdp2.yaml", "--base 4bit"))


def test_what_is_estimated_before_is_what_is_loaded(folder: Path, tmp_path: Path) -> None:
    command = parse(finetune(folder, tmp_path / "out", "--base", "auto"))
    assert isinstance(command, Finetune)
    settings, source = command.build_optimisation(), str(folder / "llada")
    before, after = command._outlined(outline_backbone(source)), command._loaded(source)
    assert estimate(before, settings, rows=2, length=64) == estimate(after, settings, rows=2, length=64)
    assert {weight.device.type for weight in before.parameters()} == {"meta"}
