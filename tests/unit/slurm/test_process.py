"""Slurm's commands stood in for by small scripts: what cannot be had from a real Slurm at will."""

import errno
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import SlurmError, SlurmMissing, SlurmUnasked, SlurmUnreachable
from opsctl.slurm import commands
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import Answer, run_slurm
from opsctl.slurm.rows import FIELD_END, QUEUE_FIELDS, ROW_END


@pytest.fixture(autouse=True)
def known_row_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins print rows that end like this."""
    monkeypatch.setattr(commands, "new_row_end", lambda: ROW_END)


def fake(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def client(folder: Path, deadline_s: float = 8.0):  # type: ignore[no-untyped-def]
    return client_for(Cluster(bin_folders=(str(folder),)), deadline_s)


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable) as caught:
        client(tmp_path, 2).jobs()
    assert time.monotonic() - began < 30
    assert "not running" not in str(caught.value) and "\n" not in str(caught.value)
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(3000):  # init may take a moment to reap it
            os.kill(child, 0)
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                raise ProcessLookupError
            time.sleep(0.02)


def test_all_calls_of_one_client_share_one_deadline(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", "sleep 1")
    one = client(tmp_path, 4.0)
    one.jobs()
    fake(tmp_path, "squeue", f"echo asked >>{tmp_path}/asked; exec sleep 60")
    with pytest.raises(SlurmUnreachable, match=r"squeue.* [0-3] s"):  # of four
        one.jobs()
    with pytest.raises(SlurmUnreachable, match="squeue"):
        one.jobs()
    assert (tmp_path / "asked").read_text() == "asked\n"  # without time left, squeue is not started


def test_a_missing_command_names_the_login_node_and_the_local_cluster(tmp_path: Path) -> None:
    with pytest.raises(SlurmMissing, match=r"login node.*opsctl local-cluster up"):
        run_slurm(["squeue"], {"PATH": str(tmp_path)}, 1)


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "squeue: fatal: Could not establish a configuration source",  # no slurm.conf on this machine
    ],
)
def test_a_controller_that_does_not_answer_is_not_a_refusal(tmp_path: Path, words: str) -> None:
    fake(tmp_path, "squeue", f"echo '{words}' >&2; exit 1")
    fake(tmp_path, "sbatch", f"echo '{words}' >&2; exit 1")
    for call in (client(tmp_path).jobs, lambda: client(tmp_path).submit("#!/bin/sh\n")):
        with pytest.raises(SlurmUnreachable, match="unknown"):
            call()


def test_a_job_that_no_cluster_was_asked_to_take_is_known_not_to_be_there(tmp_path: Path) -> None:
    fake(tmp_path, "sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1")
    with pytest.raises(SlurmUnasked, match="local-cluster exec"):
        client(tmp_path).submit("#!/bin/sh\n")


def test_which_configuration_did_not_answer_is_said(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    environment = {"PATH": str(tmp_path), "SLURM_CONF": "/of/another/shell.conf"}
    with pytest.raises(SlurmUnreachable, match=r"\(squeue with SLURM_CONF=/of/another/shell.conf: "):
        run_slurm(["squeue"], environment, 5)


def test_a_job_leaves_its_files_to_the_group_alone_whatever_umask_it_was_submitted_with(
    tmp_path: Path,
) -> None:
    fake(tmp_path, "sbatch", f"umask >{tmp_path}/umask; echo 7")
    before = os.umask(0o077)
    try:
        client(tmp_path).submit("#!/bin/sh\n")
    finally:
        os.umask(before)
    assert (tmp_path / "umask").read_text().strip() == "0007"


def test_a_refusal_keeps_slurms_words_on_one_line(tmp_path: Path) -> None:
    fake(tmp_path, "sbatch", "echo 'sbatch: error: invalid partition' >&2; echo 'sbatch: error: no luck' >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        client(tmp_path).submit("#!/bin/sh\n")
    assert not isinstance(caught.value, SlurmUnreachable)
    assert "invalid partition; no luck" in str(caught.value) and "\n" not in str(caught.value)


def test_a_queue_that_fails_in_an_unknown_way_is_never_an_empty_queue(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", "echo 'squeue: error: whatever comes next' >&2; exit 1")
    with pytest.raises(SlurmUnreachable):
        client(tmp_path).jobs()


def test_of_an_answer_that_broke_off_nothing_is_left_when_slurm_is_asked_again(tmp_path: Path) -> None:
    number = len(QUEUE_FIELDS)
    row = FIELD_END.join(["7", "7", *["N/A"] * (number - 2)]) + ROW_END
    again = f"[ -e {tmp_path}/first ] && exit 0; touch {tmp_path}/first"
    fake(
        tmp_path,
        "squeue",
        f"printf '%s\\n' '{row}'; {again}; echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1",
    )
    jobs = client_for(Cluster(bin_folders=(str(tmp_path),)), patient=True).jobs()
    assert [job.job_id for job in jobs] == [7]


def test_an_id_that_slurm_forgot_has_no_row(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert client(tmp_path).jobs(job_ids=[12]) == []


def test_the_users_own_format_settings_do_not_reach_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_FORMAT", "SBATCH_PARTITION", "SLURM_TIME_FORMAT", "SQUEUE_STATES"):
        monkeypatch.setenv(name, "relative")
    fake(tmp_path, "squeue", f"env >{tmp_path}/seen")
    client(tmp_path).jobs()
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert not {"SQUEUE_FORMAT", "SBATCH_PARTITION", "SQUEUE_STATES"} & set(seen)
    assert (seen["SLURM_TIME_FORMAT"], seen["TZ"]) == ("standard", "UTC0") and seen["LC_ALL"] == "C"


def test_accounting_is_asked_for_fifty_jobs_at_a_time(tmp_path: Path) -> None:
    fake(tmp_path, "sacct", f"echo call >>{tmp_path}/calls")
    fake(tmp_path, "squeue", "true")
    client(tmp_path).ends(range(1, 102))
    assert len((tmp_path / "calls").read_text().splitlines()) == 3


def test_without_accounting_the_controllers_memory_answers(tmp_path: Path) -> None:
    fake(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    fake(tmp_path, "squeue", f'echo "$@" >{tmp_path}/asked')
    assert client(tmp_path).ends([5]) == {}
    assert "--states=all" in (tmp_path / "asked").read_text()


def test_a_submit_leaves_time_to_be_looked_up(tmp_path: Path) -> None:
    fake(tmp_path, "sbatch", "sleep 30")
    fake(tmp_path, "squeue", "true")
    one = client(tmp_path, 3.0)
    with pytest.raises(SlurmUnreachable):
        one.submit("#!/bin/sh\n")
    assert one.jobs() == []


def test_cancelling_what_has_left_is_no_error(tmp_path: Path) -> None:
    gone = "scancel: error: Kill job error on job id 5: Invalid job id specified"
    fake(tmp_path, "scancel", f"echo '{gone}' >&2; exit 1")
    client(tmp_path).cancel([5])
    fake(tmp_path, "scancel", "echo 'scancel: error: Kill job error on job id 5: Access/permission denied' >&2; exit 1")
    with pytest.raises(SlurmError, match="permission denied"):
        client(tmp_path).cancel([5])


def test_words_are_one_line_without_repetition() -> None:
    answer = Answer(1, "", "sbatch: error: a\nsbatch: error: a\n\nsbatch: fatal: b: c\n")
    assert answer.words() == "a; b: c"


def test_a_list_of_jobs_that_ends_within_a_row_is_no_answer(tmp_path: Path) -> None:
    values = ["1"] * len(QUEUE_FIELDS)
    row = FIELD_END.join(values) + ROW_END + "\n"
    for printed, is_whole in ((row + row, True), (row + row[:9], False), (row[:9], False)):
        (tmp_path / "printed").write_text(printed)
        fake(tmp_path, "squeue", f"cat {tmp_path}/printed")
        if is_whole:
            assert len(client(tmp_path).jobs()) == 2
            continue
        with pytest.raises(SlurmUnreachable, match="squeue"):
            client(tmp_path).jobs()


def test_an_error_about_a_stopped_local_cluster_names_the_command_that_starts_it(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    conf = tmp_path / "slurm.conf"
    with pytest.raises(SlurmUnreachable) as caught:
        run_slurm(["squeue"], {"PATH": str(tmp_path), "SLURM_CONF": str(conf)}, 60)
    assert "local-cluster" not in str(caught.value)
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(SlurmUnreachable, match=f"opsctl local-cluster up --folder {tmp_path}"):
        run_slurm(["squeue"], {"PATH": str(tmp_path), "SLURM_CONF": str(conf)}, 60)


def test_a_local_cluster_without_its_controller_is_not_asked(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", f"touch {tmp_path}/asked")
    conf = tmp_path / "slurm.conf"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CONF": str(conf)}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        conf.write_text(f"SlurmctldHost=here(127.0.0.1)\nSlurmctldPort={port}\n")
        run_slurm(["squeue"], environment, 60)  # a Slurm that is no local cluster is always asked
        (tmp_path / "asked").unlink()
        (tmp_path / "cluster.json").write_text("{}")
        with pytest.raises(SlurmUnreachable, match=f"slurmctld.*{port}.*local-cluster up"):
            run_slurm(["squeue"], environment, 60)
        assert not (tmp_path / "asked").exists()
        listener.listen()
        run_slurm(["squeue"], environment, 60)
        assert (tmp_path / "asked").exists()


def test_a_stale_file_handle_next_to_the_configuration_hides_no_answer_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stale(path: Any, *args: Any, **named: Any) -> os.stat_result:
        if str(path).startswith("/of/a/server"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path, *args, **named)

    monkeypatch.setattr(os, "stat", stale)
    environment = {"PATH": str(tmp_path), "SLURM_CONF": "/of/a/server/slurm.conf"}
    fake(tmp_path, "squeue", "echo 7")
    assert run_slurm(["squeue"], environment, 60).stdout == "7\n"
    fake(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmUnreachable, match="Unable to contact slurm controller"):
        run_slurm(["squeue"], environment, 60)
