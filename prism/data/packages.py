"""Python packages as sources to read: installed ones, wheels and source archives. Nothing of them is ever run."""

from __future__ import annotations

import email
import hashlib
import re
import tarfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from prism.data.licences import Licence, licence_of

LARGEST = 1 << 20  # bytes; larger files of Python are tables
# Code by others, under other licences than the package's, and code that only tries the package out.
FOREIGN = frozenset(
    {
        "_vendor",
        "_vendored",
        "vendor",
        "vendored",
        "_third_party",
        "third_party",
        "thirdparty",
        "extern",
        "external",
        "_external",
        "externals",
        "ext_libs",
        "bundled",
        "site-packages",
        "node_modules",
    }
)
TRIALS = frozenset({"test", "tests", "testing", "_tests", "unit_tests", "conftest.py"})
TERMS = re.compile(r"(licen[cs]e|copying|notice|authors|copyright)", re.I)


class PackageError(ValueError):
    """A package that cannot be read: what, why, and how to mend it."""


@dataclass(frozen=True)
class Package(ABC):
    path: Path
    """The archive, or the .dist-info folder of an installed package."""

    @cached_property
    def metadata(self) -> Message:
        return email.message_from_string(self._metadata())

    @property
    def name(self) -> str:
        """In the one spelling in which packages are compared."""
        return re.sub(r"[-_.]+", "-", str(self.metadata["Name"])).lower()

    @property
    def version(self) -> str:
        return str(self.metadata["Version"])

    @property
    def licence(self) -> Licence:
        return licence_of(self.metadata)

    def sources(self) -> Iterator[tuple[str, str]]:
        """Path and text of every Python file that is the package's own, tests left out, in the order of their paths."""
        found = self._contents(lambda path: path.endswith(".py") and not _is_foreign(path))
        for path, content in sorted(found.items()):
            yield path, content.decode("utf-8", "replace")

    def terms(self) -> str:
        """The licences and notices that came with it."""
        found = self._contents(_has_terms)
        texts = dict.fromkeys(content.decode("utf-8", "replace").strip() for _, content in sorted(found.items()))
        return "\n\n".join(texts) + "\n"

    def describe(self) -> dict[str, Any]:
        licence = self.licence
        return {"version": self.version, "licence": str(licence), "said": licence.said, "source": self._source()}

    @abstractmethod
    def _metadata(self) -> str: ...

    @abstractmethod
    def _contents(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        """The wanted files that are not too large."""

    def _source(self) -> str:
        """Enough to tell this archive from any other."""
        with self.path.open("rb") as file:
            return f"{self.path.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


class Wheel(Package):
    def _metadata(self) -> str:
        found = self._contents(lambda path: re.fullmatch(r"[^/]+\.dist-info/METADATA", path) is not None)
        if not found:
            raise PackageError(f"{self.path} is no wheel: it has no .dist-info/METADATA; download it again.")
        return next(iter(found.values())).decode("utf-8", "replace")

    def _contents(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        with zipfile.ZipFile(self.path) as archive:
            files = [info for info in archive.infolist() if wanted(info.filename) and info.file_size <= LARGEST]
            return {info.filename: archive.read(info) for info in files if not info.is_dir()}


class SourceArchive(Package):
    """A .tar.gz as `pip download --no-binary` brings it."""

    def _metadata(self) -> str:
        found = self._contents(lambda path: path.count("/") == 1 and path.endswith("/PKG-INFO"))
        if not found:
            raise PackageError(f"{self.path} is no source archive of a package: it has no PKG-INFO; download it again.")
        return next(iter(found.values())).decode("utf-8", "replace")

    def _contents(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        with tarfile.open(self.path) as archive:
            files = [member for member in archive if wanted(member.name) and member.size <= LARGEST]
            return {member.name: file.read() for member in files if (file := archive.extractfile(member)) is not None}


class Installed(Package):
    """A package in a site-packages folder: what its RECORD lists."""

    def _metadata(self) -> str:
        return (self.path / "METADATA").read_text(encoding="utf-8", errors="replace")

    def _contents(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        record = self.path / "RECORD"
        lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
        listed = [line.rsplit(",", 2)[0].strip('"') for line in lines]
        files = {path: self.path.parent / path for path in listed if wanted(path) and not path.startswith(("..", "/"))}
        return {
            path: file.read_bytes() for path, file in files.items() if file.is_file() and file.stat().st_size <= LARGEST
        }

    def _source(self) -> str:
        return "installed"


def find_packages(paths: Iterable[Path]) -> list[Package]:
    """All packages in archives and folders (of archives, or site-packages), each once: the first found is taken."""
    found: dict[str, Package] = {}
    for path in paths:
        if not path.exists():
            raise PackageError(
                f"{path}: no such file or folder; name wheels, .tar.gz sources, or a folder that has them."
            )
        for entry in sorted(path.iterdir()) if path.is_dir() and path.suffix != ".dist-info" else [path]:
            if (package := open_package(entry)) is not None:
                found.setdefault(package.name, package)
    if not found:
        raise PackageError(
            "There is no package in what was given; name wheels, .tar.gz sources, or a folder that has them or .dist-info."
        )
    return sorted(found.values(), key=lambda package: package.name)


def open_package(path: Path) -> Package | None:
    """The package there; None if the path is of another kind."""
    if path.suffix == ".dist-info" and not (path / "METADATA").is_file():
        return None  # what a broken uninstallation leaves behind
    kinds = ((".whl", Wheel), (".tar.gz", SourceArchive), (".dist-info", Installed))
    package = next((kind(path) for ending, kind in kinds if path.name.endswith(ending)), None)
    try:
        return package if package is not None and package.metadata["Name"] else None
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise PackageError(f"{path} cannot be read ({error}); remove it or download it again.") from error


def _is_foreign(path: str) -> bool:
    parts = [part.lower() for part in PurePosixPath(path).parts]
    trial = parts[-1].startswith("test_") or parts[-1].endswith("_test.py")
    return trial or not (FOREIGN | TRIALS).isdisjoint(parts)


def _has_terms(path: str) -> bool:
    at_top = ".dist-info/" in path or path.count("/") <= 1
    return at_top and TERMS.match(PurePosixPath(path).name) is not None and not path.endswith((".py", ".pyi"))
