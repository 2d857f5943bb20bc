"""The client against a real Slurm: what it reads, what it changes, what sbatch reads from our directives."""

import string
from pathlib import Path

import pytest

from opsctl.core.errors import SlurmError
from opsctl.run.render.templates import directive_word, filename_pattern
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.nodes import expand_nodes
from opsctl.slurm.rows import FIELD_END, QUEUE_FIELDS, ROW_END
from tests.cluster.commands import open_folder
from tests.cluster.conftest import RunningCluster, wait_until

PUNCTUATION = string.punctuation + " é"


@pytest.fixture
def client(local_cluster: RunningCluster) -> SlurmClient:
    return client_for(local_cluster.cluster, 60)


def test_nobody_can_make_up_jobs_of_others_in_the_name_of_a_job(local_cluster: RunningCluster) -> None:
    values = {"JobID": "777", "ArrayJobID": "777", "UserName": "root", "State": "RUNNING", "Comment": "opsctl run=5eed"}
    victim = FIELD_END.join(values.get(field, "0") for field in QUEUE_FIELDS)
    name = FIELD_END.join(["a", *["0"] * (len(QUEUE_FIELDS) - 4)]) + ROW_END + victim + ROW_END + "1" + 3 * FIELD_END
    local_cluster.sbatch("sleep 600", "--hold", f"--job-name={name}")
    shown = {job.job_id for job in client_for(local_cluster.cluster).jobs()}
    assert 777 not in shown


def test_hostile_names_and_comments_come_back_whole(local_cluster: RunningCluster, client: SlurmClient) -> None:
    name, comment = f"a|b\n'{PUNCTUATION}", "x" * 500 + "\n\t|" + PUNCTUATION
    job_id = local_cluster.sbatch("sleep 600", "--hold", f"--job-name={name}", f"--comment={comment}")
    plain = local_cluster.sbatch("sleep 600", "--hold")
    first, second = sorted(client.jobs(), key=lambda job: job.job_id)
    assert (first.job_id, first.name, first.comment) == (job_id, name, comment)
    assert second.job_id == plain and second.work_dir == "/"
    assert first.is_held and first.reason == "JobHeldUser"


def test_an_array_is_its_running_task_and_one_row_for_the_rest(
    local_cluster: RunningCluster, client: SlurmClient
) -> None:
    array = local_cluster.sbatch("sleep 600", "--array=1-1000%1", "--nodes=2", "--time=1:00:00")
    wait_until(lambda: any(job.state == "RUNNING" for job in client.jobs(job_ids=[array])), 20, "the first task")
    rest, task = sorted(client.jobs(job_ids=[array]), key=lambda job: job.state)
    assert (rest.display_id, rest.state) == (f"{array}_[2-1000%1]", "PENDING")
    assert (task.display_id, task.array_job_id, task.node_count) == (f"{array}_1", array, 2)
    assert task.time_limit_s == 3600 and task.started_at is not None and task.ends_at is not None
    assert (task.ends_at - task.started_at).total_seconds() == 3600
    assert len(expand_nodes(task.nodes)) == 2
    assert client.node_address(expand_nodes(task.nodes)[0]) == "127.0.0.1"


def test_a_scattered_rest_of_an_array_is_not_cut(local_cluster: RunningCluster, client: SlurmClient) -> None:
    wanted = ",".join(str(n * n) for n in range(1, 31))
    array = local_cluster.sbatch("true", f"--array={wanted}%1", "--hold")
    (job,) = client.jobs(job_ids=[array])
    assert "..." not in job.array_task
    assert set(job.array_task.split("%")[0].split(",")) == set(wanted.split(","))


def test_cancelling_a_task_what_is_pending_and_all_of_it(local_cluster: RunningCluster, client: SlurmClient) -> None:
    job = client.submit("#!/bin/bash\n#SBATCH --output=/dev/null --array=1-2%1\nsleep 600\n")
    wait_until(lambda: len(client.jobs(job_ids=[job])) == 2, 20, "the first task to start")
    local_cluster.run("scontrol", "hold", str(job))
    client.cancel([f"{job}_1"])
    wait_until(
        lambda: [one.is_held for one in client.jobs(job_ids=[job])] == [True], 30, "only the held task to be left"
    )
    # It exits with 1 for the task that has ended, and does as told with the other.
    local_cluster.run("scontrol", "release", str(job), check=False)
    wait_until(lambda: [one.state for one in client.jobs(job_ids=[job])] == ["RUNNING"], 30, "the released task to run")
    client.cancel([job], pending_only=True)
    assert [one.state for one in client.jobs(job_ids=[job])] == ["RUNNING"]
    client.cancel([job])
    wait_until(lambda: client.jobs(job_ids=[job]) == [], 30, "the job to go")
    client.cancel([job, 987654])


def test_the_controllers_memory_says_how_jobs_ended(local_cluster: RunningCluster, client: SlurmClient) -> None:
    failed = local_cluster.sbatch("exit 3")
    killed = local_cluster.sbatch("kill -9 $$")
    done = local_cluster.sbatch("true")
    lives = local_cluster.sbatch("sleep 600")
    wait_until(lambda: len(client.jobs(job_ids=[failed, killed, done])) == 0, 30, "three jobs to end")
    ends = client.ends([failed, killed, done, lives, 987654])
    assert set(ends) == {failed, killed, done}
    assert (ends[failed].state, ends[failed].exit_code, ends[failed].signal) == ("FAILED", 3, 0)
    assert (ends[killed].exit_code, ends[killed].signal) == (0, 9)
    assert ends[done].state == "COMPLETED" and ends[done].nodes != ""
    ended_at = ends[done].ended_at
    assert ended_at is not None and ended_at.tzinfo is not None


def test_users_narrow_the_queue_and_unknown_ids_have_no_row(local_cluster: RunningCluster, client: SlurmClient) -> None:
    job = local_cluster.sbatch("sleep 600", "--hold")
    (found,) = client.jobs()
    assert [one.job_id for one in client.jobs(users=[found.user])] == [job]
    assert client.jobs(users=["daemon"]) == [] and client.jobs(users=[]) == []
    assert client.jobs(job_ids=[987654]) == [] and client.jobs(job_ids=[]) == []


def test_refusals_carry_slurms_words(client: SlurmClient) -> None:
    with pytest.raises(SlurmError, match=r"(?i)invalid partition"):
        client.submit("#!/bin/bash\n#SBATCH --partition=nowhere\n")
    with pytest.raises(SlurmError, match=r"not found"):
        client.node_address("nowhere")


@pytest.mark.parametrize("value", ["a b", 'it\'s "q"', "#x", "$(id) `id`", "\\", "\\\\'\\\"", "''\"\"", PUNCTUATION])
def test_sbatch_reads_back_what_a_directive_says(client: SlurmClient, value: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --hold --output=/dev/null\n#SBATCH --comment={directive_word(value)} --time=5\n"
    job = client.submit(script)
    (found,) = client.jobs(job_ids=[job])
    assert (found.comment, found.time_limit_s) == (value, 300)


def test_output_goes_below_a_folder_of_any_name(local_cluster: RunningCluster, client: SlurmClient) -> None:
    with open_folder() as base:
        folder = base / '50%x it\'s "a" $(touch pwned) #1'
        folder.mkdir()
        pattern = f"{filename_pattern(folder)}/%x-%A_%a.out"
        where = f"--output={directive_word(pattern)} --chdir={directive_word(folder)}"
        lines = ["#!/bin/bash", "#SBATCH --job-name=tiny --array=7", f"#SBATCH {where}", "pwd"]
        job = client.submit("\n".join([*lines, ""]))
        output = folder / f"tiny-{job}_7.out"
        wait_until(lambda: output.exists() and output.read_text(), 30, "the output")
        assert Path(output.read_text().rstrip("\n")) == folder
