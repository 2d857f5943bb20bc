"""The backend that is always there: Slurm's own commands, asked for explicit fields with safe separators."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from opsctl.core.errors import SlurmError, SlurmMissing, SlurmUnasked, SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.nodes import NODE_FIELDS, Node, parse_nodes
from opsctl.slurm.process import Answer, refused, run_slurm, unreachable
from opsctl.slurm.rows import (
    ACCOUNTING_FIELDS,
    END_FIELDS,
    FIELD_END,
    PREEMPTION_FIELDS,
    QUEUE_FIELDS,
    RowReader,
    ends_of,
    job_of,
    new_row_end,
    parse_accounting,
    preemptions_of,
    queue_format,
)
from opsctl.slurm.types import Job, JobEnd

T = TypeVar("T")

#: Slurm's own: which of several clusters under one slurmdbd its commands ask (`--clusters`).
CLUSTERS_VARIABLE = "SLURM_CLUSTERS"
#: Ids from here on are of a federation, which keeps the cluster a job began on in the bits above.
FIRST_OF_A_FEDERATION = 1 << 26
ACCOUNTING_BATCH = 50
#: Kept back of a deadline so that a submit that was cut off can still be looked up.
LOOK_UP_RESERVE_S = 2.0
#: A patient client: seconds for one call, and seconds over all its repetitions.
PATIENT_CALL_S = 30.0
PATIENT_TOTAL_S = 300.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_UID = re.compile(r"\((\d+)\)$")


class CommandClient:
    """See SlurmClient. `deadline` None: patient."""

    def __init__(self, cluster: Cluster, deadline: Deadline | None) -> None:
        self.cluster = cluster
        self.deadline = deadline
        self.environment = cluster.environment()
        # What people set for Slurm's own commands; here it would send a job to one cluster and look for it on another.
        self._other_clusters = os.environ.get(CLUSTERS_VARIABLE, "")
        # Seconds since the epoch need no guess about the zone; the second one keeps squeue from cutting task lists.
        self.environment["SLURM_TIME_FORMAT"] = "%s"
        self.environment["SLURM_BITSTR_LEN"] = "0"

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Return squeue's rows. Empty `users` or `job_ids` give no rows and run no command."""
        return self._squeue(QUEUE_FIELDS, job_of, users, job_ids)

    def ends(self, job_ids: Iterable[int]) -> dict[int, JobEnd]:
        """sacct's, ACCOUNTING_BATCH jobs a call; those it does not have, or all without accounting, are squeue's."""
        wanted = sorted(set(job_ids))
        found: dict[int, JobEnd] = {}
        for start in range(0, len(wanted), ACCOUNTING_BATCH):
            batch = wanted[start : start + ACCOUNTING_BATCH]
            text = self._sacct(batch)
            if text is None:
                return self._ends_in_memory(wanted)
            found.update(parse_accounting(text, now()))
        missing = [job_id for job_id in wanted if job_id not in found]
        return {**self._ends_in_memory(missing), **found} if missing else found

    def preempted(self, job_ids: Iterable[int]) -> dict[int, datetime]:
        """squeue's, of jobs that have ended too; sacct does not tell it."""
        found = self._squeue(PREEMPTION_FIELDS, tuple, job_ids=job_ids, options=["--states=all"])
        return preemptions_of(found)

    def submit(self, script: str) -> int:
        """Run sbatch with the script as its input, once even when patient; part of a deadline is kept for the
        look-up.
        """
        self._refuse_what_is_out_of_bounds()
        answer = run_slurm(["sbatch", "--parsable"], self.environment, self._time_for_submit_s(), script)
        if answer.code != 0:
            raise refused(answer, "take the job")
        # "12" or, with several clusters, "12;name"; site plug-ins may print lines of their own before it.
        last = answer.stdout.strip().splitlines()[-1:] or [""]
        number = last[0].partition(";")[0]
        if not number.isdigit():
            raise SlurmError(f"sbatch printed {answer.stdout.strip()!r} where a job id was expected")
        if int(number) >= FIRST_OF_A_FEDERATION:
            raise self._of_a_federation(number)
        return int(number)

    def _of_a_federation(self, number: str) -> SlurmError:
        """Take the job back; what to raise. One that is still there has to be looked for: it may run."""
        try:
            self.cancel([number])
        except SlurmError as error:
            return unreachable("scancel", f"job {number} belongs to a federation; type scancel {number}: {error}")
        return SlurmError(
            f"Slurm accepted it as job {number} of a federation with unchecked other clusters: opsctl cancelled it"
        )

    def cancel(self, ids: Iterable[int | str], pending_only: bool = False) -> None:
        """One scancel for all `ids`; none for no `ids`."""
        targets = [str(one) for one in ids]
        if not targets:
            return
        answer = self._ask(["scancel", *(["--state=PENDING"] if pending_only else []), *targets])
        if answer.code != 0 and not _had_ended(answer):
            raise refused(answer, f"cancel {', '.join(targets)}")

    def hold(self, ids: Iterable[str]) -> None:
        """One scontrol for all `ids`; none for no `ids`."""
        self._change_each("hold", list(ids))

    def release(self, ids: Iterable[str]) -> None:
        """One scontrol for all `ids`; none for no `ids`."""
        self._change_each("release", list(ids))

    def exclude(self, ids: Iterable[str], folded: str) -> None:
        """One scontrol for each: it takes no list. An empty list lifts what was excluded."""
        for one in ids:
            update = ["scontrol", "update", f"JobId={one}", f"ExcNodeList={folded}"]
            self._ask(update, f"keep job {one} off {folded or 'no node'}")

    def start_after(self, ids: Iterable[str], job_id: int) -> None:
        """One scontrol for each: it takes no list."""
        for one in ids:
            update = ["scontrol", "update", f"JobId={one}", f"Dependency=afterany:{job_id}"]
            self._ask(update, f"let job {one} wait for job {job_id}")

    def allow_requeue(self, job_id: int, allowed: bool) -> None:
        """By the job's flag, which its owner may change while it runs."""
        update = ["scontrol", "update", f"JobId={job_id}", f"Requeue={int(allowed)}"]
        self._ask(update, f"let job {job_id} be requeued")

    def requeue(self, job_id: int) -> None:
        """Requeue the job with one call, whatever its result: a second one would end the job's next start."""
        self._refuse_what_is_out_of_bounds()
        time_s = PATIENT_CALL_S if self.deadline is None else self.deadline.remaining_s()
        answer = run_slurm(["scontrol", "requeue", str(job_id)], self.environment, time_s)
        if answer.code != 0:
            raise refused(answer, f"requeue job {job_id}")

    def hides_others_jobs(self) -> bool:
        """From the configuration; a Slurm that does not tell it leaves that unknown."""
        try:
            return hides_others_jobs(self.configuration(), os.geteuid())
        except SlurmUnreachable:
            raise
        except SlurmError as error:
            raise unreachable("scontrol", str(error)) from None

    def nodes(self, folded: str | None = None) -> list[Node]:
        """From sinfo. A name that Slurm does not have is left out."""
        narrowed = [] if folded is None else [f"--nodes={folded}"]
        form = f"--Format={queue_format(NODE_FIELDS)}"
        command = ["sinfo", "--local", "--noheader", "--all", "--Node", *narrowed, form]
        return parse_nodes(self._ask(command, f"show nodes {folded or ''}".rstrip()).stdout)

    def node_address(self, node: str) -> str:
        """From scontrol. Raises SlurmError for a node that Slurm does not have."""
        answer = self._ask(["scontrol", "--oneliner", "show", "node", node])
        for word in answer.stdout.split():
            key, _, value = word.partition("=")
            if key == "NodeAddr" and value:
                return value
        raise refused(answer, f"show node {node}")

    def configuration(self) -> dict[str, str]:
        """Return scontrol's values."""
        answer = self._ask(["scontrol", "show", "config"], "show its configuration")
        lines = (line.partition("=") for line in answer.stdout.splitlines())
        return {key.strip(): value.strip() for key, equals, value in lines if equals}

    def _change_each(self, what: str, ids: Sequence[str]) -> None:
        if ids:
            self._ask(["scontrol", what, *ids], f"{what} {', '.join(ids)}")

    def _squeue(
        self,
        fields: Sequence[str],
        make: Callable[[Sequence[str]], T],
        users: Iterable[str] | None = None,
        job_ids: Iterable[int] | None = None,
        options: Sequence[str] = (),
    ) -> list[T]:
        narrowed = list(options)
        if users is not None:
            names = sorted(set(users))
            if not names:
                return []
            narrowed.append("--user=" + ",".join(names))
        ids = None if job_ids is None else sorted(set(job_ids))
        if ids is not None:
            if not ids:
                return []
            # With a single unknown id squeue fails, with several it just lists the others.
            narrowed.append("--jobs=" + ",".join(str(i) for i in ids))
        # In a federation another cluster's jobs would be taken for this one's. By number they are sorted the quickest.
        command = ["squeue", "--local", "--noheader", "--all", "--sort=i"]
        # In UTC and not as seconds since the epoch, or times cost it half of its time: a look at the zone for each.
        environment = {**self.environment, "TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}
        reader = RowReader(fields, make)

        def ask(time_s: float) -> Answer:
            nonlocal reader
            row_end = new_row_end()
            reader = RowReader(fields, make, row_end)  # nothing of an answer that broke off
            form = f"--Format={queue_format(fields, row_end)}"
            answer = run_slurm([*command, form, *narrowed], environment, time_s, take=reader.feed)
            if answer.code == 0 and reader.breaks_off:
                raise unreachable("squeue", "its list of jobs ends in the middle of a row")
            return answer

        self._refuse_what_is_out_of_bounds()
        answer = self._patiently(ask)
        if answer.code != 0 and "invalid job id" in answer.stderr.lower():
            return []
        # Bad field names are only warned of, with exit code 0: never take such a list for the truth.
        if answer.code != 0 or ("error:" in answer.stderr and not reader.found):
            raise unreachable("squeue", answer.words())
        return reader.found

    def _sacct(self, job_ids: Sequence[int]) -> str | None:
        """Return sacct's rows; None without accounting."""
        command = ["sacct", "--local", "--noheader", "--parsable2", f"--delimiter={FIELD_END}", "--allocations"]
        command += ["--starttime=1970-01-01", f"--format={','.join(ACCOUNTING_FIELDS)}"]
        command.append("--jobs=" + ",".join(str(i) for i in job_ids))
        try:
            answer = self._ask(command)
        except SlurmMissing:
            return None
        if answer.code != 0:
            if "accounting storage is disabled" in (answer.stderr + answer.stdout).lower():
                return None
            raise unreachable("sacct", answer.words())
        return answer.stdout

    def _ends_in_memory(self, job_ids: Sequence[int]) -> dict[int, JobEnd]:
        return ends_of(self._squeue(END_FIELDS, tuple, job_ids=job_ids, options=["--states=all"]), now())

    def _ask(self, command: Sequence[str], what: str = "") -> Answer:
        """Run a command. With `what`, which it is to do, a refusal is raised as SlurmError."""
        self._refuse_what_is_out_of_bounds()
        answer = self._patiently(lambda time_s: run_slurm(command, self.environment, time_s))
        if answer.code != 0 and what:
            raise refused(answer, what)
        return answer

    def _patiently(self, ask: Callable[[float], T]) -> T:
        """Return the result of `ask` within its seconds; a patient client repeats it while Slurm does not answer."""
        if self.deadline is not None:
            return ask(self.deadline.remaining_s())
        patience = Deadline(PATIENT_TOTAL_S)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return ask(PATIENT_CALL_S)
            except SlurmUnasked:
                raise
            except SlurmUnreachable:
                if patience.remaining_s() <= pause_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _refuse_what_is_out_of_bounds(self) -> None:
        if self.cluster.out_of_bounds:
            raise SlurmUnreachable(self.cluster.out_of_bounds)
        if wanted := self._other_clusters:
            self._other_clusters = ""  # while its own configuration is asked for, and after it was found to be meant
            own = ""
            try:
                own = self.configuration().get("ClusterName", "")
            finally:
                self._other_clusters = "" if wanted == own else wanted
            if wanted != own:
                raise SlurmUnasked(
                    f"{CLUSTERS_VARIABLE}={wanted} names another cluster than {own}, and opsctl uses only the one that "
                    f"slurm.conf configures: unset it, and call opsctl where {wanted} is configured, or "
                    "name that configuration with SLURM_CONF"
                )

    def _time_for_submit_s(self) -> float:
        if self.deadline is None:
            return PATIENT_CALL_S
        return self.deadline.remaining_s() - min(LOOK_UP_RESERVE_S, self.deadline.seconds / 4)


def _had_ended(answer: Answer) -> bool:
    """Return whether scancel complains only that the job, or some of its tasks, had ended before."""
    lines = [line.lower() for line in answer.stderr.splitlines() if line.strip()]
    gone = ("invalid job id specified", "already completing or completed", "already finished")
    return bool(lines) and all(any(part in line for part in gone) for line in lines)


def hides_others_jobs(configuration: Mapping[str, str], uid: int) -> bool:
    """Return whether others' jobs are hidden from the account `uid`. The configuration does not name operators."""
    kept = {word.strip().lower() for word in configuration.get("PrivateData", "").split(",")}
    slurms = _UID.search(configuration.get("SlurmUser", ""))
    return "jobs" in kept and uid != 0 and (slurms is None or int(slurms[1]) != uid)
