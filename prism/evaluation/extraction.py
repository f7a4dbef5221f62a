"""From what a model wrote to a program: where the code begins and ends, and nothing else repaired."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

from prism.data.code import Task, parsed

STOPS = ("<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "</s>", "[DONE]", "[END]")
FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)|\Z)", re.S | re.M)
CODE_BEGINS = re.compile(r"^(?:import |from \w[\w.]* import |(?:async )?def |class |@\w|\w+ *=[^=])", re.M)


def extract(text: str, task: Task) -> str:
    """The program in a completion. Code is never changed, only cut out:

    1. The text ends at the first stop string (an end-of-text token that was written out).
    2. Of fenced blocks, marked python or not at all, the first that defines the function is taken, or else the first; an
       unclosed fence runs to the end. A block that does not define it continues the prompt, like unfenced text.
    3. Unfenced text that defines the function begins at its first line of code; prose before it goes.
    4. Text that does not define the function continues the prompt: as it is, or where that gives no function, with the first
       line or all lines indented (models drop the indentation the prompt ends with).
    5. Lines after the function, from a line at the left margin on, are cut where only so the program parses: trailing prose,
       a second answer that breaks off. A mistake inside the function stays and is a syntax error.
    6. Statements that try the function out go: `if __name__ == ...`, asserts, prints, loops, calls of the function.
    7. A program that defines the function itself gets what the prompt gave (imports, helpers) put before it.
    """
    for stop in STOPS:
        text = text.partition(stop)[0]
    defines = re.compile(
        rf"^(?:async )?def {re.escape(task.entry_point)}\b|^{re.escape(task.entry_point)}\s*[:=]", re.M
    )
    blocks = [
        _dedented(body) for language, body in FENCE.findall(text) if language.lower() in ("", "python", "py", "python3")
    ]
    if blocks:
        text = next((block for block in blocks if defines.search(block)), blocks[0])
    if defines.search(text):
        begin = CODE_BEGINS.search(text)
        whole = text[begin.start() :] if begin is not None else text
        if "from __future__" not in whole:  # which must stay the first statement
            whole = task.given + whole
    else:
        ways = _continuations(task, text)
        ways += [_without_tail(way, task.entry_point) for way in ways]
        whole = next((way for way in ways if _complete(way, task.entry_point)), task.prompt + text)
    return _without_trials(_without_tail(whole, task.entry_point), task.entry_point)


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


def undefined_names(program: str) -> list[str]:
    """Names the program uses and nobody defines, by pyflakes; none where it does not parse."""
    try:
        from pyflakes.checker import Checker
        from pyflakes.messages import UndefinedName
    except ImportError as error:
        raise ValueError(
            "Undefined names are found by pyflakes; install it with: pip install 'prism-mdm[code]'"
        ) from error
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


def _without_trials(program: str, entry_point: str) -> str:
    if not parses(program):
        return program
    tree = parsed(program)
    kept = [statement for statement in tree.body if not _is_trial(statement, entry_point)]
    if len(kept) == len(tree.body):
        return program
    return ast.unparse(ast.Module(kept, tree.type_ignores)) + "\n"


def _is_trial(statement: ast.stmt, entry_point: str) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.Assert | ast.For | ast.While):
        return True
    if isinstance(statement, ast.If) and "__name__" in {
        n.id for n in ast.walk(statement.test) if isinstance(n, ast.Name)
    }:
        return True
    called = {
        node.func.id for node in ast.walk(statement) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return bool(called & {entry_point, "print", "input"})


def _dedented(block: str) -> str:
    """A block's code without the indentation of its fence, where it has any and the code is not a continuation."""
    dedented = textwrap.dedent(block)
    return dedented if CODE_BEGINS.search(dedented) else block
