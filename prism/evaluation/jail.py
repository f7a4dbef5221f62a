"""Inside the sandbox: the script that `prism.evaluation.sandbox` starts, alone and with nothing inherited, for every program.

It shuts itself in, then splits in two. The *program* process runs the untrusted source and answers calls; it holds neither the
tests nor the pipe the verdict goes through. The *judge* process runs the tests and calls the program over a pipe. Arguments go
out as they are, results come back as plain data (numbers, strings, lists, tuples, sets, dictionaries): an object that claims to
equal everything, a rewritten `assert`, or an early exit cannot reach the judge. What is not data stays in the program and the
tests get a handle to it (`Remote`).

Two ways in, and a filter on system calls in both. *Namespaces*: a file system made of read-only views of Python and of the
system's libraries and of one small folder in memory, no network, no other process to see. *Landlock*, where the host forbids
that: the same files can be read, none can be written. The filter (seccomp) is a list of what is allowed; it has no way to start
a process or a thread, to open a socket, to send a signal or to trace.

Only the standard library, and as little of it as possible: all of it is loaded anew for every program.
"""

from __future__ import annotations

import builtins
import ctypes
import marshal
import os
import resource
import select
import signal
import struct
import sys
import time
from types import CodeType, ModuleType

TYPE_CHECKING = False  # typing takes longer to load than all the rest
if TYPE_CHECKING:
    from typing import Any, NoReturn

LIBRARIES = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")
LONGEST_DETAIL = 500  # characters

libc = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: Any) -> int:
    """A C function that says -1 and errno when it fails."""
    found = getattr(libc, function)(*arguments)
    if found == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")
    return int(found)


# ── shutting oneself in ─────────────────────────────────────────────────────────────────────────────────────────────

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
NOSUID, NODEV, BIND, REC, PRIVATE, DETACH = 0x2, 0x4, 0x1000, 0x4000, 0x40000, 0x2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446
SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38


def enter_namespaces(readable: list[str], disk: int) -> None:
    """Go on as the first process of a world of its own. The caller's own process waits outside and does nothing else."""
    others = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    user, group = os.getuid(), os.getgid()
    if libc.unshare(others) == -1:  # not root, so become root of a user namespace first
        call("unshare", others | NEWUSER)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)
    first = os.fork()
    if first:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    die_with_parent()

    real = {path: os.path.realpath(path) for path in readable}  # once inside, links on the way would lead nowhere
    call("mount", None, b"/", None, REC | PRIVATE, None)
    call("mount", b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, b"size=1m,mode=755")
    os.mkdir("/tmp/old")
    call("syscall", PIVOT_ROOT[os.uname().machine], b"/tmp", b"/tmp/old")
    os.chdir("/")
    for path in readable:
        show(f"/old{real[path]}", path)
    os.mkdir("/tmp")
    call("umount2", b"/old", DETACH)
    os.rmdir("/old")
    read_only = struct.pack("QQQQ", 0x1 | 0x2, 0, 0, 0)  # MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID
    call("syscall", MOUNT_SETATTR, -100, b"/", 0x8000, read_only, len(read_only))
    call("mount", b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, f"size={disk},nr_inodes=4096,mode=777".encode())
    os.chdir("/tmp")


def show(outside: str, inside: str) -> None:
    """A file or folder of the old root at a place in the new one."""
    os.makedirs(inside if os.path.isdir(outside) else os.path.dirname(inside), exist_ok=True)
    if not os.path.isdir(outside):
        open(inside, "w").close()
    call("mount", outside.encode(), inside.encode(), None, BIND | REC, None)


def enter_landlock(readable: list[str]) -> None:
    """From here on nothing outside the readable paths can be opened, and nothing at all can be written."""
    version = call("syscall", LANDLOCK_CREATE, None, 0, 1)
    every_access = struct.pack("Q", (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1)
    rules = call("syscall", LANDLOCK_CREATE, every_access, len(every_access), 0)
    for path in readable:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        read_file, read_folder = 1 << 2, 1 << 3
        access = read_file | (read_folder if os.path.isdir(path) else 0)
        call("syscall", LANDLOCK_ADD, rules, 1, struct.pack("=Qi", access, place), 0)
        os.close(place)
    call("prctl", SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("syscall", LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def drop_capabilities() -> None:
    version_3 = struct.pack("Ii", 0x20080522, 0)
    call("capset", version_3, bytes(24))


def limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def die_with_parent() -> None:
    if sys.platform == "linux":
        call("prctl", SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_descendants() -> None:
    """Kill what a program without isolation left running: orphans become children of this process, their subreaper."""
    while True:
        for name in os.listdir("/proc"):
            if name.isdigit() and parent_of(name) == os.getpid():
                os.kill(int(name), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def parent_of(process: str) -> int:
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:  # gone meanwhile
        return 0


# ── what a program may ask of the kernel ────────────────────────────────────────────────────────────────────────────

# Names and their numbers on x86_64 and aarch64, None where there is no such call.
COMPUTE: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "readv": (19, 65), "writev": (20, 66), "access": (21, None), "pipe": (22, None), "select": (23, None),
    "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None),
    "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, None), "setitimer": (38, 103), "getpid": (39, 172),
    "exit": (60, 93), "uname": (63, 160), "getcwd": (79, 17), "chdir": (80, 49), "readlink": (89, None),
    "umask": (95, 166), "gettimeofday": (96, 169), "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177), "getppid": (110, 173),
    "sigaltstack": (131, 132), "statfs": (137, 43), "fstatfs": (138, 44), "gettid": (186, 178), "time": (201, None),
    "futex": (202, 98), "sched_getaffinity": (204, 123), "getdents64": (217, 61), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73),
    "dup3": (292, 24), "pipe2": (293, 59), "getrandom": (318, 278), "membarrier": (324, 283), "statx": (332, 291),
    "rseq": (334, 293), "faccessat2": (439, 439),
}  # fmt: skip
WRITE: dict[str, tuple[int | None, int | None]] = {
    "pwrite64": (18, 68), "sendfile": (40, 71), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None),
    "link": (86, None), "unlink": (87, None), "symlink": (88, None), "chmod": (90, None), "fchmod": (91, 52),
    "mkdirat": (258, 34), "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "symlinkat": (266, 36),
    "fchmodat": (268, 53), "utimensat": (280, 88), "renameat2": (316, 276), "copy_file_range": (326, 285),
}  # fmt: skip
# Which argument decides, and its harmless values: fcntl could direct signals at others, prlimit64 could limit them.
IF_ARGUMENT: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {
    (16, 29): (1, (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)),  # ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
    (72, 25): (1, (0, 1, 2, 3, 4, 5, 6, 7, 1030)),  # fcntl: dup, descriptor and status flags, locks
    (302, 261): (0, (0,)),  # prlimit64: of the program itself
}
OPEN = (((2, None), 1), ((257, 56), 2))  # open and openat, and which argument holds the flags
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, the kernel's name


def seccomp_filter(writing: bool) -> bytes:
    """The list as a classic BPF program: what it does not name gets "operation not permitted"."""
    column, architecture = MACHINES[os.uname().machine]
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EPERM
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (answer, 0, 0, refuse), (load, 0, 0, 0)]
    for numbers in (COMPUTE | WRITE if writing else COMPUTE).values():
        if (number := numbers[column]) is not None:
            steps += [(equal, 0, 1, number), (answer, 0, 0, allow)]
    for pair, (place, values) in IF_ARGUMENT.items():
        steps += [(equal, 0, 2 + 2 * len(values), pair[column]), (load, 0, 0, 16 + 8 * place)]
        for value in values:
            steps += [(equal, 0, 1, value), (answer, 0, 0, allow)]
        steps += [(answer, 0, 0, refuse)]
    for numbers, place in OPEN:
        if (number := numbers[column]) is not None:
            forbidden = 0 if writing else FOR_WRITING
            steps += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * place), (any_bit, 0, 1, forbidden)]
            steps += [(answer, 0, 0, refuse), (answer, 0, 0, allow)]
    steps += [(answer, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def filter_system_calls(writing: bool) -> None:
    code = ctypes.create_string_buffer(seccomp_filter(writing))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code))
    call("prctl", SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", SET_SECCOMP, 2, program, 0, 0)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def send(pipe: int, content: bytes) -> None:
    frame = memoryview(struct.pack("Q", len(content)) + content)
    while frame:
        frame = frame[os.write(pipe, frame) :]


def receive(pipe: int) -> bytes:
    """One message; EOFError where the other side has gone."""
    return exactly(pipe, struct.unpack("Q", exactly(pipe, 8))[0])


def exactly(pipe: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(pipe, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


# ── the program's side ──────────────────────────────────────────────────────────────────────────────────────────────

kept: list[Any] = []  # what the judge holds handles to


def serve(requests: int, answers: int) -> NoReturn:
    """Do what the judge asks, until it has gone. Whatever the program does to this process harms only its own answers."""
    module = sys.modules["program"] = ModuleType("program")
    while True:
        verb, target, rest, has_handles = marshal.loads(receive(requests))
        try:
            rest = with_objects(rest) if has_handles else rest
            if verb == "run":
                exec(compile(target, "program", "exec", dont_inherit=True), module.__dict__)
                value: Any = None
            elif verb == "name":
                value = module.__dict__[target]
            elif verb == "call":
                value = kept[target](*rest[0], **rest[1])
            elif verb == "get":
                value = getattr(kept[target], rest)
            else:
                value = None
                setattr(kept[target], *rest)
            answer = packed(value)
        except BaseException as error:
            answer = marshal.dumps(("raised", type(error).__name__, str(error)[:LONGEST_DETAIL]))
        print(end="", flush=True)
        send(answers, answer)


def packed(value: Any) -> bytes:
    try:
        if hasattr(value, "__next__"):
            return marshal.dumps(("iterator", plain(list(value)), ""))
        return marshal.dumps(("data", value if is_plain(value) else plain(value), ""))
    except TypeError:
        kept.append(value)
        return marshal.dumps(("handle", len(kept) - 1, ""))


def with_objects(value: Any) -> Any:
    """Handles, which travel as (..., number) or (..., name of a builtin), replaced by what they stand for."""
    if type(value) is tuple and value[:1] == (...,):
        return kept[value[1]] if type(value[1]) is int else getattr(builtins, value[1])
    if type(value) in (list, tuple):
        return type(value)(with_objects(item) for item in value)
    return {key: with_objects(item) for key, item in value.items()} if type(value) is dict else value


ATOMS = {type(None), bool, int, float, complex, str, bytes}


def is_plain(value: Any) -> bool:
    """Whether it is data through and through; a copy of a large answer may be more than memory holds."""
    if type(value) is dict:
        return is_plain(list(value)) and is_plain(list(value.values()))
    if type(value) in (list, tuple, set, frozenset):
        return set(map(type, value)) <= ATOMS or all(map(is_plain, value))
    return type(value) in ATOMS


def plain(value: Any) -> Any:
    """The value without anything of the program's own making in it; TypeError where that cannot be."""
    if type(value) in ATOMS:
        return value
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(plain(item) for item in value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    atom: Any
    for atom in (int, float, complex, str, bytes):
        if isinstance(value, atom):
            return atom(value)
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():  # a number of numpy
        return plain(value.item())
    raise TypeError(f"{type(value).__name__} is not plain data")


# ── the judge's side ────────────────────────────────────────────────────────────────────────────────────────────────


class Ended(BaseException):
    """The program cannot go on. No Exception, which tests may catch."""


class Remote:
    """Something in the program that is not data: it can be called, and its attributes read and set. Equal only to itself."""

    def __init__(self, judge: Judge, number: int) -> None:
        self.__dict__.update(_judge=judge, _number=number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._judge.ask("call", self._number, (arguments, named))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._judge.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._judge.ask("set", self._number, (name, value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("What lives in the program cannot be copied by its tests.")


class Judge:
    """Asks, listens, and keeps the program's clock: it runs only while the program owes an answer."""

    def __init__(self, requests: int, answers: int, printed: int, most_output: int, seconds: float) -> None:
        self.requests, self.answers, self.printed = requests, answers, [printed]
        self.most_output, self.output = most_output, b""
        self.seconds = self.seconds_left = seconds
        self.end: tuple[str, str] | None = None  # an outcome as in `sandbox.Outcome`, and its detail
        signal.signal(signal.SIGALRM, lambda *_: self.stop("TIMED_OUT", f"over {self.seconds:g} s"))

    def stop(self, outcome: str, detail: str) -> NoReturn:
        self.end = (outcome, detail)
        raise Ended

    def ask(self, verb: str, target: Any, rest: Any = None) -> Any:
        """Have the program do something; raises what it raised."""
        if self.end is not None:
            raise Ended
        try:
            try:
                message = marshal.dumps((verb, target, rest, False))
            except ValueError:  # not all of it is data
                message = marshal.dumps((verb, target, with_handles(rest), True))
            signal.setitimer(signal.ITIMER_REAL, self.seconds_left)
            send(self.requests, message)
            while self.answers not in select.select([self.answers, *self.printed], [], [])[0]:
                self.listen()
            answer = receive(self.answers)
            self.seconds_left = max(signal.setitimer(signal.ITIMER_REAL, 0)[0], 1e-3)  # 0 would stop the clock for good
            kind, value, text = marshal.loads(answer)
        except (EOFError, BrokenPipeError):
            self.stop("EXITED", "")
        if kind == "data":
            return value
        if kind == "iterator":
            return iter(value)
        if kind == "handle":
            return Remote(self, int(value))
        raise raised(str(value), str(text))

    def listen(self) -> None:
        """Take what the program has printed."""
        said = os.read(self.printed[0], 1 << 16)
        self.output += said
        if not said:
            self.printed = []
        if len(self.output) > self.most_output:
            self.stop("TOO_MUCH_OUTPUT", f"over {self.most_output} bytes")

    def verdict(self, source: str, tests: str, entry_point: str) -> tuple[str, str]:
        """An outcome and its detail."""
        module = sys.modules["tests"] = ModuleType("tests")
        try:
            code = compile(tests, "tests", "exec", dont_inherit=True)
            self.ask("run", source)
            for name in mentioned(code) - (set(dir(builtins)) - {entry_point}):
                try:
                    module.__dict__[name] = self.ask("name", name)
                except KeyError:
                    continue  # the tests define it themselves, or will say that it is missing
            exec(code, module.__dict__)
        except MemoryError:
            return self.end or ("OUT_OF_MEMORY", "MemoryError")
        except BaseException as error:
            text = f"{type(error).__name__}: {str(error) or failing_line(error, tests)}"[:LONGEST_DETAIL]
            return self.end or ("FAILED", text)
        return self.end or ("PASSED", "")


def with_handles(value: Any) -> Any:
    if isinstance(value, Remote):
        return (..., value._number)
    if isinstance(value, type) and value.__module__ == "builtins":
        return (..., value.__name__)
    if type(value) in (list, tuple):
        return type(value)(with_handles(item) for item in value)
    return {key: with_handles(item) for key, item in value.items()} if type(value) is dict else plain(value)


def raised(name: str, text: str) -> BaseException:
    """The program's exception, of the built-in type of that name so that tests can catch it."""
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(text)
        except TypeError:  # UnicodeDecodeError and its like want more than a text
            pass
    return type(name, (Exception,), {})(text)


def mentioned(code: CodeType) -> set[str]:
    """Every global name or attribute in the code, functions within functions included."""
    inner = [mentioned(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def failing_line(error: BaseException, tests: str) -> str:
    """The line of the tests an exception came through last: a bare assert says nothing itself."""
    lines, number, trace = tests.splitlines(), 0, error.__traceback__
    while trace is not None:
        number = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "tests" else number
        trace = trace.tb_next
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    start = time.monotonic()
    settings = marshal.loads(receive(0))
    die_with_parent()
    readable = [path for path in dict.fromkeys((*LIBRARIES, *settings["readable"])) if os.path.exists(path)]
    isolation, seconds = settings["isolation"], settings["seconds"]
    if isolation == "NAMESPACES":
        enter_namespaces(readable, settings["disk"])
    elif isolation == "LANDLOCK":
        enter_landlock(readable)
    limit(resource.RLIMIT_AS, settings["memory"])
    limit(resource.RLIMIT_FSIZE, settings["disk"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CORE, 0)
    if isolation != "NONE":
        drop_capabilities()
        call("prctl", SET_DUMPABLE, 0, 0, 0, 0)  # the program, of the same user, can then not read the judge's memory
    elif sys.platform == "linux":
        call("prctl", SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.path += settings["packages"]
    sys.set_int_max_str_digits(0)

    requests, to_program = os.pipe()
    from_program, answers = os.pipe()
    printed, output = os.pipe()
    child = os.fork()
    if child == 0:
        die_with_parent()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(requests, 3)
        os.dup2(answers, 4)
        os.closerange(5, 64)
        sys.set_int_max_str_digits(4300)
        limit(resource.RLIMIT_CPU, int(seconds) + 1)
        if isolation != "NONE":
            filter_system_calls(writing=isolation == "NAMESPACES")
        serve(3, 4)
    for pipe in (requests, answers, output):
        os.close(pipe)
    os.write(1, b"ready")
    judge = Judge(to_program, from_program, printed, settings["output"], seconds)
    source, tests, entry_point = marshal.loads(receive(0))
    begun = time.monotonic()
    outcome, detail = judge.verdict(source, tests, entry_point)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if outcome == "EXITED":  # or it has closed the pipe and lives on
        select.select([], [], [], 0.1)
    os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    cpu = usage.ru_utime + usage.ru_stime
    if outcome == "EXITED":
        outcome, detail = fate(os.waitstatus_to_exitcode(status), cpu, seconds)
    if isolation == "NONE" and sys.platform == "linux":
        end_descendants()
    if judge.printed and select.select([printed], [], [], 0)[0]:
        judge.output += os.read(printed, 1 << 16)
    wall, overhead = time.monotonic() - begun, begun - start
    os.write(1, marshal.dumps((outcome, detail, wall, cpu, overhead, judge.output[: settings["output"]])))


def fate(code: int, cpu: float, seconds: float) -> tuple[str, str]:
    """Why a program is gone: its exit code, or minus the signal."""
    if code >= 0:
        return "EXITED", f"exit code {code}"
    if code == -signal.SIGXCPU or cpu > seconds:
        return "TIMED_OUT", f"{cpu:.1f} s of CPU"
    return "KILLED", signal.Signals(-code).name


if __name__ == "__main__":
    main()
