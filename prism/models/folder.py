"""Folders on disk that hold a model or a corrector: read with errors that say what to mend, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

LOCK = ".lock"
"""The file in a folder by which a process keeps others from writing there."""


class ModelError(ValueError):
    """A backbone that cannot be loaded or saved: what, why, and how to mend it."""


class CorrectorError(ModelError):
    """A corrector that cannot be loaded or saved: what, why, and how to mend it."""


@contextmanager
def no_bars() -> Iterator[None]:
    """While it lasts transformers, which shows bars for the smallest model and off a terminal too, shows none."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@dataclass(frozen=True)
class Folder:
    path: Path
    error: type[ValueError] = ModelError
    """What its readers raise."""

    def file(self, name: str) -> Path:
        if not self.path.is_dir():
            raise self.error(f"There is no folder {self.path}; check the path.")
        if not (self.path / name).is_file():
            raise self.error(f"{self.path} has no {name}; it is another kind of folder or was copied only in part.")
        return self.path / name

    def json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self.file(name).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self.error(f"{self.path / name} is damaged ({error}); copy it again from its source.") from error
        if not isinstance(content, dict):
            raise self.error(f"{self.path / name} must hold a JSON object; copy it again from its source.")
        return content

    def tensors(self, name: str) -> dict[str, Tensor]:
        return dict(self.stream(name))

    def stream(self, name: str, device: str = "cpu") -> Iterator[tuple[str, Tensor]]:
        """The tensors of a safetensors file one by one, each read when it is asked for."""
        with self._opened(name, device) as file:
            for key in file.keys():  # noqa: SIM118 (no mapping)
                yield key, _aligned(file.get_tensor(key))

    def outlines(self, name: str) -> dict[str, Tensor]:
        """Its tensors' shapes and types, on the meta device and without reading them."""
        with self._opened(name, "cpu") as file:
            return {key: _outline(file.get_slice(key)) for key in file.keys()}  # noqa: SIM118

    @contextmanager
    def _opened(self, name: str, device: str) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file(name), framework="pt", device=device) as file:
                yield file
        except SafetensorError as error:
            raise self.error(
                f"{self.path / name} is truncated or damaged ({error}); copy it again from its source."
            ) from error

    @contextmanager
    def rewritten(self, *markers: str) -> Iterator[Path]:
        """A fresh folder that takes this one's place when the block ends well and vanishes when it does not.

        What stands here already is replaced only if it is empty or holds one of `markers`, the files that tell a folder of
        this kind. A reader finds the old folder, the new one or, between two renames, none; never a mixture.
        """
        if self.path.exists() and not self._is_ours(markers):
            raise self.error(f"{self.path} exists and holds no {markers[0]}; choose another path or move it away.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
        old, new = aside / "old", aside / "new"
        try:
            new.mkdir()
            yield new
            if self.path.exists():
                os.replace(self.path, old)
            os.replace(new, self.path)
        finally:
            if old.exists() and not self.path.exists():
                os.replace(old, self.path)
            shutil.rmtree(aside)

    def _is_ours(self, markers: tuple[str, ...]) -> bool:
        if not self.path.is_dir():
            return False
        return not any(self.path.iterdir()) or any((self.path / marker).is_file() for marker in markers)


def _outline(stored: Any) -> Tensor:
    shape = stored.get_shape()
    return torch.empty(shape, dtype=(stored[:0] if shape else stored[...]).dtype, device="meta")


def _aligned(tensor: Tensor) -> Tensor:
    """Where a file is mapped into memory its tensors begin anywhere; some CPUs add up from there in another order, and the same
    weights would not give the same numbers as before they were saved."""
    return tensor.clone() if tensor.device.type == "cpu" and tensor.data_ptr() % 64 else tensor


def check_tensors(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: Path, error: type[ModelError]
) -> None:
    """Exactly the expected names with the expected shapes, or an error that names the tensors that differ."""
    shapes = (
        f"{name} {tuple(found[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    )
    complaints = {
        "lacks": sorted(expected.keys() - found.keys()),
        "has besides": sorted(found.keys() - expected.keys()),
        "has in another shape": sorted(shapes),
    }
    if any(complaints.values()):
        said = "; ".join(f"{verb} {listed(names)}" for verb, names in complaints.items() if names)
        raise error(f"{source} does not fit this model: it {said}. Check that its config belongs to these weights.")


def listed(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def first_line(error: Exception) -> str:
    """The gist of another library's error, which may go on for pages."""
    return str(error).strip().partition("\n")[0]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing, whatever moment the process or the machine dies at."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(path)


@contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Only this process writes the file, or into the folder, while the block runs: a second one is refused, and told what to
    do `otherwise`.

    The lock ends with the process, however that ends; the hidden file it hangs on may then stay, and does no harm. Windows, and
    file systems that know no locks, go without.
    """
    lock = path / LOCK if path.is_dir() else path.with_name(f".{path.name}.lock")
    with ExitStack() as opened:
        held = False
        while not held:
            file = opened.enter_context(lock.open("wb"))
            if not _lock(file):
                raise ValueError(f"Another process is writing {path}; wait for it and repeat this, or {otherwise}.")
            held = _lies_at(lock, file)  # whoever held it may have removed the file since it was opened
        try:
            yield
        finally:
            if os.name == "posix":  # Windows removes nothing that is open
                lock.unlink(missing_ok=True)


def _lock(file: IO[bytes]) -> bool:
    """False where another process has it; True also where there are no locks to be had."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _lies_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def sync(path: Path) -> None:
    """On the disk, not only in its cache: a file, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def files_digest(path: Path) -> str:
    """A sha256 of the names of a file, or of all files in a folder, of their lengths and of their first and last MiB: tells one
    model from another of the same name, at no cost."""
    digest, some = hashlib.sha256(), 1 << 20
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if file == path else file.relative_to(path)} {size}".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(some))
            opened.seek(max(0, size - some))
            digest.update(opened.read(some))
    return digest.hexdigest()[:16]


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path, {"format": "pt"})
    path.chmod(0o644)  # safetensors writes for its owner alone
