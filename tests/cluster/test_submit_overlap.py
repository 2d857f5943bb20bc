"""Never two chains of one run side by side: live jobs in every disguise, and submits at the same moment."""

import fcntl
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control import submit as submit_module
from opsctl.jobs.control.send_chain import ChainOptions
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.slurm.cluster import Cluster
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.tiny_run import write_run


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        yield Opsctl(local_cluster, folder)


def live_task(opsctl: Opsctl, body: str = "sleep 600", user: str | None = None, name: str = "x") -> int:
    """A job of the run that runs now: its own script, with the run's comment."""
    mark = f"--comment=opsctl run={opsctl.run_id()} submit=0123"
    job = opsctl.cluster.sbatch(body, mark, f"--job-name={name}", user=user)
    opsctl.cluster.wait_for_state(job, "RUNNING")
    return job


def known_run(opsctl: Opsctl) -> None:
    """Give the run its id, with nothing of it in the queue."""
    opsctl.submit()
    opsctl.ok("cancel")


def refused(opsctl: Opsctl, *shown: str) -> None:
    before = opsctl.queue("%i")
    answer = opsctl("submit")
    assert answer.code == 1 and answer.out == ""
    assert len(answer.err.strip().splitlines()) == 1 and "opsctl submit --after auto" in answer.err
    for text in shown:
        assert text in answer.err
    assert opsctl.queue("%i") == before


def test_a_second_submit_is_refused_by_name_and_lines_up_when_asked(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    refused(opsctl, f"{chain}_[1-3%1] PENDING ({opsctl.queue('%u')[0]})")
    second = opsctl.submit("--after", "auto")
    assert [record["chain"] for record in opsctl.chains()] == [chain, second]


def test_another_users_renamed_job_is_still_the_runs(opsctl: Opsctl, unix_user: Callable[..., str]) -> None:
    known_run(opsctl)
    alice = unix_user("alice")
    job = live_task(opsctl, user=alice)
    opsctl.cluster.run("scontrol", "update", f"jobid={job}", "jobname=innocent")
    refused(opsctl, f"{job} RUNNING ({alice})")
    second = opsctl.submit("--after", "auto")
    assert f"afterany:{job}" in opsctl.cluster.run("squeue", "-h", "-j", str(second), "-o", "%E").stdout
    answer = opsctl("cancel")
    assert answer.out == f"{second}_[1-3%1]\n"
    assert f"{job} RUNNING ({alice})" in answer.err and "kill-switch trigger" in answer.err
    again = opsctl("cancel")
    assert again.code == 1 and again.out == "" and alice in again.err


def test_a_chain_whose_comment_was_taken_away_is_still_the_runs(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    opsctl.cluster.run("scontrol", "update", f"jobid={chain}", "comment=gone")
    refused(opsctl, f"{chain}_[1-3%1]")


def test_a_completing_job_is_live(opsctl: Opsctl) -> None:
    known_run(opsctl)
    # Deaf to SIGTERM, it is COMPLETING until Slurm's KillWait has passed.
    job = live_task(opsctl, "trap '' TERM; while :; do sleep 1; done")
    opsctl.cluster.run("scancel", str(job))
    opsctl.cluster.wait_for_state(job, "COMPLETING")
    refused(opsctl, f"{job} COMPLETING")


def test_a_job_of_another_run_with_the_same_name_is_no_obstacle(opsctl: Opsctl) -> None:
    other = opsctl.cluster.sbatch("sleep 600", "--job-name=tiny", "--comment=opsctl run=0ther submit=0123")
    chain = opsctl.submit()
    assert opsctl.queue("%F %j") == sorted([f"{other} tiny", f"{chain} tiny"])


def test_a_lock_that_a_dead_process_left_is_none(opsctl: Opsctl) -> None:
    opsctl.state.mkdir(parents=True)
    holder = f"import fcntl, os, time; f = open({str(opsctl.state / 'lock')!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
    holder += "f.write('bob@elsewhere pid 1\\n'); f.flush(); print('held', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=10)
    assert "bob@elsewhere" in (opsctl.state / "lock").read_text()
    opsctl.submit()


def test_a_submit_waits_for_one_that_is_under_way(opsctl: Opsctl) -> None:
    opsctl.state.mkdir(parents=True)
    with (opsctl.state / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        child = opsctl.start("submit", "--begin", "now+1day")
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=1.5)
        assert opsctl.queue("%i") == []
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert opsctl.queue("%A") == [out.strip()]


def test_of_submits_at_once_one_wins_and_the_others_say_who(opsctl: Opsctl) -> None:
    children = [opsctl.start("submit", "--begin", "now+1day") for _ in range(4)]
    answers = [(child.communicate(timeout=60), child.returncode) for child in children]
    won = [out for (out, _), code in answers if code == 0]
    assert len(won) == 1
    chain = won[0].strip()
    for (out, err), code in answers:
        if code:
            assert code == 1 and out == ""
            assert re.search(rf"{chain}_\[1-3%1\] PENDING \(\w+\)", err)
    assert opsctl.queue("%i") == [f"{chain}_[1-3%1]"]
    assert [record["chain"] for record in opsctl.chains()] == [int(chain)]
    assert len(opsctl.revisions()) == 1


def test_submits_at_once_with_after_auto_line_up(opsctl: Opsctl) -> None:
    children = [opsctl.start("submit", "--after", "auto", "--begin", "now+1day") for _ in range(3)]
    ids = []
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        ids.append(int(out))
    first, second, third = sorted(ids)
    waits = {int(a): e for a, e in (row.split("|") for row in opsctl.queue("%A|%E"))}
    assert waits[first] == "(null)"
    assert f"afterany:{first}_*" in waits[second] and str(second) not in waits[first]
    assert f"afterany:{first}_*" in waits[third] and f"{second}_*" in waits[third]


def test_two_users_at_once_get_one_chain(opsctl: Opsctl, unix_user: Callable[..., str]) -> None:
    """Forked after all imports, because another user may not read this interpreter's library."""
    group = f"octeam{os.getpid()}"
    users = [unix_user("ann", groups_of=[group]), unix_user("ben", groups_of=[group])]
    path = opsctl.folder / "run.toml"
    path.write_text(path.read_text().replace('output = "output"', f'output = "output"\ngroup = "{group}"'))
    opsctl.submit()  # everything is imported, and the run's folders are the group's
    opsctl.ok("cancel")
    run = load_run_file(path, {})
    submit_module.submit_dry(run, opsctl.cluster.cluster, ChainOptions())  # import what is imported late
    children = [_submit_as(user, run, opsctl.cluster.cluster) for user in users]
    answers = [_answer_of(*child) for child in children]
    codes = sorted(code for code, _ in answers)
    assert codes == [0, 1], answers
    loser = next(said for code, said in answers if code)
    winner = opsctl.queue("%u")[0]
    assert winner in users and f"({winner})" in loser
    assert opsctl.chains()[-1]["user"] == winner


def _submit_as(user: str, run: LoadedRun, cluster: Cluster) -> tuple[int, int]:
    """Fork a process of `user` that submits; its id, and where it says how that went."""
    entry = pwd.getpwnam(user)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, read_end
    code, said = 99, ""
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        said = str(submit_module.submit(run, cluster, ChainOptions(begin="now+1day")).chain.chain)
        code = 0
    except OpsctlError as error:
        code, said = error.exit_code, str(error)
    except BaseException as error:
        said = repr(error)
    finally:
        os.write(write_end, said.encode())
        os._exit(code)


def _answer_of(child: int, read_end: int) -> tuple[int, str]:
    with os.fdopen(read_end) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text
