"""From what a model wrote to a program: where the code begins and ends, and nothing else repaired."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import accumulate

from prism.data.code import Task, parsed

STOPS = ("<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "</s>", "[DONE]", "[END]")
STOP = re.compile(rf"(?:(?:{'|'.join(map(re.escape, STOPS))})\s*)+")
FENCE = re.compile(r"^(?P<margin>[ \t]*)(?P<marks>`{3,}|~{3,})[ \t]*(?P<language>\w*)(?P<more>[^`\n]*)(?:\n|\Z)", re.M)
CODE_BEGINS = re.compile(r"^(?:import |from \w[\w.]* import |(?:async )?def |class |@\w|\w+ *=[^=])", re.M)

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def extract(text: str, task: Task) -> str:
    """The program in a completion. Code is never changed, only cut out:

    1. The text ends at the first stop string (an end-of-text token that was written out) that is not part of a string of the
       program.
    2. Of fenced blocks, marked python or not at all, the first that defines the function is taken, or else the first that is
       not empty; an unclosed fence runs to the end. A block that does not define it continues the prompt, like unfenced text.
       Other blocks that define a name it misses, and not the function, are put before it, in their order. Where code comes
       first and then a fence of no language, that fence closes one that the prompt opened, and the code is taken. Fences in
       strings of the program are none.
    3. Unfenced text that defines the function, or a block that does and does not parse, begins at its first line of code;
       prose before it goes.
    4. Text that does not define the function continues the prompt: as it is, or where that gives no function, with the first
       line or all lines indented (models drop the indentation the prompt ends with).
    5. Lines after the function, from a line at the left margin on, are cut where only so the program parses: trailing prose,
       a second answer that breaks off. A mistake inside the function stays and is a syntax error.
    6. Statements at the left margin that try the function out go, with their lines: `if __name__ == ...`, asserts, and what
       calls `print`, or the function or `input`, itself or through a function that does, loops included; then what needs a
       name that only these gave. All else stays: definitions, imports, loops that build what the function needs.
    7. A program that defines the function itself gets what the prompt gave (imports, helpers) put before it.
    """
    first, *others = [stop.start() for stop in STOP.finditer(text)] or [len(text)]
    for end in (len(text), *reversed(others)) if first < len(text) else ():
        program = _program(text[:end], task)
        if _quotes_stops(program, text[:end], task):
            return program
    return _program(text[:first], task)


def _quotes_stops(program: str, text: str, task: Task) -> bool:
    """Whether every stop string of the text is part of a string in the program, which is whole with them."""
    if not _complete(program, task.entry_point) or any(program.count(stop) < text.count(stop) for stop in STOPS):
        return False
    constants = [node.value for node in ast.walk(parsed(program)) if isinstance(node, ast.Constant)]
    strings = [repr(value) for value in constants if isinstance(value, str | bytes)]
    return all(program.count(stop) == sum(string.count(stop) for string in strings) for stop in STOPS)


def _program(text: str, task: Task) -> str:
    """What is left of a text that no stop string ends."""
    defines = _definition(task)
    text, blocks = _code_and_blocks(text, task)
    helpers = [block for block in blocks if block is not text and not defines.search(block) and parses(block)]
    if defines.search(text):
        begin = None if text in blocks and parses(text) else CODE_BEGINS.search(text)
        whole = text[begin.start() :] if begin is not None else text
        if "from __future__" not in whole:  # which must stay the first statement
            whole = task.given + whole
    else:
        ways = _continuations(task, text)
        ways += [_without_tail(way, task.entry_point) for way in ways]
        whole = next((way for way in ways if _complete(way, task.entry_point)), task.prompt + text)
    whole = _with_helpers(_without_tail(whole, task.entry_point), helpers)
    return _without_trials(whole, task.entry_point)


def _definition(task: Task) -> re.Pattern[str]:
    name = re.escape(task.entry_point)
    return re.compile(rf"^(?:async )?def {name}\b|^{name}\s*[:=]", re.M)


# ── fences ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _code_and_blocks(text: str, task: Task) -> tuple[str, list[str]]:
    """The text or the block in which the function is, and all blocks."""
    defines, end = _definition(task), _end_of_unfenced(text, task)
    fence = FENCE.search(text, end or 0)
    if fence is None:
        return text, []
    before, blocks = text[: fence.start()], _blocks(text[fence.start() :], task)
    defining = next((block for block in blocks if defines.search(block)), None)
    closes = end is not None and _is_bare(fence) and not text[end : fence.start()].strip()
    if closes and (defines.search(before) or defining is None or not parses(defining)):
        return before, _blocks(text[fence.end() :], task)
    if defining is not None:
        return defining, blocks
    if end is not None:
        return before, blocks
    return next((block for block in blocks if block.strip()), text), blocks


def _end_of_unfenced(text: str, task: Task) -> int | None:
    """Where the longest beginning of the text ends that is an answer; None if there is none. Fences in it are in strings."""
    fence, begin = FENCE.search(text), CODE_BEGINS.search(text)
    if fence is None:
        return None
    prose = begin.start() if begin is not None and begin.start() < fence.start() else 0
    lines = _lines(text)
    starts = [0, *accumulate(map(len, lines))]
    for number in range(len(lines), 0, -1):
        may_end = number == len(lines) or lines[number][:1].strip() or FENCE.match(lines[number])
        if may_end and _is_answer(text[: starts[number]], prose, task):
            return starts[number]
    return None


def _is_answer(text: str, prose: int, task: Task) -> bool:
    """Whether it is a whole function that gives something back: prose of one word would be Python too."""
    ways = [text[prose:], *_continuations(task, text)]
    whole = next((way for way in ways if _complete(way, task.entry_point)), "")
    function = [node for node in parsed(whole).body if task.entry_point in _bound([node])]
    gives = ast.Return | ast.Yield | ast.YieldFrom | ast.Raise | ast.Lambda
    return any(isinstance(node, gives) for statement in function for node in ast.walk(statement))


def _blocks(text: str, task: Task) -> list[str]:
    """The fenced blocks of Python, or of no language, without their indentation."""
    found, place = [], 0
    while (opening := FENCE.search(text, place)) is not None:
        end, place = _closing(text, opening, task)
        if _may_be_python(opening):
            found.append(_dedented(text[opening.end() : end]))
    return found


def _may_be_python(opening: re.Match[str]) -> bool:
    return opening["language"].lower() in ("", "python", "py", "python3")


def _closing(text: str, opening: re.Match[str], task: Task) -> tuple[int, int]:
    """Where the block ends and where the text goes on: at a line of the same marks, at least as many, and nothing else.

    That is the first no further indented than the opening one, unless only with another one the block is code: others stand in
    docstrings.
    """
    closing = [
        fence
        for fence in FENCE.finditer(text, opening.end())
        if _is_bare(fence) and fence["marks"].startswith(opening["marks"])
    ]
    margin, end = len(opening["margin"]), (len(text), len(text))
    usual = next((fence.span() for fence in closing if len(fence["margin"]) <= margin), end)
    places = [usual, *(fence.span() for fence in closing), end] if _may_be_python(opening) else []
    return next((place for place in places if _is_code(text[opening.end() : place[0]], task)), usual)


def _is_bare(fence: re.Match[str]) -> bool:
    return not fence["language"] and not fence["more"].strip()


def _is_code(block: str, task: Task) -> bool:
    """Whether it parses, or goes on where the prompt stops."""
    return parses(_dedented(block)) or any(_complete(way, task.entry_point) for way in _continuations(task, block))


def _dedented(block: str) -> str:
    """A block's code without the indentation of its fence, where it has any and the code is not a continuation."""
    if CODE_BEGINS.search(block):
        return block  # textwrap would empty blank lines, in strings too
    dedented = textwrap.dedent(block)
    return dedented if CODE_BEGINS.search(dedented) else block


# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def parses(program: str) -> bool:
    return syntax_error(program) is None


def syntax_error(program: str) -> str | None:
    """Python's complaint about the program; None if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(program, "program", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.msg
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; the last two: absurd nesting
        return str(error) or type(error).__name__
    return None


def require_pyflakes() -> None:
    """Complain before any work is done."""
    if importlib.util.find_spec("pyflakes") is None:
        raise ValueError("Undefined names are found by pyflakes; run: pip install 'prism-mdm[code]'")


def undefined_names(program: str) -> list[str]:
    """Names the program uses and nobody defines, by pyflakes; none where it does not parse."""
    require_pyflakes()
    from pyflakes.checker import Checker
    from pyflakes.messages import UndefinedName

    if not parses(program):
        return []
    messages = Checker(parsed(program)).messages
    return sorted({str(message.message_args[0]) for message in messages if isinstance(message, UndefinedName)})


def _continuations(task: Task, text: str) -> list[str]:
    lines = text.strip("\n").split("\n")
    first_indented = "\n".join(["    " + lines[0], *lines[1:]])
    all_indented = "\n".join("    " + line for line in lines)
    return [task.prompt + body for body in (text, "\n" + text, first_indented, all_indented)]


def _without_tail(program: str, entry_point: str) -> str:
    """The longest beginning that is complete, cut only at lines that begin at the left margin; all of it if there is none."""
    lines = program.split("\n")
    for end in range(len(lines), 0, -1):
        at_margin = end == len(lines) or lines[end][:1].strip()
        if at_margin and _complete(beginning := "\n".join(lines[:end]), entry_point):
            return beginning
    return program


def _complete(program: str, entry_point: str) -> bool:
    """Whether it parses and its function, if it defines one, does more than explain itself."""
    if not parses(program):
        return False
    functions = [node for node in parsed(program).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bodies = [(node.body, ast.get_docstring(node)) for node in functions if node.name == entry_point]
    named = re.search(rf"^{re.escape(entry_point)}\s*[:=]", program, re.M)
    return any(len(body) > 1 or docstring is None for body, docstring in bodies) or named is not None


def _with_helpers(program: str, blocks: list[str]) -> str:
    """The blocks that define what the program misses, or what such a block misses, and then the program."""
    if not blocks or not parses(program):
        return program
    chosen: set[int] = set()
    while True:
        missed = _missed("\n".join([*(blocks[number] for number in sorted(chosen)), program]))
        found = {number for number, block in enumerate(blocks) if missed & _bound(parsed(block).body)}
        if found <= chosen:
            break
        chosen |= found
    before = "".join(blocks[number].rstrip("\n") + "\n\n\n" for number in sorted(chosen))
    future = [node for node in parsed(program).body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    lines = _lines(program)
    first = future[-1].end_lineno or 0 if future else 0  # which must stay the first statement
    return "".join([*lines[:first], before, *lines[first:]])


def _missed(program: str) -> set[str]:
    """Names that are read somewhere and bound nowhere."""
    nodes = list(ast.walk(parsed(program)))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return read - {_binds(node) for node in nodes} - set(dir(builtins))


def _bound(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that the statements bind where they stand, not within functions or classes among them."""
    return {name for statement in statements for node in _at_level(statement) if (name := _binds(node)) is not None}


def _binds(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    if isinstance(node, ast.arg):
        return node.arg
    named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar
    return node.name if isinstance(node, named) else None


def _at_level(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all within it that runs when it runs: a function, a class or a lambda, but not its body."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _at_level(child)


def _without_trials(program: str, entry_point: str) -> str:
    if not parses(program):
        return program
    body = parsed(program).body
    suspects = _callers(body, {entry_point, "input"}) | {"print"}
    trials = [_is_trial(statement, entry_point, suspects) for statement in body]
    while True:
        by_trials = _bound(statement for statement, trial in zip(body, trials, strict=True) if trial)
        by_others = _bound(
            statement
            for statement, trial in zip(body, trials, strict=True)
            if not trial and not isinstance(statement, ast.AugAssign)  # which needs what it binds
        )
        more = [trial or _uses(statement, by_trials - by_others) for statement, trial in zip(body, trials, strict=True)]
        if more == trials:
            return _without(program, body, trials)
        trials = more


def _callers(body: list[ast.stmt], names: set[str]) -> set[str]:
    """The names and those of the functions that call one of them, or a function that does."""
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    more = names | {function.name for function in functions if _calls(ast.walk(function), names)}
    return names if more == names else _callers(body, more)


def _calls(nodes: Iterable[ast.AST], names: set[str]) -> bool:
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in names for function in called)


def _is_trial(statement: ast.stmt, entry_point: str, suspects: set[str]) -> bool:
    if isinstance(statement, DEFINITIONS):
        return False
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, ast.If) and _uses(statement.test, {"__name__"}):
        return True
    return entry_point not in _bound([statement]) and _calls(_at_level(statement), suspects)


def _uses(node: ast.AST, names: set[str]) -> bool:
    """Whether it needs one of them when it runs; definitions and imports do not."""
    if isinstance(node, DEFINITIONS):
        return False
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in names:
        return True
    return any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names for n in _at_level(node))


def _without(program: str, body: list[ast.stmt], trials: list[bool]) -> str:
    """The program without the statements that are trials: whole lines, or where others share them (`x = 1; print(x)`) parts."""
    lines = _lines(program)
    starts = [0, *accumulate(map(len, lines))]

    def place(line: int, column: int) -> int:  # columns are counted in bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    whole = [
        (place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)) for node in body
    ]
    cuts: list[tuple[int, int]] = []
    for number, (node, trial) in enumerate(zip(body, trials, strict=True)):
        after = body[number + 1] if number + 1 < len(body) else None
        if not trial:
            continue
        if after is not None and after.lineno == node.end_lineno:
            cuts.append((whole[number][0], whole[number + 1][0]))
        elif number and body[number - 1].end_lineno == node.lineno:
            cuts.append((whole[number - 1][1], whole[number][1]))
        else:
            cuts.append((starts[node.lineno - 1], starts[node.end_lineno or 0]))
    kept, end = [], 0
    for begin, stop in cuts:
        kept.append(program[end : max(begin, end)])
        end = max(stop, end)
    return "".join([*kept, program[end:]])


def _lines(program: str) -> list[str]:
    """Its lines as Python counts them, line ends kept: str.splitlines knows more ends than Python does."""
    return list(StringIO(program, newline=""))
