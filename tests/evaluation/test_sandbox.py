"""Programs that mean harm, or cheat: each must end as it deserves, leave nothing running, and change nothing.

Every attack is tried in every isolation this machine allows, so the fallback is tested where the first choice works too.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import signal
import socket
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prism.evaluation import sandbox
from prism.evaluation.sandbox import Isolation, Limits, Outcome, Program, Report, available, run, run_all, strongest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is made of Linux's parts")
SMALL = Limits(seconds=5.0, memory=256 << 20, output=4096, disk=1 << 20)
HASTY = Limits(seconds=0.7, memory=256 << 20)
SUBREAPER = 36


@pytest.fixture(params=[Isolation.NAMESPACES, Isolation.LANDLOCK], ids=lambda kind: kind.name.lower())
def isolation(request: pytest.FixtureRequest) -> Iterator[Isolation]:
    """After each test, no process of the sandbox is left: orphans would have become children of this one."""
    if request.param not in available():
        pytest.skip(f"this machine does not allow {request.param.value}")
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before = children()
    yield request.param
    deadline = time.monotonic() + 2  # the dying take a moment
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children() <= before
    ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)


def children() -> set[int]:
    """Of this process, the dead left out."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(name))
    return found


def attack(source: str, isolation: Isolation, limits: Limits = SMALL, tests: str = "") -> Report:
    return run(Program(textwrap.dedent(source), tests), limits, isolation)


def refusals(deeds: list[str], isolation: Isolation) -> dict[str, str]:
    """What each deed was answered with, "done" where it was not refused; all in one program."""
    source = f"""
        import ctypes, fcntl, os, resource, shutil, signal, socket, subprocess, sys
        PARENT = {os.getpid()}
        libc = ctypes.CDLL(None, use_errno=True)
        def raw(name, *arguments):
            if getattr(libc, name)(*arguments) == -1: raise OSError(ctypes.get_errno(), name)
        for deed in {deeds!r}:
            try: exec(deed)
            except Exception as error: print(type(error).__name__)
            else: print("done")
    """
    report = attack(source, isolation)
    assert report.passed, report
    return dict(zip(deeds, report.output.split(), strict=True))


def assert_refused(report: Report, what: str = "PermissionError") -> None:
    assert report.outcome is Outcome.FAILED
    assert report.detail.startswith(what)


# ── honest programs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_right_and_wrong(isolation: Isolation) -> None:
    source = "def twice(x):\n    print('called')\n    return 2 * x"
    report = attack(source, isolation, tests="assert twice(4) == 8\nassert twice([1]) == [1, 1]")
    assert report.passed
    assert report.output == "called\ncalled\n"
    assert report.cpu_seconds is not None
    assert 0 < report.cpu_seconds < 2
    wrong = attack(source, isolation, tests="assert twice(4) == 8\nassert twice(4) == 9")
    assert (wrong.outcome, wrong.detail) == (Outcome.FAILED, "AssertionError: assert twice(4) == 9")


@pytest.mark.parametrize(
    ("value", "comparison"),
    [
        ("{1: (2.5, {3}), 'a': [None, True, b'x', 1j]}", "== {1: (2.5, {3}), 'a': [None, True, b'x', 1j]}"),
        ("__import__('collections').Counter('aab')", "== {'a': 2, 'b': 1}"),
        ("(n for n in range(3))", ".__next__() == 0"),
        ("float('nan')", "!= 0"),
        ("10 ** 5000", "== 10 ** 5000"),
        ("'\\ud800'", "== '\\ud800'"),
        ("[[[[1]]]]", "== [[[[1]]]]"),
        ("None", "is None"),
    ],
)
def test_answers_arrive_as_they_left(value: str, comparison: str) -> None:
    best = strongest(unsafe=True)
    assert run(Program(f"def f(): return {value}", f"assert f() {comparison}"), SMALL, best).passed


def agrees(source: str, tests: str, limits: Limits = SMALL) -> None:
    """The sandbox finds what one process with program and tests finds: that they pass."""
    source, tests = textwrap.dedent(source), textwrap.dedent(tests)
    exec(compile(f"{source}\n{tests}", "both", "exec", dont_inherit=True), {"__name__": "both"})
    report = run(Program(source, tests), limits, strongest(unsafe=True))
    assert report.passed, report


STANDARD = {
    "Fraction": ("fractions.Fraction(1, 2)", "x == 0.5 and x + 1 == 1.5 and str(x) == '1/2'"),
    "Decimal": ("decimal.Decimal('0.10')", "x == decimal.Decimal('0.1') and str(x) == '0.10' and round(x, 1) == x"),
    "keys": ("{'a': 1, 'b': 2}.keys()", "x == {'a', 'b'} and list(x) == ['a', 'b'] and len(x) == 2 and 'a' in x"),
    "values": ("{'a': 1, 'b': 1}.values()", "list(x) == [1, 1] and sum(x) == 2 and x != [1, 1]"),
    "items": ("{'a': [1]}.items()", "dict(x) == {'a': [1]} and ('a', [1]) in x and not isinstance(x, list)"),
    "range": ("range(1, 9, 3)", "x == range(1, 9, 3) and list(x) == [1, 4, 7] and x != [1, 4, 7] and x[-1] == 7"),
    "deque": ("collections.deque([1, 2, 3], 3)", "list(x) == [1, 2, 3] and x.maxlen == 3 and x != [1, 2, 3]"),
    "Counter": ("collections.Counter('aab')", "x == {'a': 2, 'b': 1} and x['z'] == 0 and x.most_common(1) == [('a', 2)]"),
    "OrderedDict": ("collections.OrderedDict(b=1, a=2)", "x == {'a': 2, 'b': 1} and next(iter(x)) == 'b'"),
    "defaultdict": ("collections.defaultdict(list, a=[1])", "x == {'a': [1]} and x['b'] == []"),
    "its factory": ("collections.defaultdict(lambda: 7)", "x == {} and x['b'] == 7"),
    "named tuple": ("collections.namedtuple('P', 'x y')(1, [2])", "x == (1, [2]) and x.y == [2] and x._fields == ('x', 'y')"),
    "date": ("datetime.date(2024, 2, 29)", "x == datetime.date(2024, 2, 29) and x.isoformat() == '2024-02-29'"),
    "datetime": ("datetime.datetime(2024, 1, 2, 3, 4, 5, 6)", "x.microsecond == 6 and x - x == datetime.timedelta(0)"),
    "aware": (
        "datetime.datetime(2024, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))",
        "x == datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)",
    ),
    "time": ("datetime.time(1, 2)", "x == datetime.time(1, 2)"),
    "timedelta": ("datetime.timedelta(-1, 2)", "x == datetime.timedelta(days=-1, seconds=2) and x.days == -1"),
    "frozenset": ("frozenset({fractions.Fraction(1)})", "x == {1} and isinstance(x, frozenset)"),
    "complex": ("complex(1, -2)", "x == 1 - 2j and abs(x.imag) == 2"),
    "bytearray": ("bytearray(b'ab')", "x == b'ab' and isinstance(x, bytearray)"),
    "array": ("array.array('i', [1, 2])", "x == array.array('i', [1, 2]) and list(x) == [1, 2]"),
    "a type": ("int", "x is int and x('3') == 3"),
    "a str that is an Enum": ("enum.Enum('Shade', 'DARK', type=str).DARK", "x == '1'"),
    "an int that is an Enum": ("enum.IntEnum('Shade', 'DARK').DARK", "x == 1"),
    "map": ("map(str, [1, 2])", "list(x) == ['1', '2'] and list(x) == []"),
    "filter": ("filter(None, [0, 1])", "next(x) == 1 and next(x, 'end') == 'end'"),
    "zip": ("zip('ab', [[1], [2]])", "dict(x) == {'a': [1], 'b': [2]}"),
    "reversed": ("reversed([1, 2])", "sorted(x) == [1, 2]"),
    "nested": ("{'a': [fractions.Fraction(1, 2)], (1, 2): collections.deque([{3}])}", "x['a'] == [0.5] and x[1, 2][0] == {3}"),
    "deep": ("__import__('functools').reduce(lambda inner, _: [inner], range(400), 1)", "str(x).count('[') == 400"),
    "shared": ("(lambda row: [row, row])([0])", "x[0] is x[1]"),
}  # fmt: skip
IMPORTS = "import array, collections, datetime, decimal, enum, fractions"


@pytest.mark.parametrize(("value", "test"), STANDARD.values(), ids=STANDARD)
def test_standard_types_are_what_they_are(value: str, test: str) -> None:
    """Back from the program, and there and back again."""
    agrees(f"{IMPORTS}\ndef f(): return {value}", f"{IMPORTS}\nx = f()\nassert {test}")
    agrees(
        f"{IMPORTS}\ndef f(value): return value",
        f"{IMPORTS}\nx = f({value.replace('lambda: 7', 'int')})\nassert x is not None",
    )


def test_arrays_of_numpy() -> None:
    pytest.importorskip("numpy")
    source = """
        import numpy as np
        def grid(): return np.arange(6).reshape(2, 3) * 0.5
        def some(): return [np.float32(0.1), np.bool_(True), np.int64(3), np.array(['a', None], object)]
        def double(x): x *= 2
    """
    tests = """
        import numpy as np
        assert grid().shape == (2, 3) and grid().tolist() == [[0, 0.5, 1], [1.5, 2, 2.5]] and list(grid()[0]) == [0, 0.5, 1]
        assert (grid() == grid()).all() and len(grid()) == 2 and grid().max() == 2.5
        small, yes, three, objects = some()
        assert small == np.float32(0.1) and yes is not True and yes and three == 3 and objects.tolist() == ['a', None]
        x = np.arange(3)
        double(x)
        assert x.tolist() == [0, 2, 4]
    """
    agrees(source, tests, Limits())


CHANGES = {
    "a list": ("x.append(4); x.sort(reverse=True)", "x = [1, 2]", "x == [4, 2, 1]"),
    "a dictionary": ("x['b'] = [x.pop('a')]", "x = {'a': 1}", "x == {'b': [1]}"),
    "a set": ("x.discard(1); x |= {(2, 3)}", "x = {1}", "x == {(2, 3)}"),
    "others": (
        "[y.extend([1]) for y in x[:2]]; x[2].update('aa'); x[3]['z'].append(1)",
        "x = [collections.deque(), bytearray(b'a'), collections.Counter('a'), collections.defaultdict(list)]",
        "x == [collections.deque([1]), b'a\\1', {'a': 3}, {'z': [1]}]",
    ),
    "what is inside": ("x[0].append(2); x.reverse()", "a, b = [1], [9]; x = [a, b]", "x[1] is a and a == [1, 2] and b == [9]"),
    "inside a tuple": ("x[1].clear()", "x = (1, [2])", "x == (1, [])"),
    "one twice": ("x[0].append(1)", "a = []; x = [a, a]", "x == [[1], [1]]"),
    "to itself": ("x.append(x)", "x = []", "x[0] is x"),
    "before an exception": ("x.append(1); raise ValueError(x)", "x = []", "x == [1]"),
    "nothing": ("sorted(x)", "x = [[2], [1]]; y = x[0]", "x == [[2], [1]] and x[0] is y"),
    "by name": ("x.append(1)", "x = []; f(x=x); x.pop()", "x == [1]"),
}  # fmt: skip


@pytest.mark.parametrize(("deed", "before", "after"), CHANGES.values(), ids=CHANGES)
def test_what_a_call_does_to_its_arguments(deed: str, before: str, after: str) -> None:
    source = f"def f(x):\n    {deed}"
    agrees(source, f"import collections\n{before}\ntry: f(x)\nexcept ValueError: pass\nassert {after}")


def test_a_result_that_is_an_argument() -> None:
    agrees("def f(x): x.sort(); return x", "x = [2, 1]\ny = f(x)\ny.append(3)\nassert y is x and x == [1, 2, 3]")
    agrees("def f(x): return {'x': x, 'y': [1]}", "x = []\ny = f(x)\nassert y['x'] is x and y['y'] == [1]")


def test_iterators_are_asked_for_one_item_after_another() -> None:
    source = """
        def endless():
            n = 0
            while True: yield [n]; n += 1
        def slow():
            yield 1
            while True: pass
        def breaks(n):
            yield from range(n)
            raise ValueError(n)
        def total(items): return sum(items)
        class Countdown:
            def __init__(self, n): self.n = n
            def __iter__(self): return self
            def __next__(self):
                if not self.n: raise StopIteration
                self.n -= 1
                return self.n
    """
    tests = """
        import itertools
        numbers = endless()
        assert [next(numbers) for _ in range(3)] == [[0], [1], [2]] and next(numbers) == [3]
        assert len(list(itertools.islice(endless(), 5000))) == 5000
        assert next(slow()) == 1
        for n in (0, 3, 99, 100, 101, 3000):
            seen = []
            try:
                for item in breaks(n): seen.append(item)
            except ValueError as error:
                assert seen == list(range(n)) and error.args == (n,)
            else:
                raise AssertionError
        some = iter(Countdown(4))
        assert next(some) == 3 and total(some) == 3 and list(some) == []
        assert total(x for x in (1, 2)) == 3 and total(map(int, '12')) == 3
    """
    agrees(source, tests)


def test_a_stop_iteration_of_the_program_ends_no_loop_of_the_tests(isolation: Isolation) -> None:
    """In one process these would pass, with not one right answer."""
    for name in ("StopIteration", "StopAsyncIteration", "GeneratorExit"):
        source = f"class Late({name}): pass\ndef f(x): raise {name}\ndef g(x): raise Late"
        for test in (
            "list(map(f, [1, 2])) == []",
            "list(map(g, [1, 2])) == []",
            "all(map(f, [1]))",
            "not [*map(f, [1])]",
        ):
            report = attack(source, isolation, tests=f"assert {test}")
            assert report.outcome is Outcome.FAILED
            assert report.detail.startswith((name, "Late"))


def test_exceptions_can_be_caught_as_what_they_derive_from() -> None:
    source = """
        import json
        class Odd(ValueError):
            def __str__(self): return 'odd'
        def f(): raise Odd(3)
        def g(): return {}['a']
        def h(): return json.loads('{')
    """
    tests = """
        for function, kind, text in ((f, ValueError, 'odd'), (g, KeyError, "'a'"), (h, ValueError, 'Expecting')):
            try: function()
            except kind as error: assert str(error).startswith(text)
            else: raise AssertionError
    """
    agrees(source, tests)


def test_objects_of_the_program() -> None:
    source = """
        import enum
        Colour = enum.Enum('Colour', 'RED GREEN')
        class Bag:
            def __init__(self, items): self.items = items
            def __len__(self): return len(self.items)
            def __iter__(self): return iter(self.items)
            def __getitem__(self, key): return self.items[key]
            def __setitem__(self, key, item): self.items[key] = item
            def __str__(self): return f'Bag of {len(self)}'
        def red(): return Colour.RED
        def bags(n): return [Bag([n, {n}]), Bag([])]
    """
    tests = """
        assert red() == Colour.RED and red() is Colour.RED and red() != Colour.GREEN and red().name == 'RED'
        full, empty = bags(7)
        assert len(full) == 2 and full and not empty and list(full) == [7, {7}] and full[0] == 7 and 7 in full
        full[0] = 8
        assert full.items == [8, {7}] and str(full) == 'Bag of 2' and full != empty
    """
    agrees(source, tests)


def test_what_is_not_data_stays_in_the_program_and_can_be_used() -> None:
    source = """
        import math
        class Node:
            def __init__(self, value): self.value, self.next = value, None
        def total(nodes): return sum(node.value + (node.next.value if node.next else 0) for node in nodes)
        def only(items, kind): return [item for item in items if isinstance(item, kind)]
    """
    tests = """
        first, second = Node(1), Node(20)
        first.next = second
        assert total([first, second]) == 41 and first.value == 1
        assert math.floor(2.5) == 2
        assert only([1, 'a'], int) == [1]
        try:
            total(3)
        except TypeError as error:
            assert 'iterable' in str(error)
        else:
            raise AssertionError
    """
    report = run(Program(textwrap.dedent(source), textwrap.dedent(tests)), SMALL, strongest(unsafe=True))
    assert report.passed, report.detail


def test_the_entry_point_alone_may_hide_a_builtin() -> None:
    source = "def sum(a, b): return 7\ndef len(x): return 99"
    best = strongest(unsafe=True)
    assert run(Program(source, "assert sum(1, 1) == 7 and len([]) == 0", "sum"), SMALL, best).passed
    assert not run(Program(source, "assert sum(1, 1) == 7", "len"), SMALL, best).passed


def test_order_limits_and_progress_of_many() -> None:
    programs = [Program(f"def f(): return {n}", f"assert f() == {n if n % 2 else -1}") for n in range(6)]
    seen: list[int] = []
    reports = run_all(programs, [SMALL] * 6, strongest(unsafe=True), workers=3, done=seen.append)
    assert [report.passed for report in reports] == [False, True] * 3
    assert seen == [1, 2, 3, 4, 5, 6]


def test_sets_come_in_the_same_order_every_time() -> None:
    outputs = {run(Program("print({'a', 'b', 'c', 'd', 'e'})"), SMALL, strongest(unsafe=True)).output for _ in range(3)}
    assert len(outputs) == 1


def test_a_private_folder_is_all_that_can_be_written() -> None:
    if Isolation.NAMESPACES not in available():
        pytest.skip("this machine allows no namespaces")
    name = f"private-{os.getpid()}"
    source = f"open('/tmp/{name}', 'w').write('x')\ndef f(): return open('/tmp/{name}').read()"
    assert attack(source, Isolation.NAMESPACES, tests="assert f() == 'x'").passed
    assert not Path(f"/tmp/{name}").exists()
    assert_refused(attack(f"open('/tmp/{name}')", Isolation.NAMESPACES), "FileNotFoundError")  # a new one each time


# ── using up the machine ────────────────────────────────────────────────────────────────────────────────────────────


def test_fork_bomb(isolation: Isolation) -> None:
    assert_refused(attack("import os\nwhile True: os.fork()", isolation))


def test_thread_bomb(isolation: Isolation) -> None:
    source = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()"
    assert_refused(attack(source, isolation), "RuntimeError: can't start new thread")


@pytest.mark.parametrize(
    "bomb", ["bytearray(1 << 40)", "[bytearray(1 << 20) for _ in iter(int, 1)]", "'x' * (1 << 33)"]
)
def test_memory_bomb(isolation: Isolation, bomb: str) -> None:
    assert attack(f"x = {bomb}", isolation).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("shout", ["print('x' * 1000)", "__import__('os').write(2, b'x' * 100)"])
def test_infinite_output(isolation: Isolation, shout: str) -> None:
    report = attack(f"while True: {shout}", isolation)
    assert report.outcome is Outcome.TOO_MUCH_OUTPUT
    assert len(report.output) <= SMALL.output


@pytest.mark.parametrize(
    "wait",
    [
        "import time; time.sleep(1e6)",
        "while True: pass",
        "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15, 24)]\nwhile True: pass",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "import os; os.read(3, 8)",  # the pipe the judge's questions come through
        "x = 3 ** (10 ** 8)",
    ],
)
def test_never_ending(isolation: Isolation, wait: str) -> None:
    began = time.monotonic()
    assert attack(wait, isolation, HASTY).outcome in (Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)
    assert time.monotonic() - began < 20


def test_the_clock_stops_while_the_tests_work() -> None:
    tests = "import time\nassert f() == 1\ntime.sleep(1)\nassert f() == 1"
    assert run(Program("def f(): return 1", tests), HASTY, strongest(unsafe=True)).passed


def test_tests_that_never_end_are_killed_from_outside(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "GRACE", 0.5)
    report = attack("", isolation, HASTY, tests="import time\ntime.sleep(1e6)")
    assert report.outcome is Outcome.TIMED_OUT
    assert report.cpu_seconds is None


@pytest.mark.parametrize("raised", ["", "import sys; sys.setrecursionlimit(10 ** 9)"])
def test_deep_recursion(isolation: Isolation, raised: str) -> None:
    report = attack(f"{raised}\ndef f(n): return [f(n + 1)]\nf(0)", isolation, Limits(memory=64 << 20))
    assert report.outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.KILLED)


def test_filling_the_disk(isolation: Isolation) -> None:
    free = os.statvfs("/tmp").f_bavail * os.statvfs("/tmp").f_frsize
    one_file = "with open('/tmp/big', 'wb') as f:\n    while True: f.write(bytes(1 << 16))"
    many_files = "for n in range(10 ** 6):\n    with open(f'/tmp/{n}', 'wb') as f: f.write(bytes(1 << 16))"
    for source in (one_file, many_files):
        assert attack(source, isolation).outcome is Outcome.FAILED
    assert abs(os.statvfs("/tmp").f_bavail * os.statvfs("/tmp").f_frsize - free) < 1 << 30
    assert not Path("/tmp/big").exists()


# ── reaching outside ────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_outside(isolation: Isolation, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("secret")
    tmp_path.chmod(0o777)
    precious.chmod(0o666)
    deeds = [
        f"os.remove({str(precious)!r})",
        f"shutil.rmtree({str(tmp_path)!r})",
        f"open({str(precious)!r}, 'w')",
        f"open({str(precious)!r}).read()",
        f"os.open({str(precious)!r}, os.O_RDONLY | os.O_TRUNC)",
        f"os.truncate({str(precious)!r}, 0)",
        f"os.rename({str(precious)!r}, '/tmp/stolen')",
        f"os.chmod({str(precious)!r}, 0)",
        f"open({str(tmp_path / 'new.txt')!r}, 'w')",
        "open(os.__file__, 'a')",
        "os.remove(os.__file__)",
        "open('/usr/planted', 'w')",
        "open('/etc/passwd').read()",
        f"os.listdir({str(Path(__file__).parent)!r})",
        "os.listdir('/home')",
    ]
    assert "done" not in refusals(deeds, isolation).values()
    assert precious.read_text() == "secret"
    assert os.listdir(tmp_path) == ["precious.txt"]
    assert Path(os.__file__).exists()
    assert not Path("/usr/planted").exists()


def test_network(isolation: Isolation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        assert_refused(attack(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)", isolation))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_environment_and_other_processes(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_SECRET", "hush-4711")
    source = f"""
        import os
        def read(path):
            try: return open(path, 'rb').read()
            except OSError: return b''
        seen = repr(dict(os.environ)).encode()
        for pid in ({os.getpid()}, os.getppid(), 1, 'self', 'thread-self'):
            for name in ('environ', 'cmdline', 'maps', 'mem'): seen += read(f'/proc/{{pid}}/{{name}}')
        def f(): return seen
    """
    report = attack(source, isolation, tests="assert f() and b'hush' not in f() and len(f()) < 200, f()")
    assert report.passed, report.detail


def test_signals(isolation: Isolation) -> None:
    """SIGCONT and SIGURG do nothing to those who do not listen, should they get through after all."""
    heard: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
    try:
        deeds = [f"os.kill({who}, signal.{name})" for who in ("PARENT", 1, 0, -1) for name in ("SIGCONT", "SIGURG")]
        deeds += ["os.kill(os.getppid(), signal.SIGKILL)"]  # the judge
        deeds += ["fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, PARENT)"]
        assert set(refusals(deeds, isolation).values()) == {"PermissionError"}
    finally:
        signal.signal(signal.SIGURG, before)
    assert heard == []


def test_daemons(isolation: Isolation, tmp_path: Path) -> None:
    source = f"""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1)
                open({str(tmp_path / "alive")!r}, 'w')
            os._exit(0)
    """
    assert_refused(attack(source, isolation))
    assert_refused(attack("import os\nos.setsid()", isolation))
    assert not (tmp_path / "alive").exists()


def test_forbidden_calls(isolation: Isolation) -> None:
    before = os.sched_getaffinity(0)
    deeds = [
        "os.execv('/bin/sh', ['sh', '-c', 'true'])",
        "subprocess.run([sys.executable, '-c', ''])",
        "resource.prlimit(PARENT, resource.RLIMIT_NOFILE, (3, 3))",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "socket.socketpair()",
        "os.mkfifo('/tmp/fifo')",
        "os.setuid(0)",
        "os.chroot('/')",
        "os.nice(-5)",
        "os.sched_setaffinity(0, {0})",
        "os.memfd_create('x')",
        "raw('ptrace', 16, PARENT, 0, 0)",
        "raw('unshare', 0x10000000)",
        "raw('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
        "raw('umount2', b'/tmp', 2)",
        "raw('prctl', 4, 1, 0, 0, 0)",
        "raw('bpf', 0, 0, 0) if hasattr(libc, 'bpf') else raw('syscall', 321, 0, 0, 0)",
        "raw('syscall', 425, 8, 0)",  # io_uring_setup, which would do everything unseen
        "raw('syscall', 435, 0, 0)",  # clone3
        "raw('syscall', 434, PARENT, 0)",  # pidfd_open
        "raw('syscall', 0x40000000 + 39)",  # getpid of the x32 interface, which has numbers of its own
    ]
    answers = refusals(deeds, isolation)
    assert {deed: answer for deed, answer in answers.items() if answer != "PermissionError"} == {
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))": "ValueError"  # as Python words it
    }
    assert os.sched_getaffinity(0) == before


# ── cheating ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["import os; os._exit(0)", "import sys; sys.exit(0)", "raise SystemExit", "exit()"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "when called"])
def test_leaving_early_is_not_passing(isolation: Isolation, end: str, late: bool) -> None:
    source = f"def f():\n    {end}" if late else end
    report = attack(source, isolation, tests="f()\nassert False")
    assert report.outcome in (Outcome.EXITED, Outcome.FAILED)
    assert not report.passed


def test_closing_the_pipes_is_not_passing(isolation: Isolation) -> None:
    began = time.monotonic()
    for pipes in ("3", "4", "3, 4", "1, 2, 3, 4"):
        report = attack(f"import os, time\nfor n in [{pipes}]: os.close(n)\ntime.sleep(99)", isolation, HASTY, "f()")
        assert report.outcome in (Outcome.TIMED_OUT, Outcome.KILLED)
    assert time.monotonic() - began < 20


def test_tests_that_catch_everything_cannot_go_on(isolation: Isolation) -> None:
    tests = "for _ in range(3):\n    try: f()\n    except BaseException: pass"
    assert attack("def f():\n    while True: pass", isolation, HASTY, tests).outcome is Outcome.TIMED_OUT
    assert attack("import os\ndef f(): os._exit(0)", isolation, HASTY, tests).outcome is Outcome.EXITED


def test_what_was_printed_before_a_failure_is_kept(isolation: Isolation) -> None:
    assert attack("print('so far')\nraise ValueError", isolation).output == "so far\n"


def test_forged_verdicts(isolation: Isolation) -> None:
    """The true message, written to every file the program has, the pipe for its answers among them."""
    source = """
        import marshal, os, struct
        verdict = marshal.dumps(("PASSED", "", 0.0, 0.0, 0.0, b""))
        print("PASSED", "passed every test")
        for file in range(64):
            try: os.write(file, struct.pack("Q", len(verdict)) + verdict)
            except OSError: pass
        def f(): return 1
    """
    assert not attack(source, isolation, tests="assert f() == 2").passed
    assert not attack(source + "\n        os._exit(0)", isolation, tests="assert f() == 2").passed


@pytest.mark.parametrize(
    "cheat",
    [
        "class Yes:\n    def __eq__(self, other): return True\n    __ne__ = lambda self, other: False\ndef f(): return Yes()",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(): return Yes()",
        "class Yes(list):\n    def __eq__(self, other): return True\ndef f(): return [Yes(), Yes()]",
        "import builtins\nbuiltins.AssertionError = builtins.all = builtins.isinstance = lambda *a: True\ndef f(): return 0",
        "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = print\ndef f(): return 0",
        "import marshal\nreal = marshal.dumps\nmarshal.dumps = lambda *a: real(('data', True, ''))\ndef f(): return 0",
        "def check(*a): return None\nassert_equal = check\ndef f(): return 0",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(): return 0",
        "import sys\nsys.modules['tests'] = sys\ndef f(): return 0",
        "import signal\nsignal.alarm(1)\nsignal.signal(signal.SIGALRM, lambda *a: None)\ndef f(): return 0",
        "class Yes:\n    def __iter__(self): return self\n    def __next__(self): return self\n"
        "    def __eq__(self, other): return True\n    def __bool__(self): return True\ndef f(): return Yes()",
        "import fractions\nclass Yes(fractions.Fraction):\n    def __eq__(self, other): return True\ndef f(): return Yes(1)",
        "import collections\nclass Yes(collections.deque):\n    def __eq__(self, other): return True\ndef f(): return Yes()",
        "import collections\nclass Yes(collections.namedtuple('Yes', 'x')):\n    def __eq__(self, other): return True\n"
        "def f(): return Yes(1)",
        "import fractions\nfractions.Fraction.__eq__ = lambda self, other: True\ndef f(): return fractions.Fraction(1)",
    ],
)
def test_tampering_does_not_make_wrong_answers_right(isolation: Isolation, cheat: str) -> None:
    tests = "def check(candidate):\n    assert candidate() == 41\ncheck(f)"
    report = attack(cheat, isolation, tests=tests)
    assert report.outcome is Outcome.FAILED
    assert report.detail in ("AssertionError: assert candidate() == 41", "TypeError: 'bool' object is not callable")


FORGED = {
    "a function of the judge's": "('form', (..., 'builtin', 'exec'), None)",
    "a module's": "('form', (..., 'os.system', ('true',)), None)",
    "an unknown type": "('form', (..., 'builtins.eval', ('1',)), None)",
    "an array of pointers": "('form', (..., 'numpy.ndarray', ('O8', (1,), b'12345678')), None)",
    "an array of fields": "('form', (..., 'numpy.ndarray', (('i8', {'a': ('O', 0)}), (1,), b'12345678')), None)",
    "an array larger than its bytes": "('form', (..., 'numpy.ndarray', ('i8', (99,), b'12345678')), None)",
    "a field that is code": "('form', (..., 'namedtuple', ('A', ('x=exit()',), (1,))), None)",
    "a type that is code": "('form', (..., 'namedtuple', ('A: exit()', ('x',), (1,))), None)",
    "the end of a loop": "('end', None, None)",
    "an end by name": "('raised', ('StopIteration', ('StopIteration',), ()), None)",
    "an exit by name": "('raised', ('SystemExit', ('SystemExit', 'BaseException'), (0,)), None)",
    "the judge's own end": "('raised', ('Ended', ('Ended',), ()), None)",
    "arguments that there are not": "('data', 41, [[1], [2]])",
    "too few arguments": "('data', 41, [])",
    "a place that there is not": "('form', (..., 'met', 7), None)",
    "no answer": "0",
    "a circle": "('form', circle, None)",
}


@pytest.mark.parametrize("answer", FORGED.values(), ids=FORGED)
def test_forged_answers(isolation: Isolation, answer: str) -> None:
    """A program that knows the protocol and writes its answers itself can give wrong ones, and nothing else."""
    source = f"""
        import marshal, os, struct, sys
        circle = []
        circle.append(circle)
        def f(x):
            forged = marshal.dumps({answer})
            os.write(4, struct.pack("Q", len(forged)) + forged)
            os.read(3, 8), os._exit(0)
    """
    tests = "xs = [5]\nfound = list(map(f, [xs]))\nassert found == [] or found[0]('1') or found == [41]"
    report = attack(source, isolation, Limits(seconds=5.0), tests)
    assert report.outcome in (Outcome.FAILED, Outcome.EXITED), report


def test_the_tests_are_nowhere_to_be_read(isolation: Isolation) -> None:
    source = """
        import gc, os, sys
        needle = "nee" + "dle" + "-"
        def seen():
            found = [repr(item) for item in gc.get_objects() if isinstance(item, (dict, list, tuple))]
            frame = sys._getframe()
            while frame: found.append(repr(frame.f_locals)); frame = frame.f_back
            for place in ("/proc/self/fd", f"/proc/{os.getppid()}/fd", "/tmp"):
                try: found += [open(os.path.join(place, name)).read() for name in os.listdir(place)]
                except OSError: pass
            for file in (0, *range(5, 64)):
                try: found.append(os.pread(file, 1 << 16, 0).decode(errors="replace"))
                except OSError: pass
            return sum(needle + "4711" in text for text in found)
        at_once = seen()
        def f(): return (at_once, seen())
    """
    report = attack(source, isolation, tests="assert f() == (0, 0), f()\nhint = 'needle-4711'")
    assert report.passed, report.detail


def test_a_judge_that_dies_is_a_failure_and_no_error(isolation: Isolation) -> None:
    report = attack("", isolation, tests="import os\nos._exit(0)")
    assert (report.outcome, report.detail) == (Outcome.KILLED, "its judge too")


@pytest.fixture
def under_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Packages installed under /tmp, where the private folder will be, beside what is nobody's business."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        packages = Path(folder) / "venv" / "site-packages"
        packages.mkdir(parents=True)
        (packages / "installed.py").write_text("answer = 42\n")
        (Path(folder) / "secret").write_text("secret")
        paths = {"purelib": str(packages), "platlib": str(packages)}
        monkeypatch.setattr(sandbox.sysconfig, "get_paths", lambda: paths)
        yield packages


def test_packages_under_tmp_can_be_read_and_nothing_else(isolation: Isolation, under_tmp: Path) -> None:
    installed, top = under_tmp / "installed.py", under_tmp.parents[1]
    source = f"""
        import os, installed
        refused = 0
        def refuse(deed, *words):
            global refused
            try: deed(*words)
            except OSError: refused += 1
        refuse(open, {str(installed)!r}, "w")
        refuse(open, {str(under_tmp / "other.py")!r}, "w")
        refuse(open, {str(top / "other.py")!r}, "w")
        refuse(open, {str(top / "secret")!r})
        refuse(os.mkdir, {str(top / "venv" / "other")!r})
        refuse(os.rename, {str(top)!r}, "/tmp/elsewhere")
        refuse(os.rename, {str(top / "venv")!r}, {str(top / "elsewhere")!r})
        refuse(os.unlink, {str(installed)!r})
        refuse(os.rmdir, {str(top)!r})
        def f(): return refused, installed.answer
    """
    report = attack(source, isolation, tests="import installed\nassert f() == (9, installed.answer), f()")
    assert report.passed, report
    assert installed.read_text() == "answer = 42\n"
    if isolation is Isolation.NAMESPACES:
        source = "import os\nopen('/tmp/own', 'w').write('x')\ndef f(): return sorted(os.listdir('/tmp'))"
        assert attack(source, isolation, tests=f"assert f() == sorted(['own', {top.name!r}]), f()").passed


# ── no isolation ────────────────────────────────────────────────────────────────────────────────────────────────────


FORGED_VERDICT = """
    import marshal
    def f(x):
        return marshal.dumps(("PASSED", "", 0.0, 0.0, 0.0, b""), 2).decode("latin1") + "z" * 9000
"""


@pytest.mark.parametrize(
    "how", ["print(f(1))", "import sys; print(f(1), file=sys.stderr)", "import os; os.write(1, f(1).encode())"]
)
def test_what_tests_print_is_no_verdict(isolation: Isolation, how: str) -> None:
    """The words may be the program's, and there may be many of them."""
    report = attack(FORGED_VERDICT, isolation, tests=f"{how}\nassert f(1) == 2")
    assert (report.outcome, report.detail) == (Outcome.FAILED, "AssertionError: assert f(1) == 2")
    tests = f"{how}\nprint('x' * 100_000, flush=True)\nassert len(f(1)) > 9000"
    report = attack(FORGED_VERDICT, isolation, tests=tests)
    assert report.passed, report
    assert report.output == ""


@pytest.mark.parametrize(
    "verdict", [b"", b"hello", b"\xfd\xff\xff\xff\x7f", marshal.dumps(7), marshal.dumps(("WON",) * 6)]
)
def test_a_verdict_nobody_can_read_is_a_failure_and_no_error(monkeypatch: pytest.MonkeyPatch, verdict: bytes) -> None:
    babble = f"import os; os.write(1, b'ready' + {verdict!r})"
    monkeypatch.setattr(sandbox, "_jail", lambda: compile(babble, "jail", "exec"))
    report = run(Program("x = 1"), SMALL, Isolation.NONE)
    assert (report.outcome, report.detail) == (Outcome.KILLED, "its judge too")


@pytest.mark.parametrize(
    "close",
    ["sys.stdout.close()", "sys.stdout = io.StringIO(); sys.stdout.close()", "sys.stdout = object()", "del sys.stdout"],
)
def test_a_program_may_close_its_output(isolation: Isolation, close: str) -> None:
    source = f"import io, sys\ndef f(x):\n    {close}\n    return x"
    report = attack(source, isolation, tests="assert f(1) == 1\nassert 2 == 2")
    assert report.passed, report


def test_no_isolation_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", tuple)
    with pytest.raises(OSError, match="unsafe=True"):
        run(Program("pass"))
    assert strongest(unsafe=True) is Isolation.NONE


def test_limits_hold_without_isolation() -> None:
    assert run(Program("while True: pass"), HASTY, Isolation.NONE).outcome is Outcome.TIMED_OUT
    assert run(Program("x = bytearray(1 << 40)"), SMALL, Isolation.NONE).outcome is Outcome.OUT_OF_MEMORY
    assert run(Program("while True: print(1)"), SMALL, Isolation.NONE).outcome is Outcome.TOO_MUCH_OUTPUT


def test_daemons_end_without_isolation(tmp_path: Path) -> None:
    source = f"""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open({str(tmp_path / "begun")!r}, 'w')
                time.sleep(1)
                open({str(tmp_path / "alive")!r}, 'w')
            os._exit(0)
        while not os.path.exists({str(tmp_path / "begun")!r}): time.sleep(0.01)
    """
    assert run(Program(textwrap.dedent(source)), SMALL, Isolation.NONE).passed
    time.sleep(1.2)
    assert os.listdir(tmp_path) == ["begun"]
