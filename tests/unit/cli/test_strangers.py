"""Looking at a stranger's folder runs nothing of it, for any user and command."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiny_run import write_run
from tests.unit.cli.called import Answer, forked

STRANGER, READER = "games", "nobody"
#: Every command that looks, and what it exits with where no one may ask the run's Slurm.
READING = {
    "status": 1,
    "status --json": 1,
    "queue": 1,
    "logs": 0,
    "attempts": 0,
    "watch training": 3,
    "watch training --no-log": 3,
    "watch all": 3,
    "kill-switch status": 0,
    "cancel --dry-run": 1,
    "submit --dry-run": 1,
    "revise --dry-run": 0,
    "render": 0,
    "plan": 0,
}
OPEN_ATTEMPT = {"event": "opened", "id": "a1", "number": 1, "job_id": 7, "opened_at": "2026-01-02T03:04:05+00:00"}
CHAIN = {"chain": 7, "submitted_at": "2026-01-02T03:04:05+00:00", "user": STRANGER, "array": "1-3%1"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="being several Unix users needs root")


@dataclass(frozen=True)
class Trap:
    """A folder of STRANGER's in which everything that could be run says so, in the file `sprung`."""

    folder: Path

    @property
    def sprung(self) -> Path:
        return self.folder / "open" / "sprung"

    def program(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$0 as $(id -un)" >>{self.sprung}\n')
        path.chmod(0o755)

    def environment(self, user: str, **more: str) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OPSCTL", "XDG"))}
        return {**base, "HOME": str(self.folder / "open" / user), "USER": user, **more}

    def read(self, words: str, user: str, **more: str) -> Answer:
        return forked(self.folder, *words.split(), environment=self.environment(user, **more), user=user)

    def read_as_a_program(self, words: str, user: str) -> subprocess.CompletedProcess[str]:
        account = pwd.getpwnam(user)
        return subprocess.run(
            [sys.executable, "-P", "-m", "opsctl", *words.split()],
            cwd=self.folder,
            env=self.environment(user),
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def trap() -> Iterator[Trap]:
    with tempfile.TemporaryDirectory(prefix="os", dir="/tmp") as outer:
        Path(outer).chmod(0o755)
        trap = Trap(Path(outer) / "run")
        write_run(trap.folder)
        state = trap.folder / "output" / ".opsctl"
        state.mkdir(parents=True)
        (trap.folder / "output" / "logs").mkdir()
        (trap.folder / "output" / "logs" / "main_log.txt").write_text("one line\n")
        for name in ("squeue", "sinfo", "sacct", "sbatch", "scontrol", "scancel"):
            trap.program(trap.folder / "bin" / name)
            trap.program(trap.folder / name)  # here too, for a PATH that names the working folder
        for name in ("click", "msgspec", "jinja2", "opsctl", "trainer", "ClusterShell"):
            (trap.folder / f"{name}.py").write_text(f"open({str(trap.sprung)!r}, 'a').write('{name}\\n')\n")
        (trap.folder / "slurm.conf").write_text(
            f"ClusterName=trap\nSlurmctldHost=localhost\nPluginDir={trap.folder}\nPlugStackConfig={trap.folder}/stack\n"
        )
        cluster = {"name": "trap", "slurm_conf": str(trap.folder / "slurm.conf"), "bin_folders": [f"{trap.folder}/bin"]}
        cluster["library_folders"] = [str(trap.folder / "bin")]
        (state / "cluster.json").write_text(json.dumps(cluster))
        (state / "run-id").write_text("5eed\n")
        (state / "chains.jsonl").write_text(json.dumps(CHAIN) + "\n")
        (state / "attempts.jsonl").write_text(json.dumps(OPEN_ATTEMPT) + "\n")
        account = pwd.getpwnam(STRANGER)
        for path in (trap.folder, *trap.folder.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        (trap.folder / "open").mkdir(mode=0o777)
        (trap.folder / "open").chmod(0o777)
        yield trap


@pytest.mark.parametrize("user", [READER, "root"])
def test_no_command_that_looks_runs_anything_of_a_strangers_folder(trap: Trap, user: str) -> None:
    for words, code in READING.items():
        answer = trap.read(words, user)
        assert not trap.sprung.exists(), (words, trap.sprung.read_text())
        assert answer.returncode == code, (words, answer.stderr, answer.stdout)
        assert "Traceback" not in answer.stderr
    # A new interpreter imports everything: nothing of that is in the folder.
    assert trap.read_as_a_program("status", user).returncode == 1 and not trap.sprung.exists()


def test_it_says_which_cluster_that_is_and_what_to_type(trap: Trap) -> None:
    answer = trap.read("queue", READER)
    (line,) = answer.stderr.splitlines()
    conf = trap.folder / "slurm.conf"
    assert re.search(rf"\btrap\b.*{re.escape(str(conf))}.*\b{STRANGER}\b", line)
    assert f"export SLURM_CONF={conf}" in line and "--cluster" in line


def test_no_program_is_taken_from_the_folder_one_is_in_by_a_path_that_names_it(trap: Trap) -> None:
    (trap.folder / "output" / ".opsctl" / "cluster.json").unlink()
    for path in (f":{os.environ['PATH']}", f".:{os.environ['PATH']}"):
        trap.read("queue", READER, PATH=path)
        assert not trap.sprung.exists(), trap.sprung.read_text()


def test_a_folder_that_others_can_write_is_no_cluster_to_name(trap: Trap) -> None:
    answer = trap.read(f"queue --cluster {trap.folder}/output/.opsctl", READER)
    assert (answer.returncode, answer.stdout) == (2, "") and STRANGER in answer.stderr
    assert not trap.sprung.exists()


DAMAGES = ["null", "[]", "7", "{", "", "large", "folder", "fifo", "link"]
LOOKS = ["queue", "cancel --dry-run", "submit --dry-run", "watch training", "status"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_of_the_cluster_is_one_line(trap: Trap, damage: str) -> None:
    record = trap.folder / "output" / ".opsctl" / "cluster.json"
    record.unlink()
    if damage == "large":
        with record.open("w") as file:
            file.truncate(100 << 20)
    elif damage == "folder":
        record.mkdir()
    elif damage == "fifo":
        os.mkfifo(record)
    elif damage == "link":
        record.symlink_to("/etc/hostname")
    else:
        record.write_text(damage)
    turn = DAMAGES.index(damage)
    for words in (LOOKS * 2)[turn : turn + 2]:
        answer = trap.read(words, READER)
        assert answer.returncode == READING[words], (words, answer)
        said = [*answer.stderr.splitlines(), *(answer.stdout.splitlines() if words.startswith("watch") else ())]
        assert len(said) == (2 if words.startswith("watch") else 1), (words, answer)
        assert any(str(record) in line for line in said), (words, answer)
