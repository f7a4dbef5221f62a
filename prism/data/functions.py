"""Python functions as data: what a function is called with and shall do is the prompt, how it does it is to be written.

A function is a text that stands on its own: the imports of its module that it uses, its signature, its docstring, its body.
Decorators go, since they belong to the place a function stands in; methods lose the indentation of their class. The prompt ends
with the closing quotes of the docstring, so that the body begins with a line break, where tokenizers cut anyway.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prism.data.code import parsed, read_rows, task_of

Def = ast.FunctionDef | ast.AsyncFunctionDef
UNREADABLE = (
    SyntaxError,
    ValueError,
    RecursionError,
    MemoryError,
)  # ValueError: null bytes; the last two: absurd nesting
LONGEST_LINE = 300  # characters; longer ones hold data
UNFIT = frozenset("\t\f\ufffd")  # the last stands for what was not UTF-8
OF_EVERY_MODULE = frozenset({*dir(builtins), "__file__", "__class__"})


@dataclass(frozen=True)
class Function:
    package: str
    path: str
    """Of its file, in the package."""
    name: str
    """With its class: `Path.joinpath`."""
    line: int
    prompt: str
    body: str
    documented: bool
    unknown: tuple[str, ...] = ()
    """Names that it uses and neither defines nor imports: helpers and constants of its module."""

    @property
    def text(self) -> str:
        return self.prompt + self.body


@dataclass(frozen=True)
class Selection:
    """Which functions are taken."""

    longest: int = 60
    """Lines of a body."""
    undocumented: bool = False
    """Those without a docstring, too."""


def functions_of(source: str, package: str, path: str, selection: Selection) -> Iterator[tuple[Function, str]]:
    """The functions and methods of a file, each with its normal form; nothing of a file that is no Python."""
    source = source.removeprefix("\ufeff").replace("\r\n", "\n")
    if "\r" in source:
        return
    try:
        module = parsed(source)
    except UNREADABLE:
        return
    lines, imports = source.split("\n"), _imports(module)
    for name, node in _defined(module.body):
        if not selection.undocumented and not _documented(node):
            continue
        if (text := _own_text(lines, node)) is not None:
            try:
                yield from _function(text, name, node.lineno, imports, package, path, selection)
            except UNREADABLE:  # a string that is indented less than its function, and the like
                continue


def _function(
    text: str, name: str, line: int, imports: dict[str, str], package: str, path: str, selection: Selection
) -> Iterator[tuple[Function, str]]:
    tree = parsed(text)
    node = tree.body[0]
    assert isinstance(node, Def)
    documented = _documented(node)
    signature = "\n".join(text.split("\n")[: node.body[0].lineno - 1]).rstrip()
    end = _offset(text, node.body[0]) if documented else len(signature)
    head, body = text[:end], text[end:].rstrip()
    one_line = not body.startswith("\n") and not body.lstrip(" ").startswith("#")
    if one_line or body.strip().count("\n") >= selection.longest or is_trivial(node):
        return
    free = free_names(text)
    needed = dict.fromkeys(line for bound, line in imports.items() if bound in free)  # in the order of the module
    above = "\n".join(needed) + "\n\n\n" if needed else ""
    unknown = tuple(sorted(free - imports.keys() - OF_EVERY_MODULE))
    yield Function(package, path, name, line, above + head, body, documented, unknown), normal_form(node)


def _documented(node: Def) -> bool:
    """Whether a docstring says something: `ast` takes blank lines for one."""
    return bool((ast.get_docstring(node) or "").strip())


def is_trivial(node: Def) -> bool:
    """Whether a function does nothing: it passes, returns None, or says that it is not implemented."""
    return all(_does_nothing(statement) for statement in node.body)


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Return(value=None | ast.Constant(value=None)):
            return True
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
    return False


def free_names(text: str) -> set[str]:
    """Names the text uses and does not define."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = symtable.symtable(text, "function", "exec")
    defined = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    found: set[str] = set()
    tables = [module]
    while tables:
        table = tables.pop()
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and s.is_global()}
        tables += table.get_children()
    return found - defined


def normal_form(node: Def) -> str:
    """The function without what may differ between two copies: layout, comments, docstrings, annotations, decorators, and the
    names of itself, its arguments and its variables. Changes the tree it is given."""
    parts = list(ast.walk(node))
    own = {part.arg for part in parts if isinstance(part, ast.arg)}
    own |= {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for part in parts:
        match part:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(part, clean=False) is not None:
                    part.body = part.body[1:] or [ast.Pass()]
                part.returns, part.decorator_list = None, []
            case ast.arg():
                part.arg, part.annotation = "_", None
            case ast.Name(id=name) if name in own:
                part.id = "_"
    node.name = "_"
    return ast.unparse(node)


def _defined(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, Def]]:
    """Functions of a module and methods of its classes, not those inside other functions."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield within + name, node
            case ast.ClassDef(name=name, body=inner):
                yield from _defined(inner, f"{within}{name}.")
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _defined([*inner, *other], within)


def _imports(module: ast.Module) -> dict[str, str]:
    """The line that imports each name of the module."""
    found: dict[str, str] = {}
    waiting: list[ast.stmt] = list(reversed(module.body))
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import(names=names):
                for alias in names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    found.setdefault(bound, f"import {_as(alias)}")
            case ast.ImportFrom(module=name, names=names, level=level) if name != "__future__":
                for alias in names:
                    line = f"from {'.' * level}{name or ''} import {_as(alias)}"
                    found.setdefault(alias.asname or alias.name, line)
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                waiting += reversed([*inner, *other])
    return found


def _as(alias: ast.alias) -> str:
    return alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"


def _own_text(lines: list[str], node: Def) -> str | None:
    """The function's lines as if it stood at the left margin; None for those with tabs, endless lines or unreadable ones."""
    assert node.end_lineno is not None
    own = lines[node.lineno - 1 : node.end_lineno]
    if any(len(line) > LONGEST_LINE or not UNFIT.isdisjoint(line) for line in own):
        return None
    margin = " " * node.col_offset
    return "\n".join(line.removeprefix(margin) for line in own)


def _offset(text: str, statement: ast.stmt) -> int:
    """How many characters of the text there are up to the end of the statement."""
    assert statement.end_lineno is not None
    assert statement.end_col_offset is not None
    *before, last = text.split("\n")[: statement.end_lineno]
    within = last.encode()[: statement.end_col_offset].decode()  # the tree counts bytes
    return sum(len(line) + 1 for line in before) + len(within)


# ── what must not be learnt ─────────────────────────────────────────────────────────────────────────────────────────


def published_solutions(path: Path) -> list[str]:
    """The normal forms of all functions in the solutions of a published set: HumanEval, MBPP, their plus versions, or rows that
    have the program under `completion` (LeetCodeDataset)."""
    programs = [str(row["completion"]) if "completion" in row else task_of(row).solution for row in read_rows(path)]
    forms: list[str] = []
    for program in programs:
        try:
            found = [node for _, node in _defined(parsed(re.sub(r"\r\n?", "\n", program)).body)]
            forms += [normal_form(node) for node in found if not is_trivial(node)]
        except UNREADABLE:  # a few published solutions are in Python 2
            continue
    return forms
