"""Slurm: its commands, the controller, accounting, partitions; a cluster of one's own."""

from __future__ import annotations

import re

from opsctl.ui.doctor.check import Check, Result, Seen, SlurmSeen, SoftwareSeen, missing, ok, optional, unknown

_COMMANDS = ("sbatch", "squeue", "srun", "sinfo", "scontrol", "scancel")
_DAEMONS = ("slurmctld", "slurmd", "munged")
_OLDEST = (22, 5)
#: Fewer nodes have no others to be compared with.
_NODES_TO_TEST = 3
_PROFILE = "~/.config/opsctl/profile.toml"


def _commands(found: SoftwareSeen, seen: Seen) -> Result | None:
    lacking = [name for name in _COMMANDS if name not in found.programs]
    if lacking and seen.slurm is None:
        todo = "load Slurm's module, log in to the cluster, or try opsctl local-cluster up"
        return missing(f"{', '.join(lacking)} not in PATH", todo)
    return ok("all are here")


def _controller(found: SlurmSeen, _seen: Seen) -> Result | None:
    numbers = re.match(r"(\d+)\.(\d+)", found.version)
    said = f"cluster {found.name or 'without a name'} answers, Slurm {found.version or 'of an unknown version'}"
    if numbers is None:
        return unknown(said)
    is_old = (int(numbers[1]), int(numbers[2])) < _OLDEST
    return missing(f"{said}, older than 22.05", "ask the site for a newer one") if is_old else ok(said)


def _accounting(found: SlurmSeen, _seen: Seen) -> Result | None:
    if "slurmdbd" not in found.accounting_type:
        return optional("Slurm keeps no accounting: it reports the end of a job for some minutes only")
    if found.accounting_problem:
        return unknown(f"the database does not answer: {found.accounting_problem}", "sacct; ask the site")
    return ok("the database answers")


def _partition(found: SlurmSeen, seen: Seen) -> Result | None:
    wanted = None if seen.run is None else seen.run.slurm.partition
    if wanted is None:
        return None
    names = wanted.split(",")
    lacking = [name for name in names if name not in found.partitions]
    if lacking:
        there = ", ".join(sorted(found.partitions)) or "none that you may see"
        return missing(
            f"{', '.join(lacking)} is not on this cluster, which has {there}", "correct partition under [slurm]"
        )
    return ok(wanted)


def _probe(_tables: object, seen: Seen) -> Result | None:
    if seen.run is None or seen.run.program is not None:  # the probe needs opsctl's trainer
        return None
    if seen.run.slurm.nodes + seen.run.slurm.spare < _NODES_TO_TEST:
        return None
    slurm = seen.run.slurm
    if slurm.effort != "off":
        spare = f", {slurm.spare} spare" if slurm.spare else ", none spare: a bad one ends the job"
        return ok(f"{slurm.effort}, before each training{spare}")
    if slurm.spare:
        return optional("off: spare nodes then replace only those that Slurm loses", 'probe = "quick" under [slurm]')
    return optional(
        "off: one slow or lying node of many is noticed late", 'probe = "quick" and spare = 1 under [slurm]'
    )


def _internet(found: SlurmSeen, seen: Seen) -> Result | None:
    wanted = seen.jobs.get("internet_partition")
    if wanted is None:
        todo = f'internet_partition = "NAME" under [jobs] in {_PROFILE}'
        return optional("no partition is named for what needs the internet: any node is taken", todo)
    if wanted not in found.partitions:
        return missing(f"the profile's {wanted} is not here", f"correct internet_partition under [jobs] in {_PROFILE}")
    return ok(str(wanted))


def _local(found: SoftwareSeen, _seen: Seen) -> Result | None:
    lacking = [name for name in _DAEMONS if name not in found.programs]
    if lacking:
        return optional(f"{', '.join(lacking)} not here: no cluster of your own", "apt install slurmctld slurmd munge")
    return ok("slurmctld, slurmd and munged are here: opsctl local-cluster up makes one")


CHECKS = (
    Check("slurm's commands", "Are sbatch, squeue and the others in PATH?", _commands, "software"),
    Check("controller", "Does the cluster answer, and is its Slurm 22.05 or newer?", _controller, "slurm"),
    Check("accounting", "Does the accounting database answer?", _accounting, "slurm"),
    Check("partition", "Is there the partition that the run asks for?", _partition, "slurm"),
    Check("probe", "Are nodes tested before they are trained on?", _probe),
    Check("internet partition", "Is a partition known, and there, for what needs the internet?", _internet, "slurm"),
    Check("local cluster", "Could a cluster of one's own be started here?", _local, "software"),
)
