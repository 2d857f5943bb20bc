"""A real training, tiny, on the test's cluster: what a person would look at while it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.run.config.paths import RunPaths
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import wait_until
from tests.printed_json import printed
from tests.tiny_run import write_run

#: Seconds that a job may take from its submission to its first iteration on a busy machine.
START_S = 240
_ITERATION = re.compile(r"\[default\d+\]: iteration +(\d+)/ *\d+ \|.*\| TFLOPs: [\d.]+ \|.*")


@dataclass(frozen=True)
class Training:
    """A run folder whose tasks really train."""

    opsctl: Opsctl

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.opsctl.folder / "output")

    def write(
        self, *, train_samples: int = 400_000, time: str = "10:00", ranks: int = 2, restarts: int = 0, **changes: str
    ) -> None:
        """(Over)write the run file, by default with more iterations than a test waits for.

        One rank trains on one node, more ranks on two nodes: each rank costs seconds of processor time to start.
        A failure ends the job, unless the test asks for `restarts`.
        `changes` replace lines: key="value as TOML".
        """
        nodes = min(ranks, 2)
        path = write_run(self.opsctl.folder, nodes=nodes, train_samples=train_samples, time=time)
        text = path.read_text().replace("[trainer]\n", "[trainer]\nlog_interval = 1\n")
        text = text.replace("gpus_per_node = 2", f"gpus_per_node = {ranks // nodes}\nrestarts = {restarts}")
        for key, value in changes.items():
            line, old = f"{key} = {value}", re.search(rf"^{key} = .*$", text, re.MULTILINE)
            text = text.replace(old[0], line, 1) if old else text.replace("[run]\n", f"[run]\n{line}\n")
        path.write_text(text)

    def submit(self, array: str, *words: str) -> int:
        return int(self.opsctl.ok("submit", "--array", array, *words))

    def log(self) -> str:
        try:
            return self.paths.main_log.read_text()
        except FileNotFoundError:
            return ""

    def iterations(self) -> list[int]:
        """The iterations of the log, in its order."""
        return [int(match[1]) for match in map(_ITERATION.fullmatch, self.log().splitlines()) if match]

    def wait_for_iteration(self, number: int, after_lines: int = 0) -> None:
        """Wait for iteration `number` or a later one among what comes after the first `after_lines` iterations."""
        wait_until(
            lambda: any(seen >= number for seen in self.iterations()[after_lines:]), START_S, f"iteration {number}"
        )

    def wait_for_log(self, words: str, times: int = 1, timeout_s: float = START_S) -> None:
        wait_until(lambda: self.log().count(words) >= times, timeout_s, f"{times} x {words!r} in the log")

    def wait_until_left(self, chain: int, timeout_s: float = 60) -> None:
        """Wait until no task of the chain is in the queue."""

        def has_left() -> bool:
            answer = self.opsctl.cluster.run("squeue", "-h", "-j", str(chain), check=False)
            # A controller that is too busy to answer shows no task either.
            return not answer.stdout and (not answer.returncode or "Invalid job id" in answer.stderr)

        wait_until(has_left, timeout_s, f"chain {chain} to end")

    def attempts(self) -> list[dict[str, Any]]:
        """`opsctl attempts --json`, which closes what was lost."""
        return list(printed("attempts", self.opsctl.ok("attempts", "--json")))

    def recorded(self) -> list[dict[str, Any]]:
        """Only what is on record, as the last event of each attempt says; closes nothing."""
        events: dict[str, dict[str, Any]] = {}
        for line in self.paths.attempts.read_text().splitlines():
            event = json.loads(line)
            events[event["id"]] = {**events.get(event["id"], {}), **event}
        return list(events.values())

    def first_attempt(self) -> dict[str, Any]:
        """Return the record of the only attempt so far; show all records if there are more."""
        attempts = self.recorded()
        assert len(attempts) == 1, json.dumps(attempts, indent=1)
        return attempts[0]

    def ends(self, chain: int) -> dict[str, tuple[str, int]]:
        """Array task -> (Slurm's state, exit code)."""
        rows = self.opsctl.cluster.run(
            "squeue", "-h", "-r", "-t", "all", "-j", str(chain), "-O", "ArrayTaskID,State,exit_code"
        )
        return {task: (state, int(status) >> 8) for task, state, status in map(str.split, rows.stdout.splitlines())}

    def rank(self, job_id: int, rank: int) -> dict[str, Any]:
        """Return what `ranks-*.json` of that job says about a rank, once its process is known."""

        def find() -> dict[str, Any] | None:
            for path in self.paths.attempt_folder(job_id).glob("ranks-*.json"):
                for place in json.loads(path.read_text()):
                    if place["rank"] == rank and place["pid"]:
                        return dict(place)
            return None

        found = wait_until(find, START_S, f"rank {rank}")
        assert isinstance(found, dict)
        return found

    def batch_process(self) -> int:
        """The process id of the running task's `opsctl job run`."""
        mark = f"--output-folder\0{self.paths.output}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and mark in _command_line(entry):
                return int(entry.name)
        raise AssertionError("no batch process")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def environment_script(folder: Path, body: str = "") -> str:
    """Write `env.sh` in `folder`, which finds this Python and gives way to others; its name as TOML."""
    lines = [f'export PATH="{Path(sys.executable).parent}:$PATH"', body]
    (folder / "env.sh").write_text("\n".join(lines) + "\n")
    return '"env.sh"'


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
