"""Functions cut out of files: prompt, body, what they need, and what tells two of them apart."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from prism.data.functions import Function, Selection, free_names, functions_of, normal_form, published_solutions

MODULE = '''
from __future__ import annotations
import os.path
import numpy as np
try:
    from json import dumps, loads as read
except ImportError:
    pass

LIMIT = 3

def spread(values, *, unbiased=True):
    """The standard deviation — of numbers."""  # ddof
    # one less
    return np.std(values, ddof=int(unbiased))

class Store:
    class Inner:
        @property
        def size(self):
            """Bytes on disk,
            rounded up."""

            text = """
left
"""
            return os.path.getsize(self.path) + LIMIT + len(text)

    async def load(self):
        \'\'\'Everything.\'\'\'
        def inner():
            """Not a function of its own."""
            return 1
        return read(self.text), inner()

    def undocumented(self,
                     given):
        return dumps(given)

    def later(self):
        """Not yet."""
        raise NotImplementedError

def short(): return 1
def shorter(): "Said and done."; return 1
'''


def found(source: str = MODULE, selection: Selection | None = None) -> dict[str, Function]:
    return {f.name: f for f, _ in functions_of(source, "p", "p/m.py", selection or Selection())}


def forms(source: str) -> list[str]:
    return [form for _, form in functions_of(source, "p", "p/m.py", Selection(undocumented=True))]


def test_functions_and_methods_with_docstrings() -> None:
    assert list(found()) == ["spread", "Store.Inner.size", "Store.load"]


def test_prompt_is_imports_signature_and_docstring() -> None:
    spread = found()["spread"]
    assert spread.prompt == (
        'import numpy as np\n\n\ndef spread(values, *, unbiased=True):\n    """The standard deviation — of numbers."""'
    )
    assert spread.body == "  # ddof\n    # one less\n    return np.std(values, ddof=int(unbiased))"
    assert spread.unknown == ()
    assert MODULE.split("\n")[spread.line - 1].startswith("def spread")


def test_methods_stand_at_the_margin_without_decorators() -> None:
    size = found()["Store.Inner.size"]
    assert size.prompt.startswith("import os.path\n\n\ndef size(self):\n    ")
    assert size.body.endswith('\nleft\n"""\n    return os.path.getsize(self.path) + LIMIT + len(text)')
    assert size.unknown == ("LIMIT",)
    ast.parse(size.text)


def test_only_the_names_that_are_used_are_imported() -> None:
    assert found()["Store.load"].prompt.startswith("from json import loads as read\n\n\nasync def load(self):")


def test_undocumented_ones_if_asked() -> None:
    extra = found(selection=Selection(undocumented=True))["Store.undocumented"]
    assert not extra.documented
    assert extra.prompt == "from json import dumps\n\n\ndef undocumented(self,\n                 given):"
    assert extra.body == "\n    return dumps(given)"


@pytest.mark.parametrize("docstring", ['""', '"""  """', '"""\n    """', 'f"{f}"', 'b"Doc."'])
def test_an_empty_docstring_is_none(docstring: str) -> None:
    source = f"def f(x):\n    {docstring}\n    return x + 1\n"
    assert not found(source)
    assert not found(source, Selection(undocumented=True))["f"].documented


def test_long_bodies_go() -> None:
    body = "".join(f"    x = {n}\n" for n in range(5))
    source = f'def f():\n    """Doc."""\n{body}'
    assert list(found(source, Selection(longest=5))) == ["f"]
    assert not found(source, Selection(longest=4))


@pytest.mark.parametrize(
    "source",
    [
        "print 1\n",
        "def f(:\n",
        "\x00",
        'def f():\n\t"""Doc."""\n\treturn 1\n',
        'def f():\n    """Doc \ufffd."""\n    return 1\n',
    ],
    ids=["python 2", "broken", "null", "tabs", "not UTF-8"],
)
def test_unreadable_files_give_nothing(source: str) -> None:
    assert not found(source)


def test_windows_line_ends_and_marks() -> None:
    assert found('\ufeffdef f():\r\n    """Doc."""\r\n    return 1\r\n')["f"].body == "\n    return 1"


def test_free_names() -> None:
    text = "def f(a: T, b=D):\n    c = [a for a in g(b)]\n    def h():\n        return c, E\n    return h, f, max"
    assert free_names(text) == {"T", "D", "g", "E", "max"}


def test_normal_form_forgets_names_layout_and_words() -> None:
    one = 'def f(a, b: int = 1) -> int:\n    """Doc."""\n    total = a + b  # sum\n    return abs(total)'
    other = "@cached\ndef g(x, y=1):\n    s = (x +\n         y)\n    return abs(s)"
    assert forms(one) == forms(other)
    assert forms(one) != forms(one.replace("abs", "int"))
    assert forms(one) != forms(one.replace("a + b", "a - b"))


def test_solutions_of_published_sets(tmp_path: Path) -> None:
    rows = [
        {"task_id": "a", "completion": "class Solution:\n    def twice(self, x):\n        return 2 * x\n"},
        {
            "task_id": 2,
            "text": "Triple.",
            "code": "def triple(x):\r\n  return 3 * x",
            "test_list": ["assert triple(1) == 3"],
        },
        {"task_id": "c", "completion": "def broken(:"},
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert published_solutions(path) == ["def _(_, _):\n    return 2 * _", "def _(_):\n    return 3 * _"]
    node = ast.parse("def f(q):\n    return 3 * q").body[0]
    assert isinstance(node, ast.FunctionDef)
    assert normal_form(node) in published_solutions(path)
