"""Folders are written whole or not at all."""

from pathlib import Path

import pytest
import torch

from prism.models.folder import Folder, ModelError, check_tensors, files_digest


def contents(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


def test_a_folder_appears_when_its_block_ends(tmp_path):
    with Folder(tmp_path / "deep" / "new").rewritten("mark") as folder:
        (folder / "mark").write_text("1")
        assert not (tmp_path / "deep" / "new").exists()
    assert contents(tmp_path) == {"deep/new/mark": "1"}


def test_an_error_leaves_the_old_folder_and_no_trace(tmp_path):
    path = tmp_path / "it"
    with Folder(path).rewritten("mark") as folder:
        (folder / "mark").write_text("old")
    with pytest.raises(FileNotFoundError), Folder(path).rewritten("mark") as folder:
        (folder / "no such folder" / "mark").write_text("new")
    assert contents(tmp_path) == {"it/mark": "old"}
    with Folder(path).rewritten("mark") as folder:
        (folder / "mark").write_text("new")
    assert contents(tmp_path) == {"it/mark": "new"}


def test_a_failed_rename_puts_the_old_folder_back(tmp_path):
    path = tmp_path / "it"
    with Folder(path).rewritten("mark") as folder:
        (folder / "mark").write_text("old")
    with pytest.raises(FileNotFoundError), Folder(path).rewritten("mark") as folder:
        folder.rmdir()  # so that there is nothing to rename
    assert contents(tmp_path) == {"it/mark": "old"}


def test_tensors_that_differ_are_named_and_counted():
    expected = {f"t{i}": torch.zeros(2) for i in range(6)}
    found = {"t0": torch.zeros(2), "t1": torch.zeros(3), "u": torch.zeros(1)}
    with pytest.raises(ModelError) as caught:
        check_tensors(found, expected, Path("here"), ModelError)
    said = str(caught.value)
    assert "lacks t2, t3, t4 and 1 more; has besides u; has in another shape t1 (3,) instead of (2,)" in said
    check_tensors(expected, expected, Path("here"), ModelError)


def test_files_are_told_from_others_of_the_same_name(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder, last in (("a", b"1"), ("b", b"2")):
        (tmp_path / folder / "weights").write_bytes(bytes(3 << 20) + last)
    one, other = tmp_path / "a", tmp_path / "b"
    assert files_digest(one) != files_digest(other)
    assert files_digest(one / "weights") != files_digest(other / "weights")
    (other / "weights").write_bytes((one / "weights").read_bytes())
    assert files_digest(one) == files_digest(other)
    (other / "more").write_text("")
    assert files_digest(one) != files_digest(other)
