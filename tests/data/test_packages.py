"""Packages opened without being installed or run, and the licences they name."""

from __future__ import annotations

import io
import tarfile
from email import message_from_string
from pathlib import Path

import pytest
from wheels import MIT, write_wheel

from prism.data.licences import licence_of
from prism.data.packages import PackageError, find_packages

CLASSIFIER = "Classifier: License :: OSI Approved :: "


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ("License-Expression: MIT", ("MIT",)),
        ("License-Expression: MIT OR GPL-3.0-only", ("MIT",)),
        ("License-Expression: GPL-3.0-only OR Apache-2.0", ("Apache-2.0",)),
        ("License-Expression: BSD-3-Clause AND (MIT OR Apache-2.0)", ("BSD-3-Clause", "MIT")),
        ("License-Expression: Apache-2.0 WITH LLVM-exception", ("Apache-2.0",)),
        (f"{CLASSIFIER}BSD License", ("BSD",)),
        (f"Classifier: License :: OSI Approved\n{CLASSIFIER}MIT License", ("MIT",)),
        ("License: MIT", ("MIT",)),
        ("License: Apache License, Version 2.0", ("Apache-2.0",)),
        ("License: Apache 2.0", ("Apache-2.0",)),
        ("License: The BSD 3-Clause License", ("BSD-3-Clause",)),
        ("License: MIT License\n        \n        Copyright (c) 2020 Somebody", ("MIT",)),
        (f"License: BSD 3-Clause License\n{CLASSIFIER}BSD License", ("BSD",)),
    ],
)
def test_permissive_licences(metadata: str, names: tuple[str, ...]) -> None:
    licence = licence_of(message_from_string(f"Name: p\n{metadata}\n\n"))
    assert licence.names == names
    assert licence.permissive


@pytest.mark.parametrize(
    "metadata",
    [
        "Summary: says nothing",
        "License-Expression: GPL-3.0-or-later",
        "License-Expression: MPL-2.0 AND MIT",
        "License-Expression: GPL-2.0-only WITH Classpath-exception-2.0",
        "License-Expression: GPL-3.0-only OR (MIT AND LGPL-3.0-only)",
        "License-Expression: LicenseRef-Proprietary",
        "Classifier: License :: Other/Proprietary License",
        "Classifier: License :: OSI Approved",
        f"{CLASSIFIER}GNU General Public License v3 (GPLv3)",
        f"{CLASSIFIER}MIT License\n{CLASSIFIER}GNU General Public License (GPL)",
        f"License: LGPL\n{CLASSIFIER}BSD License",
        "License: Apache modified",
        "License: see LICENSE file",
        "License: GPL",
    ],
)
def test_copyleft_and_unclear_ones(metadata: str) -> None:
    assert not licence_of(message_from_string(f"Name: p\n{metadata}\n\n")).permissive


def test_a_wheel_is_read_without_what_is_not_its_own(tmp_path: Path) -> None:
    files = dict.fromkeys(("b.py", "a/x.py", "a/_vendor/y.py", "a/tests/z.py", "a/test_x.py", "a/data.json"), "x = 1\n")
    path = write_wheel(tmp_path, "Some_Thing", files, MIT)
    [package] = find_packages([path])
    assert (package.name, package.version) == ("some-thing", "1.0")
    assert [name for name, _ in package.sources()] == ["a/x.py", "b.py"]
    assert package.terms() == "Copyright the authors of Some_Thing\n"
    assert package.describe()["source"].startswith("Some_Thing-1.0-py3-none-any.whl sha256:")


def test_a_source_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "p-2.tar.gz", "w:gz") as archive:
        for name, content in {
            "p-2/PKG-INFO": "Name: p\nVersion: 2\nLicense: ISC\n\n",
            "p-2/p.py": "x = 1\n",
            "p-2/LICENSE": "ISC",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    [package] = find_packages([tmp_path])
    assert (package.name, package.version, str(package.licence)) == ("p", "2", "ISC")
    assert list(package.sources()) == [("p-2/p.py", "x = 1\n")]
    assert package.terms() == "ISC\n"


def test_installed_packages(tmp_path: Path) -> None:
    info = tmp_path / "p-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: p\nVersion: 1\n{MIT}\n\n")
    (tmp_path / "p.py").write_text("x = 1\n")
    (tmp_path / "other.py").write_text("not of p\n")
    (info / "RECORD").write_text("p.py,sha256=0,6\np-1.dist-info/METADATA,,\n../../bin/p.py,,\ngone.py,,\n")
    [package] = find_packages([tmp_path])
    assert list(package.sources()) == [("p.py", "x = 1\n")]


def test_the_first_of_a_name_is_taken(tmp_path: Path) -> None:
    write_wheel(tmp_path / "a", "p", {}, MIT, version="1")
    write_wheel(tmp_path / "b", "P", {}, MIT, version="2")
    assert [package.version for package in find_packages([tmp_path / "b", tmp_path / "a"])] == ["2"]


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no such file"):
        find_packages([tmp_path / "nowhere"])
    with pytest.raises(PackageError, match="no package"):
        find_packages([tmp_path])
    (tmp_path / "p-1-py3-none-any.whl").write_bytes(b"not a zip file")
    with pytest.raises(PackageError, match="download it again"):
        find_packages([tmp_path])
