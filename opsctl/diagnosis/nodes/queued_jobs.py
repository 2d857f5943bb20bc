"""What is queued of a run, kept off the nodes of the list."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.core.files.state_files import locked, read_state, write_state
from opsctl.diagnosis.nodes.exclusion_list import LOCK_WAIT_S
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Chain, recorded
from opsctl.run.state.revisions import newest_whole
from opsctl.slurm.client import SlurmControl
from opsctl.slurm.nodes import expand_nodes


class QueueExcludes(msgspec.Struct, frozen=True):
    """What the chains in the queue are kept off because of the list, where that is no longer as at their submission."""

    chains: dict[str, str] = {}


def apply_to_queue(paths: RunPaths, slurm: SlurmControl, excluded: Sequence[str]) -> list[str]:
    """Keep what the caller has queued of the run off `excluded`, beside what it was submitted without. Lines to say.

    Slurm is asked to change only what differs. Others' jobs only they can change, so what is on record of theirs stays.
    A chain that Slurm refuses to change is among the lines. Raises OpsctlError, SlurmUnreachable, OSError.
    """
    me, known = account_name(), recorded(paths)
    if not known.chains:
        return []
    chains = {chain.chain: chain for chain in known.chains}
    applied = read_state(paths.output, paths.queue_excludes, QueueExcludes) or QueueExcludes()
    if not excluded and not applied.chains and not any(chain.listed for chain in known.chains[-20:]):
        return []
    mine = [job for job in known.own(slurm.jobs(users=[me])) if job.user == me]
    there = {job.array_job_id for job in mine}
    gone = {str(chain.chain) for chain in known.chains if chain.user == me and chain.chain not in there}
    pending = [job for job in mine if job.is_pending]
    now_kept: dict[str, str] = {}
    lines = []
    try:
        for array in sorted({job.array_job_id for job in pending} & set(chains)):
            before = applied.chains.get(str(array), chains[array].listed or "")
            try:
                if set(before.split(",")) - {""} != set(excluded):
                    tasks = [job.tasks_id for job in pending if job.array_job_id == array]
                    lines.append(_keep_off(paths, chains[array], tasks, slurm, excluded))
            except SlurmUnreachable:
                raise
            except SlurmError as error:
                lines.append(f"chain {array} cannot be kept off {', '.join(excluded) or 'fewer nodes'}: {error}")
            else:
                now_kept[str(array)] = ",".join(excluded)
    finally:
        _put_down(paths, now_kept, gone)
    return lines


def _keep_off(paths: RunPaths, chain: Chain, tasks: list[str], slurm: SlurmControl, excluded: Sequence[str]) -> str:
    names = sorted({*_own(paths, chain), *excluded})
    slurm.exclude(tasks, ",".join(names))
    return f"chain {chain.chain} is kept off {', '.join(names) or 'no node any more'}"


def _put_down(paths: RunPaths, now_kept: dict[str, str], gone: set[str]) -> None:
    """Change these chains' part of the record. Several people's jobs do that."""

    def chains() -> tuple[dict[str, str], dict[str, str]]:
        before = (read_state(paths.output, paths.queue_excludes, QueueExcludes) or QueueExcludes()).chains
        return before, {chain: nodes for chain, nodes in before.items() if chain not in gone} | now_kept

    before, after = chains()
    if before == after:
        return  # nothing is locked, so that who may only read needs no more
    with locked(paths.output, paths.queue_excludes.with_suffix(".lock"), LOCK_WAIT_S, "keep the queue off nodes"):
        write_state(paths.output, paths.queue_excludes, QueueExcludes(chains()[1]))


def _own(paths: RunPaths, chain: Chain) -> set[str]:
    """What the chain stays off whatever the list says."""
    folded = chain.own_exclude
    if folded is None:  # a release that had no list submitted it
        revision = newest_whole(paths)
        of_file = revision.file.slurm.exclude if revision is not None else None
        folded = ",".join(filter(None, (of_file, chain.exclude)))
    return set(expand_nodes(folded or ""))
