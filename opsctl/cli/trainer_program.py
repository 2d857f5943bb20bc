"""Starting a program of the trainer, which needs packages that opsctl itself never imports."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsctl.core.errors import OpsctlError
from opsctl.core.process import run_on_terminal


def option_words(given: Mapping[str, Any]) -> list[str]:
    """Return options as a trainer's program takes them, by the names of click's parameters.

    True is a flag, a tuple is an option for each value, and None and False are left out.
    """
    words: list[str] = []
    for key, value in given.items():
        flag = f"--{key.removeprefix('as_').replace('_', '-')}"
        values = value if isinstance(value, tuple) else (value,)
        words += [flag if one is True else f"{flag}={one}" for one in values if one is not None and one is not False]
    return words


def run_trainer_program(
    module: str,
    arguments: Sequence[str],
    needed: Sequence[str],
    steps: Callable[[int], None] | None = None,
    *,
    to_stderr: bool = False,
) -> int:
    """Run a module of the trainer in a Python of its own, on this terminal; its exit code.

    steps: told about every second how many steps it has done for good, of a module that has the option `--steps-to`.
    Raises OpsctlError when packages are missing.
    """
    refuse_missing(needed)
    with _heard(steps) as (words, descriptors, hear):
        # -P: a folder named trainer where we happen to stand is not ours. No time-out: a corpus may take hours.
        command = [sys.executable, "-P", "-m", module, *words, *arguments]
        try:
            return run_on_terminal(
                command, _environment(), descriptors=descriptors, to_stderr=to_stderr, meanwhile=hear
            )
        finally:
            hear()


@contextlib.contextmanager
def _heard(
    steps: Callable[[int], None] | None,
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...], Callable[[], None]]]:
    """Provide the program's progress arguments, the descriptors that it needs, and a function that passes progress
    on.
    """
    if steps is None:
        yield (), (), lambda: None
        return
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    done = 0

    def hear() -> None:
        nonlocal done
        with contextlib.suppress(BlockingIOError):
            done += len(os.read(read_end, 1 << 16))
        steps(done)

    try:
        yield (f"--steps-to={write_end}",), (write_end,), hear
    finally:
        os.close(read_end)
        os.close(write_end)


def output_of_trainer_program(module: str, arguments: Sequence[str], needed: Sequence[str]) -> str:
    """Return the output of a module of the trainer; its messages go to this terminal.

    Raises OpsctlError when packages are missing, or it fails.
    """
    refuse_missing(needed)
    command = [sys.executable, "-P", "-m", module, *arguments]
    ended = subprocess.run(command, env=_environment(), stdout=subprocess.PIPE, check=False)
    if ended.returncode:
        raise OpsctlError(f"python -m {module} failed with exit code {ended.returncode}; its last line shows the error")
    return ended.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Return this environment, with the source tree on PYTHONPATH if opsctl runs from one: it may not be installed."""
    above = str(Path(__file__).resolve().parents[2])
    if above.endswith("-packages"):
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), above)))}


def refuse_missing(needed: Sequence[str]) -> None:
    """Raise OpsctlError naming those of the packages `needed` that this Python does not have."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        from trainer.formats.distribution import install_command

        raise OpsctlError(f"{', '.join(missing)} not installed in {sys.prefix}: {install_command('trainer')}")
