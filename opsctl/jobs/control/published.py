"""A further chain of what is published, whatever the run file says by now.

The caller may not be able to read the run file, and may not mean what is being edited in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from opsctl.core.account import membership_problem
from opsctl.core.errors import OpsctlError
from opsctl.jobs.control import live_jobs, overlap
from opsctl.jobs.control.send_chain import ChainOptions, Submitted, send
from opsctl.run.checkpoints.resumption import resumption_problem
from opsctl.run.config.expanded import ExpandedRun, parsed
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Chain, read_chains
from opsctl.run.state.identity import is_here
from opsctl.run.state.revisions import Revision, to_send_again
from opsctl.slurm.arrays import one_at_a_time
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from trainer.recipe.options import OptionsError


@dataclass(frozen=True)
class Further:
    """A chain that can be submitted without a run file: as the last ones were."""

    run: ExpandedRun  # what the chain trains, on its own nodes
    revision: Revision
    array: str
    exclude: str | None
    left_out: tuple[str, ...]  # one-off arguments of the last chain, which belong to that one alone

    @property
    def name(self) -> str:
        """The run's name, as published."""
        return self.revision.file.run.name

    def options(self) -> ChainOptions:
        """Return the options of its submission. The revision's own nodes are not an option."""
        nodes = None if self.run.nodes == self.revision.file.slurm.nodes else self.run.nodes
        return ChainOptions(array=self.array, after=overlap.AUTO, exclude=self.exclude, nodes=nodes)


def further_chain(paths: RunPaths, array: str | None = None) -> Further:
    """Return what a further chain of the run at `paths` would be: the newest published revision. Asks no Slurm.

    array: its tasks; None: as many as the last chain that a person submitted. Nodes and excluded nodes are the last
    chain's; its one-off arguments and begin were for that chain alone. Raises OpsctlError when the run was never
    submitted, when the revision is damaged, or only the run's owner may submit it; UsageError for an array that cannot
    be.
    """
    chains = read_chains(paths)
    if not chains:
        raise OpsctlError(f"{paths.output}: nothing of it was ever submitted: opsctl submit does that first")
    revision = to_send_again(paths, f"the run in {paths.output}")
    file, last = revision.file, chains[-1]
    if not is_here(file.run.output, paths):
        raise OpsctlError(
            f"{file.run.name} is published for {file.run.output} and is now in {paths.output}: "
            "correct [run] output, then opsctl revise"
        )
    if file.run.group is not None and (problem := membership_problem(file.run.group)):
        raise OpsctlError(problem)
    run = _expanded(revision, paths, last.nodes)
    if refused := resumption_problem(run):
        raise OpsctlError(f"{file.run.name}: the trainer would not resume with revision {revision.name}: {refused}")
    wanted = array or _array_of(chains) or file.array.tasks
    return Further(run, revision, one_at_a_time(wanted), last.exclude, last.arguments)


def send_further(
    further: Further,
    cluster: Cluster,
    client: SlurmClient,
    live: live_jobs.LiveJobs,
    how: str,
    ahead: tuple[str, ...] = (),
) -> Submitted:
    """Submit it behind all that `live` has of the run, and behind the arrays `ahead`, which are newer than that.

    The caller holds the run's lock since that snapshot. Raises OpsctlError when the run is finished, stopped by its
    kill switch, or trained by a job that the queue does not show; SlurmError.
    """
    live_jobs.refuse_to_start(further.run)
    waits = live_jobs.what_to_wait_for(further.run.paths, further.name, live, cluster, client, overlap.AUTO)
    done = send(further.run, cluster, client, further.options(), (*waits, *ahead), how, further.revision)
    return replace(done, warnings=(*done.warnings, *overlap.warn_of_waiting_unseen(live.unseen)))


def _expanded(revision: Revision, paths: RunPaths, nodes: int | None) -> ExpandedRun:
    """Expand a revision as its tasks train it on `nodes` nodes. Raises OpsctlError where it cannot be parsed."""
    file = revision.file
    used = file.slurm.nodes if nodes is None else nodes
    try:
        options, layout = parsed(file, revision.trainer_arguments, used * file.slurm.gpus_per_node)
    except OptionsError as error:
        raise OpsctlError(
            f"revision {revision.name} on {used} nodes: {error}; opsctl revise publishes what this opsctl understands"
        ) from None
    arguments = tuple(revision.trainer_arguments)
    return ExpandedRun(file, revision.run_file, revision.run_file_sha256, paths, used, arguments, options, layout)


def _array_of(chains: list[Chain]) -> str:
    """Return the array that a person typed last. A chain that replaced the rest of another has only that rest."""
    return next((chain.asked or chain.array for chain in reversed(chains) if chain.is_typed), "")
