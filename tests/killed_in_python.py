"""Killing a process of ours at every step on the disk that Python tells of. `killed` sees those of the kernel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

_STEPS = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod")


def killed_at_every_step(do: Callable[[], object], most: int = 500) -> Iterator[int]:
    """Run `do` again and again in a forked process that dies by SIGKILL right before its first, second ... step.

    A step is an opening for writing, a rename, a making or removing. Yields after each death; ends when it came
    through, which it must not do by raising.
    """
    for step in range(1, most):
        child = os.fork()
        if not child:
            code = 1
            try:
                die_at(step)
                do()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            yield step
            continue
        assert status == 0, f"it failed before step {step}"
        return
    raise AssertionError(f"more than {most} steps")


def die_at(step: int) -> None:
    """From now on die by SIGKILL right before that step, the first being 1."""
    left = [step]

    def count(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        if event in _STEPS or writes:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
