"""What models write around their code, and what of it is run."""

from __future__ import annotations

import pytest

from prism.data.code import Task
from prism.evaluation.extraction import extract, parses, undefined_names

HEAD = "from typing import List\n\n\ndef helper(x):\n    return x\n\n\n"
PROMPT = f'{HEAD}def add(a: int, b: int) -> int:\n    """ Add. """\n'
CONTINUED = Task("HumanEval/0", PROMPT, "Add.", "add", "", "", given=HEAD)
ASKED = Task("Mbpp/1", "Write a function to add.\n", "Write a function to add.", "add", "", "")
ADD = "def add(a, b):\n    return a + b\n"
LOOP = "    total = a\n    for _ in range(b):\n        total += 1\n    return total\n"
ADD_ZERO = "def add(a, b):\n    return a + b + ZEROS[0]\n"
ADD_PLUS = "def add(a, b):\n    return plus(a, b)\n"
PLUS = "def plus(a, b):\n    return a + b\n"
PLUS_OPERATOR = "def plus(a, b):\n    return operator.add(a, b)\n"
WITH_EXAMPLE = 'def add(a, b):\n    """Add.\n\n    ```\n    >>> add(2, 3)\n    ```\n    """\n    return a + b\n'
AT_THE_MARGIN = WITH_EXAMPLE.replace("    ```", "```")
IN_STRINGS = (
    "def add(a, b):\n    ends = ['</s>', '[DONE]', b'[END]', f'{a}<|im_end|>']\n    return a + b + 0 * len(ends)\n"
)


def fenced(code: str) -> str:
    return f"```python\n{code}\n```\n"


RIGHT = {
    "the body, indented": "    return a + b\n",
    "the body, its first line's indentation lost": "return a + b",
    "a long body, its first line's indentation lost": LOOP.lstrip(),
    "the body, all its indentation lost": "c = a + b\nreturn c",
    "the body and another function": "    return second(a, b)\n\ndef second(a, b):\n    return a + b\n",
    "the signature repeated": ADD,
    "the whole prompt repeated": PROMPT + "    return a + b\n",
    "a fence with a language": f"```python\n{ADD}```",
    "a fence without": f"```\n{ADD}```",
    "a fence of tildes": f"~~~py\n{ADD}~~~",
    "a capital language": f"```Python\n{ADD}```",
    "the body in a fence": "```python\n    return a + b\n```",
    "prose around a fence": f"Sure! Here it is:\n\n```python\n{ADD}```\n\nIt adds. Don't forget to call it.",
    "an indented fence": "1. First:\n   ```python\n   def add(a, b):\n       return a + b\n   ```",
    "an unclosed fence": f"Here:\n```python\n{ADD}",
    "an unclosed fence with a stop string": f"```python\n{ADD}<|im_end|>\nuser\nThanks!",
    "blocks in other languages first": f"```bash\npip install add\n```\n```python\n{ADD}```",
    "a use before the function": f"```python\nprint(1 + 1)\n```\nand\n```python\n{ADD}```",
    "a use after the function": f"```python\n{ADD}```\nUse it:\n```python\nassert add(1, 2) == 4\n```",
    "a second, wrong version": f"```python\n{ADD}```\nor\n```python\ndef add(a, b): return a\n```",
    "prose before unfenced code": f"The function adds.\n\n{ADD}",
    "prose after unfenced code": f"{ADD}\nThis function isn't complicated: it adds.",
    "imports before": f"import math\nfrom os import path\n\n{ADD}",
    "if __name__": f"{ADD}\nif __name__ == '__main__':\n    assert add(1, 1) == 3\n",
    "asserts, prints and loops": f"{ADD}assert add(1, 1) == 3\nprint(add(1))\nfor x in range(3):\n    add(x)\ny = add(1)\n",
    "a doctest run": f"{ADD}\nimport doctest\nif __name__ == '__main__': doctest.testmod()",
    "a second function that breaks off": f"{ADD}\ndef test_add():\n    assert add(1, 2",
    "a string that is never closed": f'{ADD}\nexample = """add(1, 2)\n',
    "a stop string": f"{ADD}<|endoftext|>def add(a, b): return 0",
    "MBPP's end": f"[BEGIN]\n{ADD}[DONE]\nYou are an expert",
    "a constant used by it": f"ZERO = 0\n{ADD}".replace("a + b", "a + b + ZERO"),
    "a lambda": "add = lambda a, b: a + b",
    "a class beside it": "class Sum:\n    def of(self, a, b): return a + b\n\ndef add(a, b):\n    return Sum().of(a, b)\n",
    "a decorator": "import functools\n\n@functools.cache\ndef add(a, b):\n    return a + b\n",
    "carriage returns": ADD.replace("\n", "\r\n"),
    "a future import": f"from __future__ import annotations\n{ADD}",
    "a setting at the top": f"import sys\nsys.setrecursionlimit(10_000)\n{ADD}",
    "a loop that builds what it needs": f"ZEROS = []\nfor n in range(3):\n    ZEROS.append(n - n)\n{ADD_ZERO}",
    "such a loop after it": f"{ADD_ZERO}\nZEROS = {{}}\nn = 0\nwhile n < 2:\n    ZEROS[n] = 0\n    n += 1\n",
    "an annotated constant in a fence": f"```python\nZEROS: list[int] = [0]\n{ADD_ZERO}```",
    "loops that try it": f"{ADD}for x in range(3):\n    add(x)\nwhile True:\n    print(input())\n",
    "what trials gave, used": f"{ADD}tried = add(1, 2)\ntried += 1\ntwice = tried * 2\nfor x in [twice]:\n    x.wrong\n",
    "a trial through functions": f"{ADD}def main():\n    add(input(), 1)\ndef run():\n    main()\nfor _ in 'ab':\n    run()\n",
    "a lambda that calls itself": "add = lambda a, b: add(a - 1, b) + 1 if a else b",
    "a second function, in a condition": f"{ADD}if True:\n    def add(a, b):\n        print(a)\n        return a + b\n",
    "trials that share a line": f"{ADD}import os; print(os); x = 1; add(x); y = x\nprint(1); z = y\nz; add('é') ; print()",
    "a helper in a second block": f"{fenced(ADD_PLUS)}with\n{fenced(PLUS)}",
    "helpers in blocks before": f"{fenced('import operator')}{fenced(PLUS_OPERATOR)}{fenced(ADD_PLUS)}",
    "a helper and a future import": fenced(f"from __future__ import annotations\n{ADD_PLUS}") + fenced(f"{PLUS}print(add(1))"),
    "a helper for the body": fenced("    return plus(a, b)") + fenced(PLUS),
    "the prompt's fence closed": "    return a + b\n```\n",
    "the prompt's fence closed after a function": f"{ADD}```\n",
    "the prompt's fence closed, prose after": "    return a + b\n```\n\nThis adds the two numbers.",
    "the prompt's fence closed after a function, prose after": f"{ADD}```\nExplanation: it's simple.",
    "the prompt's fence closed, an example after": f"{ADD}```\nExample:\n```python\nprint(add(1, 2))\n```",
    "the prompt's fence closed, a call after": "    return a + b\n```\nprint(add(1, 2))\n```\n",
    "the prompt's fence closed, another version after": "    return a + b\n```\nor:\n```python\nadd = max\n```",
    "the prompt's fence closed, a helper after": f"{ADD_PLUS}```\nwith\n```python\n{PLUS}```",
    "the prompt's fence closed, indented": "    return a + b\n    ```\nThis adds.",
    "the prompt's fence closed, prose before": f"It adds:\n{ADD}```\nThat's it.",
    "an example in a fence after": f"{ADD}\nIt's used so:\n```python\nprint(add(1, 2))\n```",
    "a helper in a fence without a language after": f"{ADD_PLUS}\nIt needs:\n```\n{PLUS}```",
    "one word before a fence": f"Sure\n```\n{ADD}```",
    "one word before a fenced body": "Sure\n```\n    return a + b\n```",
    "a call before a fence": f"add(2, 3)\n```\n{ADD}```",
    "an empty block before": f"```python\n```\n{fenced(ADD)}",
    "an empty block before and no other": f"```python\n```\n{ADD}",
    "a fence in the docstring": WITH_EXAMPLE,
    "a fence in the docstring, prose after": f"{WITH_EXAMPLE}\nThat's it.",
    "a fence in the docstring, the prompt's closed": f"{WITH_EXAMPLE}```\nThat's it.",
    "a fence in the docstring of a block": f"Here:\n{fenced(WITH_EXAMPLE)}That's it.",
    "a fence in the docstring of an unclosed block": f"```python\n{WITH_EXAMPLE}",
    "a fence in the docstring, at the margin": f"Here:\n{fenced(AT_THE_MARGIN)}That's it.",
    "a longer fence": f"````python\n{AT_THE_MARGIN}````\nThat's it.",
    "a fence closed further in": f"```python\n{ADD}    ```\nThat's it.",
    "a fence never closed but opened again": f"```python\n{ADD}```python\nprint(add(1, 2))\n```",
    "stop strings in strings": IN_STRINGS,
    "stop strings in strings of a block": f"{fenced(IN_STRINGS)}</s></s>\n[DONE]",
    "stop strings in strings, and one that stops": f"{IN_STRINGS}</s>\nuser\nThanks!",
    "a stop string in a constant after it": "def add(a, b):\n    return a + b + 0 * len(END)\n\n\nEND = '</s>'\n",
    "stop strings and a trial that prints one": f"{ADD}[DONE]\nprint('[DONE]')\n",
}  # fmt: skip


def runs(program: str) -> bool:
    scope: dict[str, object] = {"__name__": "program"}
    exec(program, scope)
    return scope["add"](2, 3) == 5  # type: ignore[operator]


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_the_function_is_found(text: str) -> None:
    program = extract(text, CONTINUED)
    assert parses(program), program
    assert runs(program), program
    if "def add" in text or "lambda" in text:
        assert runs(extract(text, ASKED))


WRONG = {
    "a mistake inside": "def add(a, b):\n    c = = a\n    return a + b\n",
    "a mistake inside and more after": "def add(a, b):\n    return (a + b\n\ndef other():\n    return 1\n",
    "broken off": "def add(a, b):\n    return (a +",
    "tokens missing": "add(a, b:\n    return a + b",
    "indentation gone": "def add(a, b):\nreturn a + b\n",
    "a null byte": "def add(a, b):\n    return a + b\0\n",
    "a second answer after a stop string": "    return (a +<|im_end|>\n```python\ndef add(a, b):\n    return a + b\n```",
    "nested too deep": "def add(a, b):\n    return " + "(" * 500 + ")" * 500,
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_mistakes_are_not_repaired(text: str) -> None:
    for task in (CONTINUED, ASKED):
        assert not parses(extract(text, task))


@pytest.mark.parametrize("text", ["", "I cannot do that.", "```python\n```", "```", "pass", "print('add')"])
def test_no_function_at_all(text: str) -> None:
    """Nothing is made up: the program does not parse, or has no function that adds."""
    for task in (CONTINUED, ASKED):
        program = extract(text, task)
        assert not parses(program) or "return a + b" not in program


def test_what_the_prompt_gave_comes_first() -> None:
    assert extract(ADD, CONTINUED) == HEAD + ADD
    assert extract(ADD, ASKED) == ADD


def test_what_stays_is_not_changed() -> None:
    """Comments, quotes, layout and line ends; lines that go take only themselves along."""
    kept = "# one\ndef add(a,b) :  # two\n    return (a\n        +b)   # 'three'\n\n\nNAMES = { 'é' : \"x\" }\n# four\n"
    trials = "assert add(1, 2) == 3  # gone\nprint(\n    'é\u2028', add(1, 2)\n)\n"
    assert extract(f"```python\n{trials}{kept}{trials}# five\n```", ASKED) == f"{kept}# five\n"
    returns = f"{kept}{trials}".replace("\n", "\r\n")
    assert (
        extract(returns, ASKED) == kept.replace("\n", "\r\n").partition("\n")[2]
    )  # unfenced code begins at no comment
    blank = 'def add(a, b):\n    """\n    \n    """\n    return a + b\n'
    assert extract(f"```python\n{blank}```", ASKED) == blank
    assert extract(f"{ADD}x = 'é'; add(1); y = 2", ASKED) == f"{ADD}x = 'é'; y = 2"
    assert extract(f"{ADD}x = 'é'; add(1)\n", ASKED) == f"{ADD}x = 'é'\n"


def test_blocks_that_are_not_needed_stay_out() -> None:
    unneeded = "```python\nraise ValueError\n```\n```python\ndef other(): pass\n```\n```python\nimport (\n```\n"
    for text in (f"{unneeded}```python\n{ADD}```", f"```python\n{ADD}```\n{unneeded}"):
        assert extract(text, ASKED) == ADD


def test_undefined_names() -> None:
    assert undefined_names("def f(x):\n    return maths.sqrt(x) + y\n") == ["maths", "y"]
    assert undefined_names("import math\ndef f(x):\n    return math.sqrt(x)\n") == []
    assert undefined_names("def f(:") == []
