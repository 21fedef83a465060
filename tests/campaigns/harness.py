"""Cases of the campaigns and their outcomes: right, refused in one line, or wrong."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from lmc.errors import LmcError

Allowed = Literal["right", "refused", "either"]
"""Which outcomes of a case are allowed."""
LIMIT = 600
"""Seconds after which a case counts as wrong."""


class Wrong(Exception):
    """A result differs from the one that was expected; the message says how."""


class TooLong(BaseException):
    """A case takes too long. No handler of ordinary exceptions may catch it."""


@dataclass
class Tally:
    """The outcomes of many cases; ``wrong`` says for each wrong case what happened."""

    tried: int = 0
    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the outcomes of other cases."""
        self.tried += other.tried
        self.right += other.right
        self.refused += other.refused
        self.wrong += other.wrong

    def attempt(self, name: str, check: Callable[[], object], allowed: Allowed = "either") -> None:
        """Run a case: ``check`` raises :class:`Wrong` for a wrong result and an error of the library for a refusal."""
        sys.stderr.write(f"case: {name}\n")  # the last line names the case that ended the process
        sys.stderr.flush()
        self.tried += 1
        try:
            outcome = judged(check)
            if allowed not in ("either", outcome):
                raise Wrong(f"the outcome is {outcome}, not {allowed}")
        except Wrong as error:
            self.wrong.append(f"{name}: {error}")
        else:
            self.right += outcome == "right"
            self.refused += outcome == "refused"


def judged(check: Callable[[], object]) -> Literal["right", "refused"]:
    """The outcome of a case; anything but a normal return and a refusal in one line is :class:`Wrong`."""
    try:
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check()
    except Wrong:
        raise
    except LmcError as error:
        return one_line(str(error))
    except TooLong as error:
        raise Wrong(f"not finished after {LIMIT} seconds") from error
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        raise Wrong(f"traceback: {type(error).__name__} at {where}: {' '.join(str(error).split())[:200]}") from error
    return "right"


def one_line(message: str) -> Literal["refused"]:
    """Check that the message of a refusal is one line of a reasonable length."""
    if not message.strip() or "\n" in message.strip() or len(message) > 2000:
        raise Wrong(f"the refusal is not one short line: {message[:300]!r}")
    return "refused"


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise :class:`TooLong` in the block when it takes too long."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def forked(work: Callable[[], object], before_waiting: Callable[[int], None] | None = None) -> tuple[int, str]:
    """Run ``work`` in a process forked off this one; its exit code (-n: ended by signal n) and its message.

    The exit code is 0 for a normal return, 2 for a refusal, whose message it is, 130 for a stop, and 1 for any other
    exception. ``before_waiting`` is called with the number of the process.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os._exit(_outcome_of_child(work, write))
    os.close(write)
    if before_waiting is not None:
        before_waiting(child)
    with open(read, encoding="utf-8") as file:
        message = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), message


def _outcome_of_child(work: Callable[[], object], write: int) -> int:
    code, message = 1, ""
    try:
        # what the library prints is not part of the message
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            signal.alarm(LIMIT)
            torch.set_num_threads(1)
            work()
        code = 0
    except KeyboardInterrupt as error:
        code, message = 130, str(error)
    except LmcError as error:
        code, message = 2, str(error)
    except BaseException:
        message = traceback.format_exc()
    finally:
        with contextlib.suppress(OSError):
            os.write(write, message.encode()[:30_000])
    return code


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="lmc-campaign-") as path:
        yield Path(path)
