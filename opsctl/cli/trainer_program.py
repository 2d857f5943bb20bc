"""Starting a program of the trainer, which needs packages that opsctl itself never imports."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Sequence

from opsctl.errors import OpsctlError


def run_trainer_program(module: str, arguments: Sequence[str], needed: Sequence[str]) -> int:
    """Run a module of the trainer in a Python of its own, on this terminal; its exit code.

    Raises OpsctlError when packages are missing.
    """
    _refuse_missing(needed)
    # -P: a folder named trainer where we happen to stand is not ours. No time-out: a corpus may take hours.
    child = subprocess.Popen([sys.executable, "-P", "-m", module, *arguments])
    previous = signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    try:
        while True:
            # With a time-out: a signal in the moment before a wait without one would be passed on only after it.
            # A Ctrl-C reached the child as well, which tidies up.
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                return child.wait(timeout=1.0)
    finally:
        signal.signal(signal.SIGTERM, previous)


def output_of_trainer_program(module: str, arguments: Sequence[str], needed: Sequence[str]) -> str:
    """What a module of the trainer prints; what it says beside goes to this terminal.

    Raises OpsctlError when packages are missing, or it fails.
    """
    _refuse_missing(needed)
    ended = subprocess.run([sys.executable, "-P", "-m", module, *arguments], stdout=subprocess.PIPE, check=False)
    if ended.returncode:
        raise OpsctlError(f"python -m {module} failed with exit code {ended.returncode}; its last line says why")
    return ended.stdout.decode(errors="replace")


def _refuse_missing(needed: Sequence[str]) -> None:
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise OpsctlError(
            f"{', '.join(missing)} not installed in {sys.prefix}: python -m pip install 'opsctl[trainer]'"
        )
