"""The jobs and nodes that the sentences of the contract are about, made on a cluster that is up."""

from __future__ import annotations

import pwd
import string
from dataclasses import dataclass
from functools import partial

from tests.cluster.conftest import RunningCluster, wait_until

PUNCTUATION = string.punctuation + " é"
HOSTILE_NAME = f"a|b\n'{PUNCTUATION}"
HOSTILE_COMMENT = "x" * 500 + "\n\t|" + PUNCTUATION
SCATTERED = tuple(n * n for n in range(1, 31))
#: Whose job is not the caller's.
SOMEBODY = "daemon"
NOBODYS_ID = 987_654
_LIVES = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")


@dataclass(frozen=True)
class Scene:
    """Ids of jobs by what they are there for, and who made them."""

    user: str
    hostile: int  # held, with a hostile name and comment
    somebodys: int  # held, SOMEBODY's
    array: int  # 1-1000%1 of 2 nodes and an hour; its first task runs
    scattered: int  # held, tasks SCATTERED
    after: int  # waits for the end of `array`
    lives: int  # runs, without a time limit
    failed: int  # exit code 3
    killed: int  # by signal 9
    done: int
    cancelled: int  # before it started
    cluster: str  # Slurm's name of it
    drained: str = "node4"  # with REASON
    reason: str = "bad | memory"


def make_scene(cluster: RunningCluster) -> Scene:
    """Submit, and wait until everything is as `Scene` says."""
    user = pwd.getpwuid(0).pw_name
    cluster.run("scontrol", "update", "NodeName=node4", "State=DRAIN", f"Reason={Scene.reason}")
    array = cluster.sbatch("sleep 3600", "--array=1-1000%1", "--nodes=2", "--time=1:00:00")
    lives = cluster.sbatch("sleep 3600", "--time=UNLIMITED")
    wait_until(lambda: states(cluster, array).count("RUNNING") == 1, 30, "the first task")
    wait_until(lambda: states(cluster, lives) == ["RUNNING"], 30, "a job to run")
    cancelled = cluster.sbatch("true", "--hold")
    cluster.run("scancel", str(cancelled))
    scene = Scene(
        user=user,
        hostile=cluster.sbatch("true", "--hold", f"--job-name={HOSTILE_NAME}", f"--comment={HOSTILE_COMMENT}"),
        somebodys=cluster.sbatch("true", "--hold", f"--uid={SOMEBODY}"),
        array=array,
        scattered=cluster.sbatch("true", f"--array={','.join(map(str, SCATTERED))}%1", "--hold"),
        after=cluster.sbatch("true", f"--dependency=afterany:{array}"),
        lives=lives,
        failed=cluster.sbatch("exit 3"),
        killed=cluster.sbatch("kill -9 $$"),
        done=cluster.sbatch("true"),
        cancelled=cancelled,
        cluster=str(cluster.cluster.name).lower(),
    )
    for job in (scene.failed, scene.killed, scene.done, scene.cancelled):
        wait_until(partial(_has_ended, cluster, job), 30, f"job {job} to end")
    return scene


def _has_ended(cluster: RunningCluster, job: int) -> bool:
    return not set(states(cluster, job)) & set(_LIVES)


def states(cluster: RunningCluster, job: int) -> list[str]:
    """Those of a job and of all tasks of an array, in Slurm's words."""
    answer = cluster.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T", check=False)
    return answer.stdout.split()
