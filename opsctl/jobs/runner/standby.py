"""Launchers on standby: a second step on all nodes of the job, which has imported torch and waits for a restart.

A restart on them needs no new Slurm step, no start of Python and no imports. They cost memory on each host, and use no
GPU. What is started on them is an ordinary step. If anything is wrong with them, the restart takes a new step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from opsctl.core.files.state_files import make_folder
from opsctl.jobs.runner.launch import Launch
from opsctl.jobs.runner.watch_thread import Watch
from trainer.formats.attempt.attempt_records import STANDBY, Start
from trainer.formats.json_text import json_line

#: From the first iteration to their start: imports load the file system, and many errors come early.
AFTER_S = 60.0
_END_S = 5.0
#: `-m trainer.launch`, before the launcher's own words.
_MODULE = 2


class Standby(Watch):
    """The launchers on standby of one job. All methods return at once, except `end`, which may take seconds."""

    def __init__(self, root: Path, attempt_folder: Path, after_s: float = AFTER_S) -> None:
        super().__init__()
        self._root, self._attempt_folder, self._after_s = root, attempt_folder, after_s
        self._folder = attempt_folder.with_name(f".standby-{attempt_folder.name}")
        self._srun: subprocess.Popen[bytes] | None = None
        self._start: Callable[[], None] | None = None
        self._is_wanted: Callable[[], bool] = lambda: False
        self._wanted_at: float | None = None

    def prepare(
        self, launch: Launch, nodes: tuple[str, ...], environment: Mapping[str, str], is_wanted: Callable[[], bool]
    ) -> None:
        """Have launchers for `launch` started on `nodes`, all of the job's, some time after `is_wanted` is true."""
        words = [*launch.words[:_MODULE], STANDBY, *launch.words[_MODULE:]]
        own = replace(
            launch, words=words, nodes=len(nodes), only_on=nodes, attempt_folder=self._folder, wait_s=0
        )  # nodes that are not needed leave long before the others

        def start() -> None:
            make_folder(self._root, self._folder)
            self._srun = subprocess.Popen(
                own.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment, **own.environment()},
                start_new_session=True,
            )

        self._start, self._is_wanted, self._wanted_at = start, is_wanted, None

    def news(self) -> list[str]:
        """Start them when they are due; return the lines since the last call."""
        if self._start is not None and self._srun is None and self._is_wanted():
            self._wanted_at = self._wanted_at or time.monotonic()
            if time.monotonic() - self._wanted_at >= self._after_s:
                start, self._start = self._start, None
                try:
                    start()
                except OSError as error:
                    self.report(
                        f"opsctl: no launchers are on standby for a restart: {error.filename}: {error.strerror}"
                    )
        return super().news()

    def take(self, launch: Launch, nodes: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
        """Start `launch` on these nodes and return its srun; None if no launchers are on standby."""
        srun = self._srun
        if srun is None or srun.stdin is None or srun.poll() is not None:
            self.end()
            return None
        start = Start(nodes, tuple(launch.words[_MODULE:]), launch.variables_of_attempt())
        try:
            with srun.stdin:
                srun.stdin.write(f"{json_line(start)}\n".encode())
        except OSError:
            self.end()
            return None
        self._srun = None
        with contextlib.suppress(OSError):  # tee has the files open: the output of each node follows
            for file in self._folder.iterdir():
                file.rename(self._attempt_folder / file.name)
            self._folder.rmdir()
        return srun

    def end(self) -> None:
        """End launchers on which nothing was started."""
        srun, self._srun, self._start = self._srun, None, None
        if srun is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                if number is not None:
                    os.killpg(srun.pid, number)
                srun.communicate(timeout=_END_S)  # it closes their stdin, and they leave
                break
        shutil.rmtree(self._folder, ignore_errors=True)
