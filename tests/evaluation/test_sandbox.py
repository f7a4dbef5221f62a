"""Programs that mean harm, or cheat: each must end as it deserves, leave nothing running, and change nothing.

Every attack is tried in every isolation this machine allows, so the fallback is tested where the first choice works too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
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
    ],
)
def test_tampering_does_not_make_wrong_answers_right(isolation: Isolation, cheat: str) -> None:
    tests = "def check(candidate):\n    assert candidate() == 41\ncheck(f)"
    report = attack(cheat, isolation, tests=tests)
    assert report.outcome is Outcome.FAILED
    assert report.detail in ("AssertionError: assert candidate() == 41", "TypeError: 'bool' object is not callable")


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


# ── no isolation ────────────────────────────────────────────────────────────────────────────────────────────────────


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
