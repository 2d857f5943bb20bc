"""An interactive shell at a real terminal, as a job of its own and inside a training's, on a real Slurm."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.tiny_run import write_run

#: For what comes by itself, on however busy a machine, seconds.
LONG_S = 240


class Terminal:
    """A terminal at which a user has typed an opsctl command."""

    def __init__(self, opsctl: Opsctl, *words: str) -> None:
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.chdir(opsctl.folder)
            environment = {**opsctl.environment(), "TERM": "dumb", "HOME": str(opsctl.folder), "PS1": "$ "}
            os.execve(sys.executable, [sys.executable, "-m", "opsctl", *words], environment)
        self.seen = ""

    def until(self, pattern: str, timeout_s: float = LONG_S) -> re.Match[str]:
        """Read until `pattern` has been printed, and forget what came before its end."""
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace").replace("\r", "")
            except OSError:  # the other end has gone
                self.seen += ""
                assert re.search(pattern, self.seen), f"ended without {pattern!r}: {self.seen!r}"
        self.seen = self.seen[found.end() :]
        return found

    def type(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())

    def exit_code(self) -> int:
        self.type("exit 7")
        while select.select([self.fd], [], [], LONG_S)[0]:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        (folder / "environment.sh").write_text("export FROM_SCRIPT=yes\nalias broken=\nfalse\n")
        text = (folder / "run.toml").read_text().replace("[slurm]", 'environment = "environment.sh"\n\n[slurm]', 1)
        (folder / "run.toml").write_text(text)
        yield Opsctl(local_cluster, folder)


def state(terminal: Terminal) -> dict[str, str]:
    """Return what the shell has around it."""
    terminal.type(
        'echo "<$SLURM_JOB_ID|$SLURMD_NODENAME|$FROM_SCRIPT|$OMP_NUM_THREADS|$OPSCTL_RUN|$PWD|$(test -t 0; echo $?)>"'
    )
    # The line as it is typed is echoed too, with its variables not replaced.
    found = terminal.until(r"<(\d+)\|(\w*)\|(\w*)\|(\w*)\|([^|\n]*)\|([^|\n]*)\|(\d)>")
    return dict(zip(("job", "node", "script", "threads", "run", "folder", "is_tty"), found.groups(), strict=True))


def test_a_shell_at_a_terminal_has_the_runs_environment_and_its_exit_code_is_kept(opsctl: Opsctl) -> None:
    terminal = Terminal(opsctl, "shell", "--gpus", "1", "--time", "5:00")
    terminal.until(r"[$#] $")
    found = state(terminal)
    run_file = str(opsctl.folder / "run.toml")
    assert (found["script"], found["threads"], found["run"]) == ("yes", "1", run_file)
    assert (found["folder"], found["is_tty"]) == (str(opsctl.folder), "0")
    job = int(found["job"])
    assert opsctl.cluster.job_state(job) == "RUNNING" and found["node"].startswith("node")
    assert "gpu:1" in opsctl.cluster.run("squeue", "-h", "-j", str(job), "-o", "%b").stdout
    # What is started in it has the allocation: the shell's own step takes nothing of it.
    terminal.type("srun --overlap --ntasks=1 bash -c 'echo step-$((40+2))' < /dev/null")
    terminal.until(r"step-42\n.*[$#] $")
    assert terminal.exit_code() == 7
    opsctl.cluster.wait_for_state(job, "COMPLETED", "FAILED", "CANCELLED", timeout_s=LONG_S)


def test_into_a_task_of_an_array_it_goes_beside_what_runs_there_without_its_gpus(opsctl: Opsctl) -> None:
    array = opsctl.submit()
    mark = f"--comment=opsctl run={opsctl.run_id()} submit=0123"
    opsctl.ok("cancel")
    job = opsctl.cluster.sbatch("sleep 600", mark, "--nodes=2", "--gres=gpu:2", "--array=3-3")
    assert job != array
    opsctl.cluster.wait_for_state(job, "RUNNING", timeout_s=LONG_S)
    for which in (["--into"], ["--into", f"{job}_3", "--node", "node2"]):
        terminal = Terminal(opsctl, "shell", *which)
        terminal.until(rf"in job {job}_3")
        terminal.until(r"[$#] $")
        found = state(terminal)
        assert (found["job"], found["script"], found["is_tty"]) == (str(job), "yes", "0")
        if "--node" in which:
            assert found["node"] == "node2"
        assert terminal.exit_code() == 7
    assert opsctl.cluster.job_state(job) == "RUNNING"


def test_a_command_needs_no_terminal_and_its_output_and_exit_code_come_through(opsctl: Opsctl) -> None:
    answer = opsctl("shell", "--time", "5:00", "--", "bash", "-c", 'echo "$FROM_SCRIPT a  b"; exit 5')
    assert (answer.code, answer.out) == (5, "yes a  b\n"), answer.err
    missing = opsctl("shell", "--into", "4711")
    assert missing.code == 1 and "4711" in missing.last_line
    missing = opsctl("shell", "--into")
    assert missing.code == 1 and "tiny" in missing.last_line


def test_anothers_job_is_not_gone_into(opsctl: Opsctl, unix_user: Callable[..., str]) -> None:
    eve = unix_user("eve")
    job = opsctl.cluster.sbatch("sleep 600", "--nodes=1", user=eve)
    opsctl.cluster.wait_for_state(job, "RUNNING", timeout_s=LONG_S)
    refused = opsctl("shell", "--into", str(job))
    assert refused.code == 1 and f"job {job} " in refused.err and eve in refused.err
