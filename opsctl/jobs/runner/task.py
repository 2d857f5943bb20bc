"""One array task: the run, the allocation and the revision that it works with."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.core.files.state_files import make_folder, write_state
from opsctl.core.timestamps import now
from opsctl.diagnosis.probe.report import ProbeReport
from opsctl.jobs.runner.main_log import MainLog
from opsctl.jobs.runner.standby import Standby
from opsctl.run.checkpoints.inventory import is_finished, last_checkpoint, latest_problem
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.revisions import Revision, newest_for_task, no_revision
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.nodes import expand_nodes
from trainer.formats.attempt.attempt_records import StopRequest
from trainer.recipe.options import Options, OptionsError

_ONLY_OWNERS = "[run] publish = \"owner\" takes only those of the run's owner and of the task's own account"


class FollowedPaths(RunPaths):
    """The places of a run under a folder that is held open.

    They change only in `look`, so that two of them go together. Raises OSError when there is no such folder.
    """

    def __init__(self, output: Path) -> None:
        object.__setattr__(self, "_named", output)
        object.__setattr__(self, "_now", output)
        object.__setattr__(self, "_fd", os.open(output, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    @property
    def output(self) -> Path:
        """Its name at the last look."""
        now: Path = self.__dict__["_now"]
        return now

    def look(self) -> None:
        """See where the folder is: under the given name, else as the kernel calls it, else only as what is held."""
        named: Path = self.__dict__["_named"]
        fd: int = self.__dict__["_fd"]
        held, link = os.fstat(fd), Path(f"/proc/self/fd/{fd}")
        for path in (named, link.readlink()):
            try:
                if os.path.samestat(path.stat(), held):
                    break
            except OSError:
                continue  # moved by another host's hand, its name here is an old one
        else:
            path = link
        object.__setattr__(self, "_now", path)


@dataclass(frozen=True)
class Allocation:
    """One job: an array task, or a job by itself."""

    job_id: int
    array_job_id: int  # equal to job_id without an array
    array_task: str  # "" without an array
    restart_count: int  # times Slurm has requeued it
    nodes: tuple[str, ...]  # in Slurm's order: the place of a node is its launcher's rank
    user: str
    cpus_per_task: int | None = None  # None when the job asked for no number
    cluster: str = ""  # Slurm's name of it

    @property
    def display_id(self) -> str:
        """The id as squeue shows it."""
        return f"{self.array_job_id}_{self.array_task}" if self.array_task else str(self.job_id)

    @property
    def requeued_id(self) -> int | None:
        """The job's id where it runs again after a requeue, so that what is open under it is from before; else None."""
        return self.job_id if self.restart_count else None


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the allocation of the job that `environment` belongs to. Raises UsageError outside of one."""
    try:
        job_id = int(environment["SLURM_JOB_ID"])
        folded = environment["SLURM_JOB_NODELIST"]
    except (KeyError, ValueError):
        raise UsageError(
            "opsctl job run works inside a Slurm job only (no SLURM_JOB_ID here): opsctl submit starts it"
        ) from None
    return Allocation(
        job_id=job_id,
        array_job_id=_number(environment, "SLURM_ARRAY_JOB_ID", job_id),
        array_task=environment.get("SLURM_ARRAY_TASK_ID", ""),
        restart_count=_number(environment, "SLURM_RESTART_COUNT", 0),
        nodes=tuple(expand_nodes(folded)),
        cpus_per_task=_number(environment, "SLURM_CPUS_PER_TASK", 0) or None,
        cluster=environment.get("SLURM_CLUSTER_NAME", ""),
        user=environment.get("SLURM_JOB_USER") or environment.get("USER") or str(os.getuid()),
    )


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else otherwise


@dataclass(frozen=True)
class Task:
    """One array task at work: what does not change while it runs."""

    paths: RunPaths
    cluster: Cluster
    client: SlurmClient
    allocation: Allocation
    revision: Revision
    one_off: tuple[str, ...]  # the chain's own trainer arguments, after the revision's
    options: Options | OpsctlError  # what both come to; the error when they cannot be understood here
    submitted_at: datetime  # of the chain
    log: MainLog
    spare: int = 0  # nodes of the allocation beyond those that are trained on
    picked: tuple[str, ...] = ()  # the nodes chosen among the allocation's, in its order; empty: its first ones
    standby: Standby | None = None  # launchers for a restart; None: each restart takes new ones
    restart: int = 0  # how many attempts this job has made before
    fewer_nodes: int | None = None  # so many are trained on because too few are left; None: as many as planned
    probed: ProbeReport | None = None  # the last test of this job's nodes; None: none was made

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are trained on."""
        nodes = self.allocation.nodes
        return self.picked or nodes[: max(1, len(nodes) - self.spare)]

    @property
    def name(self) -> str:
        """The run's; its output folder while the revision cannot be read."""
        try:
            return self.revision.file.run.name
        except OpsctlError:
            return str(self.paths.output)

    @property
    def kill_switch(self) -> Path:
        """The kill switch that the trainer watches; the run's if the options are not understood."""
        if isinstance(self.options, Options) and self.options.kill_switch_path:
            return Path(self.options.kill_switch_path)
        return self.paths.kill_switch

    def is_finished(self) -> bool:
        """Return whether nothing is left to train. If this is unknown, return False: see `checkpoint_problem`."""
        return isinstance(self.options, Options) and is_finished(self.options, last_checkpoint(self.paths.checkpoints))

    def checkpoint_problem(self) -> str | None:
        """Return why it is unknown from where the trainer would resume, so that it must not start."""
        if not isinstance(self.options, Options) or not self.options.load:
            return None
        return latest_problem(Path(self.options.load), self.options.load_fallback)


def this_task(
    paths: RunPaths,
    cluster: Cluster,
    submitted_at: datetime,
    one_off: Sequence[str],
    only_owners: bool = False,
    spare: int = 0,
) -> Task:
    """Return the task that this process is, with the newest revision; only_owners: of those that `newest_for_task`
    allows.

    spare: see `Task.spare`. An unusable or missing revision is kept for later, like options that are not understood.
    Raises OpsctlError outside of a job.
    """
    client = client_for(cluster, patient=True)
    revision, passed_over = newest_for_task(paths, only_owners)
    log = MainLog(paths.output, paths.main_log)
    for other in passed_over:
        log.add_line(f"opsctl: revision {other.name} of {other.created_by} is skipped: {_ONLY_OWNERS}")
    if revision is None:
        why = _ONLY_OWNERS if passed_over else "none was published"
        revision = no_revision(paths.output, paths.revisions, f"no revision in {paths.revisions}: {why}; opsctl revise")
    allocation = read_allocation(os.environ)
    return Task(
        paths=paths,
        cluster=cluster,
        client=client,
        allocation=allocation,
        revision=revision,
        one_off=tuple(one_off),
        options=understood(revision, one_off, max(1, len(allocation.nodes) - spare)),
        submitted_at=submitted_at,
        log=log,
        spare=spare,
    )


def understood(revision: Revision, one_off: Sequence[str], nodes: int) -> Options | OpsctlError:
    """Return the trainer's options on this number of nodes.

    An error is returned, not raised: the task checks the kill switch first, and its failure is recorded.
    """
    try:
        return revision.options(one_off, nodes)
    except OptionsError as error:
        return OpsctlError(
            f"revision {revision.name} with this chain's arguments is not understood here: {error}; "
            "opsctl revise, or submit the chain again, with the opsctl that the jobs use"
        )
    except OpsctlError as error:
        return error


def request_stop(root: Path, path: Path, why: str) -> bool:
    """Create the stop request at `path`, under the run's `root`, unless it is there. Returns whether it did.

    Signals are never forwarded: a forwarded USR1 kills the launchers while their ranks still save. The trainer polls
    this file like the kill switch, so that it serves Slurm's warning, preemption and people alike.
    """
    if os.path.lexists(path):
        return False
    make_folder(root, path.parent)
    by = f"job process {os.getpid()} on {socket.gethostname()}"
    write_state(root, path, StopRequest(why, now().replace(microsecond=0), by))
    return True
