"""Under which licence a Python package says it comes, and whether that one lets its code be learnt from and passed on.

Only what the package's own metadata says counts, and every licence it names must be permissive: what is copyleft, proprietary
or unclear is not guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message

# SPDX's names; BSD and Public-Domain as classifiers and old metadata have them, which do not say which of several.
PERMISSIVE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BlueOak-1.0.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "NCSA",
        "PostgreSQL",
        "PSF-2.0",
        "Public-Domain",
        "Python-2.0",
        "Unlicense",
        "UPL-1.0",
        "W3C",
        "X11",
        "Zlib",
        "ZPL-2.1",
    }
)

# What follows "License :: OSI Approved ::", or "License ::" alone.
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "PostgreSQL License": "PostgreSQL",
    "Public Domain": "Public-Domain",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Universal Permissive License (UPL)": "UPL-1.0",
    "University of Illinois/NCSA Open Source License": "NCSA",
    "W3C License": "W3C",
    "Zero-Clause BSD (0BSD)": "0BSD",
    "Zope Public License": "ZPL-2.1",
    "zlib/libpng License": "Zlib",
}
# The free-text field, or its first line, once "the", "license", "version" and punctuation are gone.
PHRASES = {
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2 0": "Apache-2.0",
    "apache software": "Apache-2.0",
    "apache software 2 0": "Apache-2.0",
    "asl 2 0": "Apache-2.0",
    "al2": "Apache-2.0",
    "bsd": "BSD",
    "bsd 2 clause": "BSD-2-Clause",
    "2 clause bsd": "BSD-2-Clause",
    "simplified bsd": "BSD-2-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "3 clause bsd": "BSD-3-Clause",
    "bsd 3": "BSD-3-Clause",
    "bsd 3 clause new or revised": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "revised bsd": "BSD-3-Clause",
    "cc0 1 0": "CC0-1.0",
    "hpnd": "HPND",
    "isc": "ISC",
    "mit": "MIT",
    "expat": "MIT",
    "psf": "PSF-2.0",
    "psf 2 0": "PSF-2.0",
    "python software foundation": "PSF-2.0",
    "public domain": "Public-Domain",
    "unlicense": "Unlicense",
    "zlib": "Zlib",
    "zpl 2 1": "ZPL-2.1",
}


@dataclass(frozen=True)
class Licence:
    said: str
    """In the metadata's words, cut to a line."""
    names: tuple[str, ...]
    """What that means, in SPDX's identifiers where it can be told; empty where it cannot."""

    @property
    def permissive(self) -> bool:
        return bool(self.names) and PERMISSIVE.issuperset(self.names)

    def __str__(self) -> str:
        return " AND ".join(self.names) or self.said or "none named"


def licence_of(metadata: Message) -> Licence:
    """What a package's METADATA or PKG-INFO says: an SPDX expression, else classifiers, else the free-text field."""
    if expression := metadata.get("License-Expression"):
        return Licence(_line(expression), _of_expression(expression))
    field = metadata.get("License") or ""
    named = [c for c in metadata.get_all("Classifier") or [] if c.startswith("License :: ")]
    kinds = [c.removeprefix("License :: ").removeprefix("OSI Approved :: ") for c in named]
    kinds = [kind for kind in kinds if kind != "OSI Approved"]  # which says nothing of the licence
    if not kinds:
        return Licence(_line(field), _of_phrase(field))
    said = "; ".join(kinds)
    if re.search(r"\bL?A?GPL|copyleft|proprietary", field[:200], re.I):
        return Licence(f"{said}, but also {_line(field)}", ())
    return Licence(said, tuple(dict.fromkeys(CLASSIFIERS.get(kind, kind) for kind in kinds)))


def _of_expression(expression: str) -> tuple[str, ...]:
    """All that must be kept to: each side of AND, and of OR the first choice that is permissive."""
    flat = re.sub(r"\s+WITH\s+LLVM-exception", "", expression)  # which only permits more
    if re.search(r"\bWITH\b", flat):
        return ()
    needed: list[str] = []
    for part in re.split(r"\s+AND\s+", _without_outer(flat)):
        choices = [choice.strip(" ()") for choice in re.split(r"\s+OR\s+", part)]
        needed.append(next((choice for choice in choices if choice in PERMISSIVE), choices[0]))
    return tuple(dict.fromkeys(needed))


def _without_outer(expression: str) -> str:
    stripped = expression.strip()
    # Parentheses around an AND inside an OR would need a real parser; such an expression is left as one unknown name.
    return stripped if not re.search(r"\([^()]*\bAND\b[^()]*\)", stripped) else stripped.replace(" ", "_")


def _of_phrase(field: str) -> tuple[str, ...]:
    first = next((line for line in field.splitlines() if line.strip()), "").strip()
    if first in PERMISSIVE:
        return (first,)
    if " AND " in first or " OR " in first:
        return _of_expression(first)
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)", " ", first.lower()).replace("v2", "2").replace("v3", "3"))
    kept = " ".join(word for word in words if word not in ("the", "license", "licence", "version", "v"))
    return (PHRASES[kept],) if kept in PHRASES else ()


def _line(text: str) -> str:
    return next((line.strip()[:100] for line in text.splitlines() if line.strip()), "")
