"""Documents out of files and datasets, and the tokenizers they are given to."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from texts import chat_tokenizer, essays, write_lines, write_tokenizer
from tokenizers import Tokenizer
from transformers import BertConfig, BertTokenizer, GPT2Config, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast

from prism.data.text import (
    Dataset,
    Files,
    First,
    TextError,
    end_of_text,
    fingerprint,
    load_tokenizer,
    train_tokenizer,
    vocabulary_size,
    with_mask,
)

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("backports.zstd", reason="the extra `text` is not installed").compress(data)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
def test_files_of_every_kind(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    lines, plain = tmp_path / f"a.jsonl{suffix}", tmp_path / f"b.txt{suffix}"
    lines.write_bytes(compress('{"text": "one\\nline", "id": 1}\n\n{"text": "zwölf"}\n'.encode()))
    plain.write_bytes(compress(b"first\n\nsecond\n---\nthird\n"))
    assert list(Files((lines, plain)).documents()) == ["one\nline", "zwölf", "first\n\nsecond\n---\nthird\n"]
    assert list(Files((plain,), separator="---").documents()) == ["first\n\nsecond\n", "third\n"]
    assert list(Files((plain,), separator="").documents()) == ["first\n", "second\n---\nthird\n"]
    assert list(Files((lines, plain), separator="").documents(skip=1)) == ["zwölf", "first\n", "second\n---\nthird\n"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"title": "x", "body": "y", "n": 1}\n', "no text under 'text'; name another field: title, body."),
        ("a.jsonl", b'{"text": 3}\n', "no text under 'text'"),
        ("a.jsonl", b'["x"]\n', "expected an object"),
        ("a.txt", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("a.jsonl.gz", b"hello", "cannot be read to its end"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 99, mtime=0)[:-9], "cannot be read to its end"),
        ("a.txt.xz", lzma.compress(b"hello" * 99)[:-9], "cannot be read to its end"),
        ("a.txt.bz2", b"hello", "cannot be read to its end"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=said) as told:
        list(Files((tmp_path / name,)).documents())
    assert str(tmp_path / name) in str(told.value)


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:4] + b"hello", lambda data: b"hello"])
def test_damaged_zstd(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(damage(zstd(b'{"text": "x"}\n' * 99)))
    with pytest.raises(TextError, match="cannot be read to its end"):
        list(Files((tmp_path / "a.jsonl.zst",)).documents())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no such file"):
        Files((tmp_path / "a.jsonl",))


def test_files_are_known_by_what_they_hold(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", essays(9))
    before = Files((path,)).describe()
    elsewhere = tmp_path / "elsewhere" / "a.jsonl"
    elsewhere.parent.mkdir()
    path.rename(elsewhere)
    elsewhere.touch()
    assert Files((elsewhere,)).describe() == before
    elsewhere.write_text(elsewhere.read_text().replace("4 ", "5 ", 1))
    assert elsewhere.stat().st_size == before["files"][0]["bytes"]
    assert Files((elsewhere,)).describe() != before


def test_the_first_documents_of_a_source(tmp_path: Path) -> None:
    lines = Files((write_lines(tmp_path / "a.jsonl", essays(9)),))
    assert list(First(lines, 4).documents()) == essays(9)[:4]
    assert list(First(lines, 4).documents(skip=3)) == essays(9)[3:4]
    assert list(First(lines, 4).documents(skip=5)) == []
    assert list(First(lines, 20).documents()) == essays(9)
    assert First(lines, 4).describe() != First(lines, 5).describe() != lines.describe()


def test_a_dataset_is_streamed(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"words": text}) + "\n" for text in essays(9)))
    source = Dataset(str(tmp_path), field="words")
    assert list(source.documents()) == essays(9)
    assert list(source.documents(skip=4)) == essays(9)[4:]
    with pytest.raises(TextError, match="no text under 'text'; name another field: words"):
        list(Dataset(str(tmp_path)).documents())
    with pytest.raises(TextError, match="cannot be read"):
        list(Dataset(str(tmp_path), split="test").documents())


def test_the_mark_some_editors_begin_with_is_no_text(tmp_path: Path) -> None:
    lines, plain = tmp_path / "a.jsonl", tmp_path / "a.txt"
    lines.write_text('{"text": "hello"}\n', encoding="utf-8-sig")
    plain.write_text("hello", encoding="utf-8-sig")
    assert list(Files((lines, plain)).documents()) == ["hello", "hello"]


@pytest.mark.parametrize("content", ['[{"text": "a"}]', '\n[\n{"text": "a"}\n]\n'])
def test_one_list_is_not_json_lines(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(TextError, match=rf"{path}, line \d begins a list; .* jq -c '\.\[\]' a\.json > lines\.jsonl"):
        list(Files((path,)).documents())


def test_a_damaged_row_of_a_dataset_is_told_as_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"text":\n')
    with pytest.raises(TextError, match=rf"The dataset '{tmp_path}' cannot be read: JSON parse error"):
        list(Dataset(str(tmp_path)).documents())


def test_a_folder_of_a_dataset_is_known_by_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "data").mkdir(parents=True)
    path = write_lines(folder / "data" / "train.jsonl", essays(9))
    before = Dataset(str(folder)).describe()
    assert [file["name"] for file in before["files"]] == ["data/train.jsonl"]
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("no text")
    path.touch()
    elsewhere = str(shutil.move(folder, tmp_path / "elsewhere" / "corpus"))
    assert Dataset(elsewhere).describe() == before
    write_lines(Path(elsewhere) / "data" / "train.jsonl", essays(9, seed=1))
    assert Dataset(elsewhere).describe() != before


def test_a_dataset_of_the_hub_is_known_by_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    revisions = iter(["c0ffee", "decade"])
    monkeypatch.setattr("datasets.load_dataset_builder", lambda name, config: SimpleNamespace(hash=next(revisions)))
    one, two = (Dataset("somebody/words", "en").describe()["dataset"] for _ in range(2))
    assert (one["name"], one["config"], one["revision"], two["revision"]) == (
        "somebody/words",
        "en",
        "c0ffee",
        "decade",
    )


def test_null_is_an_empty_text(tokenizer: Any, tmp_path: Path) -> None:
    """In a file and in a dataset; a field that is nowhere is another matter, and the row is named."""
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    rows = [{"text": "one", "n": 1}, {"text": None, "n": 2}, {"text": "two", "n": 3}]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (Files((path,)), Dataset(str(tmp_path))):
        assert list(source.documents()) == ["one", "", "two"]
        assert list(source.documents(skip=1)) == ["", "two"]
    with pytest.raises(TextError, match=r"train\.jsonl, line 1 has no text under 'body'; name another field: text\."):
        list(Files((path,), "body").documents())
    with pytest.raises(TextError, match=r", row 2 has no text under 'body'; its fields are: text, n\."):
        list(Dataset(str(tmp_path), field="body").documents(skip=1))


def test_a_byte_level_bpe_from_vocabulary_and_merges(tokenizer: Any, tmp_path: Path) -> None:
    text = "the quick naïve 猫 🙂, unseen words too"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.decode([end_of_text(tokenizer)]) == "<|endoftext|>"
    assert vocabulary_size(tokenizer) == 320
    tokenizer.save_pretrained(tmp_path)
    assert fingerprint(load_tokenizer(tmp_path)) == fingerprint(tokenizer)


def test_a_damaged_file_of_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TextError, match=r"tokenizer_config\.json is damaged"):
        load_tokenizer(tmp_path)


def test_a_mask_changes_the_vocabulary_and_not_the_fingerprint(tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    before = fingerprint(tokenizer)
    masked = with_mask(tokenizer)
    assert masked.mask_token_id == 320 == vocabulary_size(masked) - 1
    masked.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.mask_token_id == 320
    assert fingerprint(again) == before
    assert with_mask(again).mask_token_id == 320


def test_the_fingerprint_tells_tokenizers_apart(tokenizer_folder: Path, tmp_path: Path) -> None:
    before = fingerprint(load_tokenizer(tokenizer_folder))
    merges = (tokenizer_folder / "tiny-merges.txt").read_text().splitlines(keepends=True)
    (tmp_path / "vocab.json").write_text((tokenizer_folder / "tiny-vocab.json").read_text())
    (tmp_path / "merges.txt").write_text("".join(merges[:-1]))
    assert fingerprint(load_tokenizer(tmp_path)) != before
    added = load_tokenizer(tokenizer_folder)
    added.add_tokens(["cat"])
    assert fingerprint(added) != before


@pytest.mark.parametrize(
    ("part", "otherwise", "same"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": []}, True),
        (
            "pre_tokenizer",
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
            True,
        ),
        ("truncation", {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}, True),
        ("normalizer", {"type": "Lowercase"}, False),
        ("normalizer", {"type": "NFC"}, False),
        (
            "pre_tokenizer",
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            False,
        ),
        ("pre_tokenizer", {"type": "Whitespace"}, False),
    ],
)
def test_a_fingerprint_is_of_what_a_tokenizer_does(
    tokenizer_folder: Path, part: str, otherwise: dict[str, Any], same: bool
) -> None:
    """And not of how its file says it: transformers 5.17 and 5.22 read one GGUF file into files with the first two changes."""
    tokenizer = load_tokenizer(tokenizer_folder)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    changed = Tokenizer.from_str(json.dumps(state | {part: otherwise}))
    assert (fingerprint(PreTrainedTokenizerFast(tokenizer_object=changed)) == fingerprint(tokenizer)) is same


def test_a_tokenizer_without_an_end_takes_its_separator(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]) + "\n")
    bert = BertTokenizer.from_pretrained(tmp_path)
    assert end_of_text(bert) == 3
    assert with_mask(bert).mask_token_id == 4
    bert.sep_token = None
    with pytest.raises(TextError, match="neither an end-of-text"):
        end_of_text(bert)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="There is no tokenizer in"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", [BertConfig, GPT2Config, LlamaConfig])
def test_a_config_is_no_tokenizer(tmp_path: Path, kind: type[PreTrainedConfig]) -> None:
    """Of a model's config.json alone transformers makes a BERT tokenizer to which every word is [UNK]."""
    kind().save_pretrained(tmp_path)
    with pytest.raises(TextError, match="There is no tokenizer in"):
        load_tokenizer(tmp_path)


@pytest.mark.skipif(not SHARED.exists(), reason=f"GPT-2's tokenizer and the articles are not in {SHARED}")
def test_gpt2_on_articles() -> None:
    gpt2 = load_tokenizer(SHARED / "tokenizers")
    assert (vocabulary_size(gpt2), end_of_text(gpt2)) == (50257, 50256)
    assert gpt2("Hello world")["input_ids"] == [15496, 995]
    for article in islice(Files((SHARED / "text" / "wiki-valid.jsonl.xz",)).documents(), 3):
        assert gpt2.decode(gpt2(article)["input_ids"]) == article


CODE = {
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoTokenizer": ["tokenization.Tokenizer", None]}
}


def test_code_beside_a_tokenizer_is_neither_run_nor_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaDA's, whose config has code of its own, and Dream's, which is Qwen2's under another name."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run it"))
    llada, dream = tmp_path / "llada", tmp_path / "dream"
    chat_tokenizer().save_pretrained(llada)
    (llada / "config.json").write_text(json.dumps({"model_type": "llada", **CODE}))
    found = load_tokenizer(llada)
    assert (found.eos_token, found.chat_template) == ("<|endoftext|>", chat_tokenizer().chat_template)

    plain = load_tokenizer(write_tokenizer(dream))
    for name in ("vocab.json", "merges.txt"):
        (dream / f"tiny-{name}").rename(dream / name)
    added = {str(320 + i): {"content": token, "special": True} for i, token in enumerate(["<|im_end|>", "<|mask|>"])}
    settings = {"tokenizer_class": "DreamTokenizer", "eos_token": "<|endoftext|>", "mask_token": "<|mask|>", **CODE}
    (dream / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": added}))
    found = load_tokenizer(dream)
    assert (found.mask_token_id, found("the cat<|im_end|>")["input_ids"]) == (
        321,
        [*plain("the cat")["input_ids"], 320],
    )


def test_a_tokenizer_made_for_texts(tmp_path: Path) -> None:
    texts = essays(100)
    train_tokenizer(texts, 320).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert vocabulary_size(tokenizer) == 320
    assert end_of_text(tokenizer) != tokenizer.mask_token_id
    for text in (*texts, " once , and\n\nnever ’ again . ", "日本"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(texts[0])["input_ids"]) < len(texts[0].encode()) / 1.5
    with pytest.raises(TextError, match="258"):
        train_tokenizer(texts, 257)
