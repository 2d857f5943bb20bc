"""Running compilers: several at once, each with a limit, and none left behind with what it has started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trainer.kernels.native.toolchains import CompilerError

_COMPILE_S = 900
Given = TypeVar("Given")
Made = TypeVar("Made")


class Compilers:
    """Compilers under way, each the head of a process group of its own."""

    def __init__(self, limit_s: float = _COMPILE_S) -> None:
        self._limit_s = limit_s
        self._running: set[subprocess.Popen[str]] = set()
        self._is_ended = False

    def each(self, jobs: int, make: Callable[[Given], Made], of: Iterable[Given]) -> list[Made]:
        """What `make` gives of each, `jobs` at once. Where one fails or we are interrupted, the others end as well."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                return list(pool.map(make, of))
            except BaseException:
                self._end()
                raise

    def run(self, command: list[str], more: dict[str, str] | None = None) -> str:
        """What a compiler says. more: of the environment. Raises CompilerError with its first error, OSError."""
        in_english = {**os.environ, **(more or {}), "LC_ALL": "C"}
        if self._is_ended:
            raise CompilerError(f"{command[-1]}: not compiled, as another file failed")
        pipe = subprocess.PIPE
        # A group of its own: a compiler is a driver of others, which would outlive it.
        started = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=in_english, start_new_session=True, errors="replace"
        )
        self._running.add(started)
        try:
            said_out, said = started.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            raise CompilerError(f"{command[-1]}: {command[0]} took more than {self._limit_s:g} s") from None
        finally:
            self._running.discard(started)
            _end_now(started)
        said += said_out
        if started.returncode:
            first = re.search(r"^.*\berror\b.*$", said, re.MULTILINE | re.IGNORECASE)
            ended = f"{' '.join(command)} ended with {started.returncode}: {said[-500:]}"
            raise CompilerError(first[0] if first else ended)
        return said

    def _end(self) -> None:
        self._is_ended = True
        for one in tuple(self._running):
            _kill(one)


def _end_now(started: subprocess.Popen[str]) -> None:
    if started.returncode is None:
        _kill(started)
        started.communicate()


def _kill(started: subprocess.Popen[str]) -> None:
    """With its group. Once it has been waited for its number may be another's."""
    if started.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
