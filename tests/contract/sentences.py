"""The sentences of SlurmClient that hold for every backend and release while nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.core.errors import SlurmError
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.nodes import expand_nodes
from tests.contract.scene import HOSTILE_COMMENT, HOSTILE_NAME, NOBODYS_ID, SCATTERED, SOMEBODY, Scene

Sentence = Callable[[SlurmClient, Scene], None]


def the_queue_has_what_has_not_ended(slurm: SlurmClient, scene: Scene) -> None:
    shown = {job.array_job_id for job in slurm.jobs()}
    assert {scene.hostile, scene.somebodys, scene.array, scene.scattered, scene.after, scene.lives} <= shown
    assert not {scene.failed, scene.killed, scene.done, scene.cancelled} & shown


def a_hostile_name_and_comment_come_back_whole(slurm: SlurmClient, scene: Scene) -> None:
    (job,) = slurm.jobs(job_ids=[scene.hostile])
    assert (job.name, job.comment) == (HOSTILE_NAME, HOSTILE_COMMENT)
    assert (job.user, job.partition, job.work_dir) == (scene.user, "main", "/")
    assert job.state == "PENDING" and job.is_held and job.reason == "JobHeldUser"
    assert (job.array_task, job.array_job_id, job.nodes, job.elapsed_s) == ("", scene.hostile, "", 0)
    assert job.submitted_at is not None and job.submitted_at.tzinfo is not None and job.started_at is None


def an_array_is_its_running_task_and_one_row_for_the_rest(slurm: SlurmClient, scene: Scene) -> None:
    rest, task = sorted(slurm.jobs(job_ids=[scene.array]), key=lambda job: job.state)
    assert (rest.display_id, rest.state) == (f"{scene.array}_[2-1000%1]", "PENDING")
    assert (rest.job_id, rest.reason, rest.is_held) == (scene.array, "JobArrayTaskLimit", False)
    assert (task.display_id, task.state, task.array_job_id) == (f"{scene.array}_1", "RUNNING", scene.array)
    assert task.job_id != scene.array and task.node_count == 2 and expand_nodes(task.nodes) == ["node1", "node2"]
    assert task.time_limit_s == 3600 and task.started_at is not None and task.ends_at is not None
    assert (task.ends_at - task.started_at).total_seconds() == 3600
    assert [job.display_id for job in slurm.jobs(job_ids=[task.job_id])] in (
        [task.display_id],
        [task.display_id, rest.display_id],
    )


def the_scattered_rest_of_an_array_is_not_cut(slurm: SlurmClient, scene: Scene) -> None:
    (job,) = slurm.jobs(job_ids=[scene.scattered])
    assert set(job.array_task.partition("%")[0].split(",")) == set(map(str, SCATTERED))


def what_has_no_time_limit_has_no_end(slurm: SlurmClient, scene: Scene) -> None:
    (job,) = slurm.jobs(job_ids=[scene.lives])
    assert (job.state, job.is_running, job.time_limit_s, job.ends_at) == ("RUNNING", True, None, None)


def a_dependency_names_what_is_waited_for(slurm: SlurmClient, scene: Scene) -> None:
    (job,) = slurm.jobs(job_ids=[scene.after])
    assert job.reason == "Dependency" and f"afterany:{scene.array}" in job.dependency
    (free,) = slurm.jobs(job_ids=[scene.lives])
    assert free.dependency == ""


def users_narrow_the_queue(slurm: SlurmClient, scene: Scene) -> None:
    assert [job.job_id for job in slurm.jobs(users=[SOMEBODY])] == [scene.somebodys]
    own = {job.array_job_id for job in slurm.jobs(users=[scene.user])}
    assert scene.hostile in own and scene.somebodys not in own
    assert slurm.jobs(users=[]) == []
    assert slurm.jobs(users=[SOMEBODY], job_ids=[scene.hostile]) == []


def ids_narrow_the_queue_and_what_slurm_forgot_has_no_row(slurm: SlurmClient, scene: Scene) -> None:
    assert slurm.jobs(job_ids=[NOBODYS_ID]) == [] and slurm.jobs(job_ids=[]) == []
    assert [job.job_id for job in slurm.jobs(job_ids=[NOBODYS_ID, scene.lives])] == [scene.lives]
    assert slurm.jobs(job_ids=[scene.done]) == []


def the_controllers_memory_says_how_jobs_ended(slurm: SlurmClient, scene: Scene) -> None:
    ids = {"failed": scene.failed, "killed": scene.killed, "done": scene.done, "cancelled": scene.cancelled}
    ends = slurm.ends([*ids.values(), scene.lives, scene.hostile, NOBODYS_ID])
    assert set(ends) == set(ids.values())
    assert [(ends[one].state, ends[one].exit_code, ends[one].signal) for one in (scene.failed, scene.done)] == [
        ("FAILED", 3, 0),
        ("COMPLETED", 0, 0),
    ]
    assert (ends[scene.killed].exit_code, ends[scene.killed].signal) == (0, 9)
    assert ends[scene.cancelled].state == "CANCELLED"
    done = ends[scene.done]
    assert done.nodes.startswith("node") and done.started_at is not None and done.ended_at is not None
    assert done.ended_at.tzinfo is not None and done.started_at <= done.ended_at
    assert slurm.ends([]) == {} and slurm.ends([NOBODYS_ID]) == {}


def a_job_that_nobody_preempted_has_no_time_of_it(slurm: SlurmClient, scene: Scene) -> None:
    assert slurm.preempted([scene.lives, scene.done, scene.killed, NOBODYS_ID]) == {} == slurm.preempted([])


def nodes_have_state_reason_and_partitions(slurm: SlurmClient, scene: Scene) -> None:
    nodes = {node.name: node for node in slurm.nodes()}
    assert sorted(nodes) == ["node1", "node2", "node3", "node4"]
    assert all(node.partitions == ("main*",) and node.memory_mib > 1000 for node in nodes.values())
    bad = nodes[scene.drained]
    assert (bad.state, bad.reason, bad.is_out_of_service) == ("drained", scene.reason, True)
    assert nodes["node1"].state == "mixed" and nodes["node1"].reason == "" and not nodes["node1"].is_out_of_service
    assert {nodes["node3"].state} <= {"idle", "mixed"}


def a_node_list_narrows_them_and_an_unknown_name_is_left_out(slurm: SlurmClient, scene: Scene) -> None:
    assert [node.name for node in slurm.nodes("node[2-3]")] == ["node2", "node3"]
    assert [node.name for node in slurm.nodes("node1,nowhere")] == ["node1"]


def a_node_has_an_address_and_an_unknown_one_is_refused(slurm: SlurmClient, scene: Scene) -> None:
    assert slurm.node_address("node2") == "127.0.0.1"
    with pytest.raises(SlurmError, match=r"not found"):
        slurm.node_address("nowhere")


def the_configuration_is_in_slurms_words(slurm: SlurmClient, scene: Scene) -> None:
    said = slurm.configuration()
    assert said["ClusterName"] == scene.cluster and said["SlurmctldHost[0]"] and said["MaxArraySize"] == "1001"


def an_operator_is_shown_everybodys_jobs(slurm: SlurmClient, scene: Scene) -> None:
    assert not slurm.hides_others_jobs()


def a_refused_job_has_slurms_words(slurm: SlurmClient, scene: Scene) -> None:
    with pytest.raises(SlurmError, match=r"(?i)invalid partition"):
        slurm.submit("#!/bin/bash\n#SBATCH --partition=nowhere\n")
    with pytest.raises(SlurmError, match=r"(?i)array"):
        slurm.submit("#!/bin/bash\n#SBATCH --array=1-1001\n")


def cancelling_what_has_ended_is_no_error(slurm: SlurmClient, scene: Scene) -> None:
    slurm.cancel([scene.done, scene.failed])
    slurm.cancel([scene.done], pending_only=True)
    slurm.cancel([NOBODYS_ID])
    slurm.cancel([])


def what_is_not_there_can_be_neither_held_nor_requeued(slurm: SlurmClient, scene: Scene) -> None:
    with pytest.raises(SlurmError, match=r"(?i)invalid job id|job/step"):
        slurm.hold([str(NOBODYS_ID)])
    with pytest.raises(SlurmError, match=r"(?i)invalid job id|job/step"):
        slurm.requeue(NOBODYS_ID)
    slurm.hold([])
    slurm.release([])


SENTENCES: tuple[Sentence, ...] = (
    the_queue_has_what_has_not_ended,
    a_hostile_name_and_comment_come_back_whole,
    an_array_is_its_running_task_and_one_row_for_the_rest,
    the_scattered_rest_of_an_array_is_not_cut,
    what_has_no_time_limit_has_no_end,
    a_dependency_names_what_is_waited_for,
    users_narrow_the_queue,
    ids_narrow_the_queue_and_what_slurm_forgot_has_no_row,
    the_controllers_memory_says_how_jobs_ended,
    a_job_that_nobody_preempted_has_no_time_of_it,
    nodes_have_state_reason_and_partitions,
    a_node_list_narrows_them_and_an_unknown_name_is_left_out,
    a_node_has_an_address_and_an_unknown_one_is_refused,
    the_configuration_is_in_slurms_words,
    an_operator_is_shown_everybodys_jobs,
    a_refused_job_has_slurms_words,
    cancelling_what_has_ended_is_no_error,
    what_is_not_there_can_be_neither_held_nor_requeued,
)
