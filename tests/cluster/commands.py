"""Running opsctl as a person would, in a process of its own, for the tests of this folder.

Most tests fork that process from this one, which has imported opsctl: a start of Python for each of some hundred
commands would cost minutes. `Opsctl.start` starts a Python.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pkgutil
import pwd
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import opsctl as package
from opsctl.cli import main
from tests.cluster.conftest import RunningCluster
from tests.users import become

#: The longest that a command may take on a busy machine, seconds.
COMMAND_S = 240


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


@dataclass(frozen=True)
class Opsctl:
    """opsctl on one cluster, in one run's folder."""

    cluster: RunningCluster
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "output" / ".opsctl"

    def environment(self) -> dict[str, str]:
        own = {
            "OPSCTL_CLUSTER": str(self.cluster.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "OPSCTL_ANSWERS_AGE": "0",
        }
        return {**{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OPSCTL"))}, **own}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "opsctl", *words],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> Answer:
        """Run a command in a fork and wait for its end."""
        return self._forked(words, {})

    def says(self, user: str, *words: str) -> Answer:
        """Run a command as this Unix user, who has a state folder of their own (root only)."""
        own = {"XDG_STATE_HOME": str(self.folder / f"state-{user}"), "HOME": pwd.getpwnam(user).pw_dir, "USER": user}
        return self._forked(words, own, user)

    def _forked(self, words: Sequence[str], own: dict[str, str], user: str = "") -> Answer:
        _import_all()
        environment = self.environment() | own
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if not child:
                _be_opsctl(words, self.folder, environment, user, (out.fileno(), err.fileno()))
            code = _exit_code(child, words)
            out.seek(0)
            err.seek(0)
            return Answer(code, out.read(), err.read())

    def ok(self, *words: str) -> str:
        """Run what must succeed and return its data."""
        answer = self(*words)
        assert answer.code == 0, answer.err
        return answer.out.strip()

    def submit(self, *words: str) -> int:
        """Submit a chain that waits for tomorrow, unless told otherwise; its id."""
        begin = [] if "--begin" in words else ["--begin", "now+1day"]
        return int(self.ok("submit", *begin, *words))

    def chains(self) -> list[dict[str, Any]]:
        path = self.state / "chains.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def revisions(self) -> list[str]:
        return sorted(path.name for path in (self.state / "revisions").glob("*")) if self.state.exists() else []

    def queue(self, fields: str) -> list[str]:
        """squeue's rows in its own one-letter fields, the rest of an array as one."""
        return sorted(self.cluster.run("squeue", "-h", "-o", fields).stdout.splitlines())

    def run_id(self) -> str:
        return (self.state / "run-id").read_text().strip()


def _be_opsctl(
    words: Sequence[str], folder: Path, environment: dict[str, str], user: str, outputs: tuple[int, int]
) -> NoReturn:
    """Be `python -m opsctl WORDS` in this forked process, and end it as Python ends."""
    code: object = 1
    try:
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        atexit._clear()  # what runs at the end of the tests
        _forget_answers()
        if user:
            become(user)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        try:
            main(list(words))
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as Python does
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _forget_answers() -> None:
    """Forget what functions of opsctl have kept from earlier calls in this process: the command is a new process."""
    for name, module in sys.modules.items():
        if name.startswith("opsctl."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _exit_code(child: int, words: Sequence[str]) -> int:
    """Wait for a forked command; it is killed when it takes longer than `COMMAND_S`."""
    handle = os.pidfd_open(child)
    try:
        if not select.select([handle], [], [], COMMAND_S)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"opsctl {' '.join(words)} took longer than {COMMAND_S} s")
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@functools.cache
def _import_all() -> None:
    """Import every module of opsctl: another user may not read this interpreter's library."""
    for module in pkgutil.walk_packages(package.__path__, "opsctl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every Unix user can reach and write to, each what is their own."""
    with tempfile.TemporaryDirectory(prefix="or", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)
