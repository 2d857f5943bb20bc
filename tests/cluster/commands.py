"""Running opsctl as a person would, in a process of its own, for the tests of this folder."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import pkgutil
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import opsctl as package
from opsctl.cli import main
from tests.cluster.conftest import RunningCluster
from tests.users import as_user


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
        child = self.start(*words)
        out, err = child.communicate(timeout=240)
        return Answer(child.returncode, out, err)

    def says(self, user: str, *words: str) -> Answer:
        """What a command answers this Unix user, who has a state folder of their own."""
        _import_all()
        own = {"XDG_STATE_HOME": str(self.folder / f"state-{user}"), "HOME": pwd.getpwnam(user).pw_dir, "USER": user}
        environment = self.environment() | own

        def called() -> Answer:
            os.chdir(self.folder)
            os.environ.clear()
            os.environ.update(environment)
            out, err = io.StringIO(), io.StringIO()
            code = 0
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    main(list(words))
                except SystemExit as stop:
                    code = int(stop.code or 0)
            return Answer(code, out.getvalue(), err.getvalue())

        return as_user(user, called)

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
