"""Inside the sandbox: the script that `prism.evaluation.sandbox` starts, alone and with nothing inherited, for every program.

It shuts itself in, then splits in two. The *program* process runs the untrusted source and answers calls; it holds neither the
tests nor the pipe the verdict goes through. The *judge* process runs the tests and calls the program over a pipe. Values cross
it as data: numbers, strings, lists, tuples, sets and dictionaries, and well-known types of the standard library and arrays of
numpy by their parts, put together again by the judge's own copy of the type. An object that claims to equal everything, a
rewritten `assert`, or an early exit cannot reach the judge. What is not data stays in the program and the tests get a handle to
it (`Remote`); of an iterator they get item after item. What a call did to its arguments is done to the tests' own objects.

So tests see what they would see in one process with the program, except that

- objects of the program's classes equal themselves only, can be called, read, set, indexed, gone through, measured and written
  out, but not compared, added or tested for their type; objects derived from data arrive as that data, without methods of their
  own (a named tuple keeps its fields);
- an exception of the program's own class can be caught as the built-in one it derives from; StopIteration cannot be caught;
- arguments are the program's for the length of the call: later changes of an object that it kept reach it no more than its own
  reach the tests, and what a global name of the program held when the tests began is what they see;
- functions, classes and objects that the tests define cannot be given to the program, nor coroutines run; an iterator of theirs
  is read to its end first;
- an iterator is read ahead, by a millisecond's work at most, after its first hundred items.

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
    from collections.abc import Callable, Container, Sequence
    from typing import Any, NoReturn

LIBRARIES = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")
LONGEST_DETAIL = 500  # characters
ONE_BY_ONE, READ_AHEAD, READ_AHEAD_SECONDS = 100, 1000, 1e-3  # items asked for singly, then at most, and as long as
STEADY = 2  # marshal's last version in which what is written depends on the value alone, not on who else refers to it

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
NOSUID, NODEV, BIND, MOVE, REC, PRIVATE, DETACH = 0x2, 0x4, 0x1000, 0x2000, 0x4000, 0x40000, 0x2
READ_ONLY, NO_SUID, RECURSIVE = 0x1, 0x2, 0x8000  # of mount_setattr, which has numbers of its own
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
    os.makedirs("/tmp", exist_ok=True)  # there already where Python itself is installed in it
    os.mkdir("/private")
    call("mount", b"tmpfs", b"/private", b"tmpfs", NOSUID | NODEV, f"size={disk},nr_inodes=4096,mode=777".encode())
    for name in os.listdir("/tmp"):  # mounted, a folder can be neither written nor replaced by another of its name
        show(f"/tmp/{name}", f"/private/{name}")
    call("mount", b"/private", b"/tmp", None, MOVE, None)
    os.rmdir("/private")
    call("umount2", b"/old", DETACH)
    os.rmdir("/old")
    set_attributes("/", RECURSIVE, put=READ_ONLY | NO_SUID)
    set_attributes("/tmp", 0, clear=READ_ONLY)
    os.chdir("/tmp")


def set_attributes(path: str, flags: int, put: int = 0, clear: int = 0) -> None:
    """Of the mount there, or with RECURSIVE of all below it too."""
    attributes = struct.pack("QQQQ", put, clear, 0, 0)
    call("syscall", MOUNT_SETATTR, -100, path.encode(), flags, attributes, len(attributes))


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


# ── values on their way ─────────────────────────────────────────────────────────────────────────────────────────────

# A value travels as a form that marshal can write: numbers, strings and what holds nothing else as they are, the rest as
# (..., name, parts), where the name is a standard type's, "met" for an object met before in the same exchange, "builtin", or
# "handle" or "iterator" for what stays in the program. No data holds an Ellipsis.

ATOMS = {type(None), bool, int, float, complex, str, bytes}
BASES = (list, dict, set, tuple, frozenset, int, float, complex, str, bytes)
BUILTIN_DATA: dict[str, type] = {
    kind.__name__: kind for kind in (*BASES, bool, object, bytearray, range)
}  # names the judge looks up
NUMPY_DATA = "biufcSUmM"  # kinds of arrays that are bytes and nothing else; others hold pointers or have fields

# What a standard type is made of; `made` puts it together again.
PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "builtins.bytearray": lambda value: (bytes(value),),
    "builtins.dict_items": lambda value: (tuple(value),),
    "builtins.dict_keys": lambda value: (tuple(value),),
    "builtins.dict_values": lambda value: (tuple(value),),
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "array.array": lambda value: (value.typecode, tuple(value)),
    "collections.Counter": lambda value: (tuple(value.items()),),
    "collections.OrderedDict": lambda value: (tuple(value.items()),),
    "collections.defaultdict": lambda value: (value.default_factory, tuple(value.items())),
    "collections.deque": lambda value: (tuple(value), value.maxlen),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.datetime": lambda value: (*value.timetuple()[:6], value.microsecond, fixed_zone(value)),
    "datetime.time": lambda value: (value.hour, value.minute, value.second, value.microsecond, fixed_zone(value)),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.timezone": lambda value: (value.utcoffset(None), value.tzname(None)),
    "decimal.Decimal": lambda value: (str(value),),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "numpy.generic": lambda value: numpy_parts(value),
    "numpy.ndarray": lambda value: numpy_parts(value),
}
CHANGEABLE = {
    "builtins.list", "builtins.dict", "builtins.set", "builtins.bytearray", "array.array", "collections.Counter",
    "collections.OrderedDict", "collections.defaultdict", "collections.deque", "numpy.ndarray",
}  # fmt: skip
VIEWS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "builtins.dict_items": lambda items: dict(items).items(),
    "builtins.dict_keys": lambda items: dict.fromkeys(items).keys(),
    "builtins.dict_values": lambda items: dict(enumerate(items)).values(),
}
NAMES: dict[type, str] = {base: f"builtins.{base.__name__}" for base in BASES}
# What a value derived from these is as one of them, by their own methods: str(...) of an Enum that is a str too is its name.
AS_ATOMS: dict[str, Callable[[Any], Any]] = {
    "builtins.int": int.__int__,
    "builtins.float": float.__float__,
    "builtins.complex": complex.__pos__,
    "builtins.str": str.__str__,
    "builtins.bytes": lambda value: bytes.__getitem__(value, slice(None)),
}


def standard_name(kind: type) -> str | None:
    """Of the nearest type above it, itself included, that is data; None where there is none."""
    for base in kind.__mro__:
        name = NAMES.get(base) or f"{base.__module__}.{base.__qualname__}"
        if base in NAMES or name in PARTS:
            return name
    return None


def fixed_zone(value: Any) -> Any:
    """Its zone as a distance from UTC, by which alone two moments are compared."""
    offset = value.utcoffset()
    return None if offset is None else sys.modules["datetime"].timezone(offset, value.tzname())


def numpy_parts(value: Any) -> tuple[Any, ...]:
    if value.dtype.kind in NUMPY_DATA:
        return value.dtype.str, value.shape, value.tobytes()
    return "O", value.shape, tuple(value.ravel().tolist())


def numpy_made(kind: str, shape: tuple[int, ...], content: Any) -> Any:
    numpy: Any = __import__("numpy")
    if kind == "O":
        array = numpy.empty(len(content), object)
        for place, item in enumerate(content):
            array[place] = item
        return array.reshape(shape)
    if type(kind) is not str or numpy.dtype(kind).kind not in NUMPY_DATA:
        raise TypeError(f"{kind} is no kind of array that is only data")
    return numpy.ndarray(shape, kind, content).copy()


def made(name: str, parts: tuple[Any, ...]) -> Any:
    """A value of a standard type from its parts. Only types that PARTS names are ever called."""
    if name in VIEWS:
        return VIEWS[name](*parts)
    if name == "iter":
        return iter(*parts)
    if name == "namedtuple":
        return named_tuple(*parts)
    if name.startswith("numpy.") and name in PARTS:
        array = numpy_made(*parts)
        return array if name == "numpy.ndarray" else array[()]
    if name == "collections.Counter":
        parts = (dict(*parts),)  # of pairs it would count the pairs
    if name not in PARTS:
        raise TypeError(f"{name} is no type known here")
    module, _, kind = name.rpartition(".")
    return getattr(__import__(module), kind)(*parts)


def named_tuple(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    from collections import namedtuple  # loaded already; it makes code of the names, but takes nothing but identifiers

    return namedtuple(name, fields, rename=True)(*values)


def only_atoms(values: Any) -> bool:
    return set(map(type, values)) <= ATOMS


def is_plain(value: Any, places: Container[int] = ()) -> bool:
    """Whether marshal writes it as it is, and no object in it has its place in `places`, by id. A copy of a large answer may
    be more than memory holds, so it is asked first."""
    if type(value) in ATOMS:
        return True
    if type(value) not in (list, tuple, set, frozenset, dict) or id(value) in places:
        return False
    if type(value) is dict:
        return is_plain(list(value), places) and is_plain(list(value.values()), places)
    if only_atoms(value):
        return True
    for item in value:  # noqa: SIM110, all(...) would halve how deep lists may lie in lists
        if not is_plain(item, places):
            return False
    return True


class Packing:
    """Values to forms. Objects that can change are numbered as they are met, here and by `Unpacking` in the same order."""

    def __init__(self, other: Callable[[Packing, Any], Any]) -> None:
        self.other = other  # the form of what is no data
        self.met: list[Any] = []
        self.places: dict[int, int] = {}

    def number(self, value: Any) -> None:
        self.places[id(value)] = len(self.met)
        self.met.append(value)

    def form(self, value: Any, *, met: bool = False) -> Any:
        """`met`: of an object that is numbered already, what it holds now instead of its number."""
        if type(value) in ATOMS:
            return value
        if not met and id(value) in self.places:
            return (..., "met", self.places[id(value)])
        name = standard_name(type(value))
        if name in CHANGEABLE and not met:
            self.number(value)
        if name == "builtins.list":
            return value if type(value) is list and only_atoms(value) else list(map(self.form, value))
        if name == "builtins.dict":
            return dict(zip(map(self.form, value), map(self.form, value.values()), strict=True))
        if name == "builtins.tuple":
            fields = getattr(value, "_fields", None)
            if type(value) is not tuple and type(fields) is tuple:
                return (..., "namedtuple", (type(value).__name__, fields, tuple(map(self.form, value))))
            return value if type(value) is tuple and only_atoms(value) else tuple(map(self.form, value))
        if name in ("builtins.set", "builtins.frozenset"):
            kind = set if name == "builtins.set" else frozenset
            return kind(map(self.form, value))
        if name in PARTS:
            return (..., name, tuple(map(self.form, PARTS[name](value))))
        return AS_ATOMS[name](value) if name in AS_ATOMS else self.other(self, value)


class Unpacking:
    """Forms to values."""

    def __init__(self, other: Callable[[str, Any], Any], met: Sequence[Any] = ()) -> None:
        self.other = other  # from the name and the number of what was no data
        self.met = list(met)

    def value(self, form: Any, *, met: bool = False) -> Any:
        """`met`: of an object that is numbered already, a new one that holds what it shall hold."""
        kind = type(form)
        if kind is tuple and form[:1] == (...,):
            return self.special(form[1], form[2], met)
        if kind in (list, dict, set) and not met:
            self.met.append(form)
        if kind is dict:
            items = list(zip(map(self.value, form), map(self.value, form.values()), strict=True))
            form.clear()
            form.update(items)
        elif kind is list and not only_atoms(form):
            form[:] = list(map(self.value, form))
        elif kind is set and not only_atoms(form):
            items = list(map(self.value, form))
            form.clear()
            form.update(items)
        elif kind in (tuple, frozenset) and not only_atoms(form):
            return kind(map(self.value, form))
        return form

    def special(self, name: str, parts: Any, met: bool) -> Any:
        if name == "met":
            return self.met[parts]
        if name in ("handle", "iterator", "builtin"):
            return self.other(name, parts)
        if met or name not in CHANGEABLE:
            return made(name, tuple(map(self.value, parts)))
        place = len(self.met)
        self.met.append(None)
        self.met[place] = made(name, tuple(map(self.value, parts)))
        return self.met[place]


# ── the program's side ──────────────────────────────────────────────────────────────────────────────────────────────

kept: list[Any] = []  # what the judge holds handles to
numbers: dict[int, int] = {}  # where in `kept` an object is, by its id
endings: dict[int, BaseException] = {}  # what an iterator in `kept` raised after items that were still to be sent

DEEDS: dict[str, Callable[..., Any]] = {
    "call": lambda function, arguments, named: function(*arguments, **dict(named)),
    "get": getattr,
    "set": setattr,
    "item": lambda value, key: value[key],
    "set item": lambda value, key, item: value.__setitem__(key, item),
    "iter": iter,
    "len": len,
    "bool": bool,
    "str": str,
}


def serve(requests: int, answers: int) -> NoReturn:
    """Do what the judge asks, until it has gone. Whatever the program does to this process harms only its own answers."""
    module = sys.modules["program"] = ModuleType("program")
    while True:
        verb, target, content = marshal.loads(receive(requests))
        given: Any = ()
        met: list[Any] = []
        try:
            unpacking = Unpacking(kept_object)
            given = unpacking.value(marshal.loads(content))
            met = unpacking.met
            value: Any = None
            if verb == "run":
                exec(compile(target, "program", "exec", dont_inherit=True), module.__dict__)
            elif verb == "name":
                value = module.__dict__[target]
            elif verb == "next":
                value = taken(target, *given)
            else:
                value = DEEDS[verb](kept[target], *given)
            answer = answered("data", value, met, given, content)
        except BaseException as error:
            try:
                answer = complaint(error, verb, met, given, content)
            except BaseException:  # too little memory for the whole, or an exception that fails to tell of itself
                answer = marshal.dumps(("raised", (type(error).__name__, (type(error).__name__,), ()), None))
        try:  # noqa: SIM105, contextlib would have to be loaded
            print(end="", flush=True)
        except BaseException:  # the program has closed its output, or put something else in its place
            pass
        send(answers, answer)


def taken(number: int, most: int) -> list[Any]:
    """The next items of an iterator: one, and others up to `most` as long as they come at once. What ends them comes next."""
    if number in endings:
        raise endings.pop(number)
    items, start = [next(kept[number])], time.monotonic()
    try:
        while len(items) < most and time.monotonic() - start < READ_AHEAD_SECONDS:
            items.append(next(kept[number]))
    except BaseException as error:
        endings[number] = error
    return items


def answered(kind: str, value: Any, met: list[Any], given: Any, content: bytes) -> bytes:
    """The answer, and what the arguments hold now where that is no longer what came (`content`)."""
    packing, changes = Packing(kept_form), None
    for item in met:
        packing.number(item)
    if met and marshal.dumps(Packing(kept_form).form(given), STEADY) != content:
        changes = [packing.form(item, met=True) for item in met]
    if kind != "data" or is_plain(value, packing.places):
        return marshal.dumps((kind, value, changes))
    return marshal.dumps(("form", packing.form(value), changes))


def complaint(error: BaseException, verb: str, met: list[Any], given: Any, content: bytes) -> bytes:
    if verb == "next" and isinstance(error, StopIteration):
        return answered("end", None, met, given, content)
    kind = type(error)
    above = tuple(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
    told = error.args if kind.__module__ == "builtins" and is_plain(error.args) else (str(error),)
    return answered("raised", (kind.__name__, above, told), met, given, content)


def kept_form(packing: Packing, value: Any) -> Any:
    if isinstance(value, type) and BUILTIN_DATA.get(value.__name__) is value:
        return (..., "builtin", value.__name__)
    if id(value) not in numbers:
        numbers[id(value)] = len(kept)
        kept.append(value)
    return (..., "iterator" if hasattr(type(value), "__next__") else "handle", numbers[id(value)])


def kept_object(name: str, which: Any) -> Any:
    return getattr(builtins, which) if name == "builtin" else kept[which]


# ── the judge's side ────────────────────────────────────────────────────────────────────────────────────────────────


class Ended(BaseException):
    """The program cannot go on. No Exception, which tests may catch."""


class Remote:
    """Something in the program that is not data: it can be called, read, set, indexed and gone through. Equal only to itself,
    whatever it would say; what it says of its length, its truth or its items is data."""

    def __init__(self, judge: Judge, number: int) -> None:
        self.__dict__.update(_judge=judge, _number=number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._judge.ask("call", self._number, arguments, tuple(named.items()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._judge.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._judge.ask("set", self._number, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._judge.ask("item", self._number, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._judge.ask("set item", self._number, key, value)

    def __iter__(self) -> Any:
        return self._judge.ask("iter", self._number)

    def __len__(self) -> int:
        return int(self._judge.ask("len", self._number))

    def __bool__(self) -> bool:
        return bool(self._judge.ask("bool", self._number))

    def __str__(self) -> str:
        return str(self._judge.ask("str", self._number))

    def __reduce__(self) -> NoReturn:
        raise TypeError("What lives in the program cannot be copied by its tests.")


class RemoteIterator(Remote):
    """An iterator in the program. Each item is asked for when it is wanted, so it may be endless; one that goes on and on is
    read ahead, a little, since a question takes longer than most items."""

    def __init__(self, judge: Judge, number: int) -> None:
        super().__init__(judge, number)
        self.__dict__.update(_taken=0, _ahead=[])

    def __iter__(self) -> RemoteIterator:
        return self

    def __next__(self) -> Any:
        if not self._ahead:
            most = 1 if self._taken < ONE_BY_ONE else READ_AHEAD
            self._ahead.extend(reversed(self._judge.ask("next", self._number, most)))
        self.__dict__["_taken"] += 1
        return self._ahead.pop()


class Judge:
    """Asks, listens, and keeps the program's clock: it runs only while the program owes an answer."""

    def __init__(self, requests: int, answers: int, printed: int, most_output: int, seconds: float) -> None:
        self.requests, self.answers, self.printed = requests, answers, [printed]
        self.most_output, self.output = most_output, b""
        self.seconds = self.seconds_left = seconds
        self.remotes: dict[int, Remote] = {}
        self.end: tuple[str, str] | None = None  # an outcome as in `sandbox.Outcome`, and its detail
        signal.signal(signal.SIGALRM, lambda *_: self.stop("TIMED_OUT", f"over {self.seconds:g} s"))

    def stop(self, outcome: str, detail: str) -> NoReturn:
        self.end = (outcome, detail)
        raise Ended

    def ask(self, verb: str, target: Any, *given: Any) -> Any:
        """Have the program do something; changes `given` as it did, and raises what it raised."""
        if self.end is not None:
            raise Ended
        packing = Packing(remote_form)
        message = marshal.dumps((verb, target, marshal.dumps(packing.form(given), STEADY)))
        try:
            signal.setitimer(signal.ITIMER_REAL, self.seconds_left)
            send(self.requests, message)
            while self.answers not in select.select([self.answers, *self.printed], [], [])[0]:
                self.listen()
            answer = receive(self.answers)
            self.seconds_left = max(signal.setitimer(signal.ITIMER_REAL, 0)[0], 1e-3)  # 0 would stop the clock for good
            kind, value, changes = marshal.loads(answer)
        except (EOFError, BrokenPipeError):
            self.stop("EXITED", "")
        unpacking = Unpacking(self.remote, packing.met)
        if changes is not None:
            contents = [unpacking.value(form, met=True) for form in changes]
            for item, content in zip(packing.met, contents, strict=True):
                refill(item, content)
        if kind == "data":
            return value
        if kind == "form":
            return unpacking.value(value)
        if kind == "end" and verb == "next":
            raise StopIteration
        raise raised(*value)

    def remote(self, name: str, which: Any) -> Any:
        if name == "builtin":
            return BUILTIN_DATA[which]  # a type; a function such as exec would be the program's hand in here
        if which not in self.remotes:
            self.remotes[which] = (RemoteIterator if name == "iterator" else Remote)(self, int(which))
        return self.remotes[which]

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


def remote_form(packing: Packing, value: Any) -> Any:
    if isinstance(value, Remote):
        return (..., "iterator" if isinstance(value, RemoteIterator) else "handle", value._number)
    name = getattr(value, "__name__", "")
    if isinstance(name, str) and getattr(builtins, name, None) is value:
        return (..., "builtin", name)
    if hasattr(type(value), "__next__"):
        return (..., "iter", (packing.form(tuple(value)),))
    raise TypeError(f"{type(value).__name__} of the tests is not data, so the program cannot be given it")


def refill(item: Any, content: Any) -> None:
    """Make an object of the tests hold what the program's copy of it holds."""
    if isinstance(item, dict | set):
        item.clear()
        item.update(content)
    elif isinstance(item, list | bytearray) or type(item).__name__ == "array":
        item[:] = content
    elif type(item).__name__ == "deque":
        item.clear()
        item.extend(content)
    elif item.shape != content.shape:
        raise TypeError("An array of the tests cannot get another shape in place.")
    else:
        item[...] = content


def raised(name: str, above: tuple[str, ...], told: tuple[Any, ...]) -> BaseException:
    """The program's exception as tests can catch it: of the built-in type of that name, or derived from the nearest above it.

    Not the two by which loops end: `list(map(f, xs))` would be empty, and right where nothing is expected.
    """
    kinds = [getattr(builtins, base, None) for base in above]
    nearest = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)), Exception)
    if issubclass(nearest, StopIteration | StopAsyncIteration):
        nearest = Exception
    kind = nearest if nearest.__name__ == name else type(str(name), (nearest,), {})
    try:
        return kind(*told)
    except TypeError:  # ExceptionGroup and its like want more than a text
        return type(str(name), (Exception,), {})(*told)


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
    nowhere = os.open("/dev/null", os.O_WRONLY)  # now: inside it can only be read
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
    verdicts = os.dup(1)
    os.dup2(nowhere, 1)  # what tests print may be the program's words, and must not be taken for a verdict
    os.dup2(nowhere, 2)
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
    os.write(verdicts, marshal.dumps((outcome, detail, wall, cpu, overhead, judge.output[: settings["output"]])))


def fate(code: int, cpu: float, seconds: float) -> tuple[str, str]:
    """Why a program is gone: its exit code, or minus the signal."""
    if code >= 0:
        return "EXITED", f"exit code {code}"
    if code == -signal.SIGXCPU or cpu > seconds:
        return "TIMED_OUT", f"{cpu:.1f} s of CPU"
    return "KILLED", signal.Signals(-code).name


if __name__ == "__main__":
    main()
