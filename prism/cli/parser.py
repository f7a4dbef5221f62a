"""From words to a command."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import jsonargparse

from prism.cli.calibration import EvaluateCalibration
from prism.cli.cite import Cite
from prism.cli.code import CompareCode, EvaluateCode
from prism.cli.command import Command, embedded_for
from prism.cli.corpus import WriteCorpus
from prism.cli.demo import Demo
from prism.cli.functions import Functions
from prism.cli.harness import EvaluateHarness, InHarness
from prism.cli.reproduce import (
    ReproduceFunctions,
    ReproduceKnownTruth,
    ReproduceLlada,
    ReproduceOwt,
    ReproduceSudoku,
    ReproduceWikipedia,
)
from prism.cli.sudoku import CompareSudoku, EvaluateSudoku
from prism.cli.text import EvaluateKnownTruth, EvaluateText
from prism.cli.tokenize import Tokenize
from prism.cli.tokens import Sample, Score
from prism.cli.train import Adapt, Finetune, Pretrain
from prism.recipes.sampling import pick, suggestion
from prism.recipes.training import RECIPES

COMMANDS: dict[str, type[Command] | dict[str, type[Command]]] = {
    "functions": Functions,
    "tokenize": Tokenize,
    "corpus": WriteCorpus,
    "pretrain": Pretrain,
    "adapt": Adapt,
    "finetune": Finetune,
    "sample": Sample,
    "score": Score,
    "evaluate": {
        "sudoku": EvaluateSudoku,
        "code": EvaluateCode,
        "text": EvaluateText,
        "known-truth": EvaluateKnownTruth,
        "calibration": EvaluateCalibration,
        "harness": EvaluateHarness,
    },
    "compare": {"sudoku": CompareSudoku, "code": CompareCode},
    "reproduce": {
        "sudoku": ReproduceSudoku,
        "owt": ReproduceOwt,
        "known-truth": ReproduceKnownTruth,
        "wikipedia": ReproduceWikipedia,
        "functions": ReproduceFunctions,
        "llada": ReproduceLlada,
    },
    "cite": Cite,
    "demo": Demo,
}

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def parse(words: list[str]) -> Command:
    """The command the words ask for."""
    words = _harness([_underscored(word) for word in words])
    kind, path, rest = _find(words)
    parser, rest = _parser(kind, " ".join(path)), _gathered(rest, kind)
    try:
        found = parser.parse_args(rest)
        if (settings := _beneath(kind, found)) is not None:
            found = parser.parse_args(["--config", str(settings), *rest])
    except argparse.ArgumentError as error:
        raise ValueError(_readable(error, parser, path, _switches(kind))) from error
    except UnicodeDecodeError as error:
        raise ValueError("--config: that is not a YAML file, it is not even text; name another.") from error
    found.pop("config", None)
    for name, text in _said(rest, kind):
        found[name] = text if found[name] is None else found[name]
    return kind(**parser.instantiate(found))


def in_harness(given: Mapping[str, Any]) -> InHarness:
    """Settings that come from lm-eval, by name and not as words, held to the same types."""
    names, several = get_type_hints(InHarness), _several(InHarness)
    for name in given:
        if name not in names:
            raise ValueError(f"There is no setting {name!r}{suggestion(name, names)}; choose from {', '.join(names)}.")
    values = {name: [value] if name in several and isinstance(value, str) else value for name, value in given.items()}
    parser = _parser(InHarness, "")
    try:
        found = parser.parse_object(values)
    except argparse.ArgumentError as error:
        raise ValueError(_readable(error, parser, [], set())) from error
    found.pop("config", None)
    return InHarness(**parser.instantiate(found))


def _beneath(kind: type[Command], found: Any) -> Path | None:
    """A file of settings that stand beneath those given: of a recipe, or of the embedded model that will write."""
    if found.get("recipe") is not None:  # named in a config file, it counts as well
        return pick(found.recipe, RECIPES, "recipe")
    if kind is Sample and found.model is None:
        beside = embedded_for(found.prompt).with_suffix(".yaml")
        return beside if beside.is_file() else None
    return None


def _find(words: list[str]) -> tuple[type[Command], list[str], list[str]]:
    """The command's class, its name, and the words left for it."""
    level: Any = COMMANDS
    path: list[str] = []
    while isinstance(level, dict):
        name = words[len(path)] if len(words) > len(path) else "--help"
        if name in ("-h", "--help"):
            _help(path, level)
        if name == "--version" and not path:
            _version()
        if name not in level:
            what = f"task of prism {path[0]}" if path else "command"
            raise ValueError(f"unknown {what} {name!r}{suggestion(name, level)}; choose from {', '.join(level)}.")
        level = level[name]
        path.append(name)
    return level, path, words[len(path) :]


@functools.cache  # a study says many commands of one kind, and to read the sources of its options takes a while
def _parser(kind: type[Any], name: str) -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(
        prog=f"prism {name}", description=kind.__doc__, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="Read settings from a YAML file; later options override it.")
    parser.add_class_arguments(kind, fail_untyped=True)
    several = _several(kind)
    for action in parser._actions:
        if action.dest in several:
            action.metavar = "ONE [ANOTHER ...]"
    return parser


def _help(path: list[str], level: dict[str, Any]) -> None:
    print(f"usage: prism {' '.join([*path, ''])}COMMAND [options]\n")
    for name, kind in level.items():
        summary = f"tasks: {', '.join(kind)}" if isinstance(kind, dict) else (kind.__doc__ or "").splitlines()[0]
        print(f"  {name:<12} {summary}")
    print(f"\nprism {' '.join([*path, ''])}COMMAND --help tells more; --config FILE reads options from YAML.")
    raise SystemExit(0)


def _version() -> None:
    import prism

    print(f"prism {prism.__version__}")
    raise SystemExit(0)


def _is_option(word: str) -> bool:
    """Whether it names an option, and is not text that begins with dashes: --separator ---."""
    return re.match("--[A-Za-z]|-h$", word) is not None


def _underscored(word: str) -> str:
    """--top-k and --top_k are the same option."""
    if not _is_option(word):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _harness(words: list[str]) -> list[str]:
    """prism evaluate --harness TASK is prism evaluate harness --task TASK."""
    if words[:1] != ["evaluate"] or not any(re.match("--harness(=|$)", word) for word in words[1:]):
        return words
    return ["evaluate", "harness", *(re.sub("^--harness(?==|$)", "--task", word) for word in words[1:])]


def _gathered(words: list[str], kind: type[Command]) -> list[str]:
    """--input a b is --input ["a", "b"]: an option that holds several values takes them one after another. One that holds a
    text is tied to it, which may begin with dashes."""
    several, texts, gathered = _several(kind), _texts(kind), list[str]()
    while words:
        option, *words = words
        name, equals, value = option[2:].partition("=") if _is_option(option) else ("", "", "")
        if name in several and equals:
            gathered.append(option if _is_list(value) else f"--{name}={json.dumps([value])}")
        elif name in several:
            values = list(takewhile(lambda word: not _is_option(word), words))
            words = words[len(values) :]
            gathered += [option, *(values if not values or _is_list(values[0]) else [json.dumps(values)])]
        elif name in texts and not equals and words and not _is_option(words[0]):
            gathered.append(f"{option}={words[0]}")
            words = words[1:]
        else:
            gathered.append(option)
    return gathered


def _texts(kind: type[Command]) -> set[str]:
    """Its options that hold a text, or may."""
    return {name for name, hint in get_type_hints(kind).items() if hint in (str, str | None)}


def _said(words: list[str], kind: type[Command]) -> list[tuple[str, str]]:
    """Options that hold a text, and that text as it stands: where there may be none, values are read as YAML, which finds
    nothing in "---", "null" or "# a heading"."""
    tied = (word[2:].partition("=") for word in words if _is_option(word) and "=" in word)
    return [(name, value) for name, _, value in tied if name in _texts(kind)]


def _several(kind: type[Any]) -> set[str]:
    """Its options that hold several values."""
    return {name for name, hint in get_type_hints(kind).items() if get_origin(hint) is tuple}


def _is_list(word: str) -> bool:
    """Whether it is a list already, and not a word that begins like one: --stop [DONE]."""
    try:
        return isinstance(json.loads(word), list)
    except ValueError:
        return False


def _switches(kind: type[Any]) -> set[str]:
    """Its options that are true or false."""
    return {name for name, hint in get_type_hints(kind).items() if hint in (bool, bool | None)}


def _readable(
    error: argparse.ArgumentError, parser: jsonargparse.ArgumentParser, path: list[str], switches: set[str]
) -> str:
    """The complaint in one line, with the option a mistyped one was probably meant to be."""
    message = re.sub(r"\s+", " ", str(error)).strip()
    command = f"prism {' '.join(path)}"
    unknown = re.match(r"[Uu]nrecognized arguments: (--\S+)", message)
    if unknown:
        name = unknown[1].partition("=")[0]
        options = [option for action in parser._actions for option in action.option_strings]
        return f"{name} is not an option of {command}{suggestion(name, options)}; see {command} --help."
    alone = re.match(r"argument --(\w+): expected one argument", message)
    if alone and alone[1] in switches:
        return f"--{alone[1]}: say --{alone[1]} true, or false."
    message = re.sub(
        r"(?<=arguments are required: )\w[\w, ]*", lambda names: re.sub(r"\w+", r"--\g<0>", names[0]), message
    )
    wrong = re.search(r'Parser key "([^"]+)": (.*)', message)
    if wrong:
        return f"--{wrong[1]}: {_expected(wrong[2])}"
    return f"{message}; see {command} --help."


def _expected(complaint: str) -> str:
    """jsonargparse lists every type that would have done; people want to know which, and what they gave instead."""
    kinds = [kind for kind in re.findall(r"[Ee]xpected a <class '(\w+)'>", complaint) if kind != "NoneType"]
    given = re.search(r"(?:Got value|Given value): (.*?)(?= - Expected|$)", complaint)
    if not kinds or given is None:
        return complaint
    return f"expected {' or '.join(dict.fromkeys(kinds))}, got {given[1].strip()!r}."
