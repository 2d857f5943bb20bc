"""What Slurm says of open errands: where their jobs are, how those ended that could not say it themselves."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError
from opsctl.core.timestamps import now
from opsctl.jobs.background.records import Errand, Errands, ErrandState, parse_errand_comment
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.job_match import Match, match
from opsctl.slurm.states import End
from opsctl.slurm.types import Job, JobEnd, slurms_word

#: How long a job that is on record may be on its way to Slurm.
ON_ITS_WAY = timedelta(seconds=60)
#: By what ended its job. Those that are "stopped" are worth typing again.
_STATES: dict[End, ErrandState] = {
    End.TIME_LIMIT: "stopped",
    End.CANCELLED: "cancelled",
    End.PREEMPTED: "stopped",
    End.NODE_FAILURE: "stopped",
    End.OUT_OF_MEMORY: "failed",
}
_AGAIN = "type it again"


@dataclass(frozen=True)
class Seen:
    """An errand and what Slurm says of it."""

    errand: Errand
    job: Job | None = None  # its last one, while Slurm has it
    unknown: str = ""  # why Slurm's word is not known, of one that is open

    @property
    def state(self) -> str:
        """In a word: ours when it has ended, else Slurm's."""
        if not self.errand.is_open:
            return self.errand.state
        if self.job is not None:
            return "held" if self.job.is_held else self.job.state.lower()
        return "unknown" if self.unknown else "on its way"


def look(
    place: Errands, wanted: Sequence[Errand], client_of: Callable[[Cluster], SlurmClient]
) -> tuple[list[Seen], str]:
    """(how `wanted` stand, why that is not all known); a cluster that does not answer hides none of another one's.

    Closes what has ended, under the lock, which is not taken where nothing is open. Raises OpsctlError, OSError.
    """
    seen = {one.errand: Seen(one) for one in wanted}
    problems: list[str] = []
    for cluster in dict.fromkeys(one.cluster for one in wanted if one.is_open):
        own = [one for one in wanted if one.cluster == cluster]
        try:
            with place.locked("look at the jobs"):
                found = settle(place, own, client_of)
        except SlurmError as error:
            found = [Seen(place.read(one.errand) or one, unknown=str(error)) for one in own]
            problems.append(str(error))
        seen.update((one.errand.errand, one) for one in found)
    return list(seen.values()), "; ".join(dict.fromkeys(problems))


def settle(place: Errands, wanted: Sequence[Errand], client_of: Callable[[Cluster], SlurmClient]) -> list[Seen]:
    """How `wanted` stand by Slurm's word; what has ended is closed. The caller holds the lock.

    One question to each cluster with open ones, and one more where something has gone. Raises SlurmError, OSError.
    """
    clusters = list(dict.fromkeys(one.cluster for one in wanted if one.is_open))
    seen: dict[str, Seen] = {one.errand: Seen(one) for one in wanted}
    for cluster in clusters:
        client = client_of(cluster)
        queue = {
            said: job
            for job in client.jobs(users=[account_name()])
            if job.user == account_name() and (said := parse_errand_comment(job.comment))
        }
        # As they are after the look at the queue: what has ended meanwhile is on record.
        open_ones = [place.read(one.errand) or one for one in wanted if one.is_open and one.cluster == cluster]
        gone = [one for one in open_ones if one.is_open and (one.errand, len(one.jobs)) not in queue]
        told = client.ends([one.last.job_id for one in gone if one.last.job_id]) if gone else {}
        ends = {
            one.errand: told[one.last.job_id]
            for one in gone
            if one.last.job_id in told and match(told[one.last.job_id], one.sent) is not Match.NOT_OURS
        }
        for one in open_ones:
            job = queue.get((one.errand, len(one.jobs)))
            if one.is_newer:
                seen[one.errand] = Seen(one, job, unknown="a newer opsctl wrote it")
            elif job is None and not one.is_open:
                seen[one.errand] = Seen(one)
            else:
                seen[one.errand] = Seen(_settled(place, one, job, ends), job)
    return list(seen.values())


def _settled(place: Errands, errand: Errand, job: Job | None, ends: dict[str, JobEnd]) -> Errand:
    if job is not None:
        changed = errand if errand.last.job_id else errand.with_last(job_id=job.job_id)
    elif (end := ends.get(errand.errand)) is not None:
        changed = _closed(errand, end)
    elif not errand.last.job_id and now() - errand.last.asked_at < ON_ITS_WAY:
        changed = errand
    else:
        why = "Slurm does not know its job any more" if errand.last.job_id else "nobody knows whether Slurm ever had it"
        changed = errand.ended("lost", f"{why}: {_AGAIN}")
    if changed != errand:
        place.write(changed)
    return changed


def _closed(errand: Errand, end: JobEnd) -> Errand:
    word = slurms_word(end)
    if word.end is not None:
        state = _STATES[word.end]
        said = f"{word.said}, and nothing went on with it: {_AGAIN}" if state == "stopped" else word.said
        return errand.ended(state, said, word.exit_code or None)
    if end.signal == signal.SIGUSR1:  # it ends nothing but a batch script that has not come to ignoring it
        said = f"Slurm warned it of its limit before it had begun: {_AGAIN}"
        return errand.ended("stopped", said, word.exit_code)
    return errand.ended("done" if word.is_success else "failed", word.said, word.exit_code)
