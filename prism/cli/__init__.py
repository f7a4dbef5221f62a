"""The command line. Each command is a dataclass, so what a user may write here, in a YAML file (`--config`) or in Python is the
same. Bad input ends in one clear line and a non-zero exit, never in a traceback or a half-written file.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

FAILURE, USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    smaller = "take something smaller"
    try:
        from prism.cli.parser import parse

        command = parse(words)
        smaller = command.smaller
        command.check()
        result = command.run()
        if command.json is not None:
            from prism.evaluation.record import write_json

            write_json(command.json, result)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; say nothing more
        return FAILURE
    except (argparse.ArgumentError, ValueError, OSError) as error:
        if os.environ.get("PRISM_TRACEBACK"):
            raise
        return _complain(str(error) or type(error).__name__, USAGE)
    except Exception as error:
        if os.environ.get("PRISM_TRACEBACK"):
            raise
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return _complain(f"not enough memory for this; {smaller}", FAILURE)
        return _complain(f"{type(error).__name__}: {error} (a bug? PRISM_TRACEBACK=1 shows where)", FAILURE)
    return 0


def _complain(message: str, code: int) -> int:
    print("prism: " + re.sub(r"\s+", " ", message).strip(), file=sys.stderr)
    return code
