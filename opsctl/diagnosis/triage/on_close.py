"""Judge an attempt when it is closed, by its job or by another command, within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence, last_samples, read_node_evidence
from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.findings import Facts, SlurmEnd
from opsctl.diagnosis.triage.read_evidence import part_of_attempt, read_attempt
from opsctl.diagnosis.triage.rules import Rules, shipped_rules, site_rules
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import profile_files, triage_rules_files
from opsctl.slurm.types import JobEnd
from trainer.formats.attempt.node_samples import NodeSample

#: Seconds that closing an attempt waits for the verdict.
CLOSING_S = 20.0
#: The same while Slurm ends the job: it kills this process 30 seconds (KillWait) after SIGTERM.
ENDING_S = 3.0
#: The same for a command that closes the lost attempt of a job.
COMMAND_S = 8.0
#: Endings that were not intended.
BAD_ENDS = frozenset(
    {
        Ending.SIGNAL,
        Ending.FAILED,
        Ending.HANG,
        Ending.NODE_FAILURE,
        Ending.TIME_LIMIT,
        Ending.CANCELLED,
        Ending.PREEMPTED,
        Ending.OUT_OF_MEMORY,
        Ending.SKIPPED_ITERATIONS,
        Ending.UNKNOWN,
    }
)
#: Causes that count as evidence against the node, and the minimum confidence.
_OF_THE_NODE = frozenset(
    {Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE, Cause.NETWORK, Cause.HANG}
)
_SURE = 0.6
_T = TypeVar("_T")


def is_bad_end(attempt: Attempt) -> bool:
    """Return True if the ending needs a cause. An ending that a person asked for has its own reason or a note."""
    return attempt.reason in BAD_ENDS


def facts_of(paths: RunPaths, attempt: Attempt, slurm: SlurmEnd, rules: Rules, seconds: float) -> Facts:
    """Return the facts from the attempt's files and Slurm. Never raises for unreadable files."""
    ends_at = time.monotonic() + seconds
    unread: tuple[str, ...] = ()
    part = None
    try:
        part = part_of_attempt(paths.output, paths.main_log, attempt.number, attempt.job_id, seconds / 2)
        if part is None:
            unread = (f"{paths.main_log}: no start line of attempt {attempt.number}",)
    except OSError as error:
        unread = (f"{paths.main_log}: {error.strerror or error}",)
    folder = _folder_of(paths, attempt)
    found = read_attempt(paths.output, folder, part, attempt.nodes, slurm, rules, ends_at - time.monotonic())
    return with_record(found, attempt, last_samples(paths.output, folder), unread)


def _folder_of(paths: RunPaths, attempt: Attempt) -> Path:
    """Return the folder of the attempt's ranks. Earlier attempts of a job have theirs under a number."""
    folder = paths.attempt_folder(attempt.job_id)
    try:
        same_job = [one.id for one in attempts_file.read(paths) if one.job_id == attempt.job_id]
    except OSError:
        return folder
    if attempt.id not in same_job[:-1]:
        return folder
    numbered = folder.with_name(f"{folder.name}.{same_job.index(attempt.id) + 1}")
    aside = [one for one in folder.parent.glob(f"{folder.name}.*") if one.is_dir()]
    return numbered if len(aside) == len(same_job) - 1 else folder / "not-known"


def with_record(found: Facts, attempt: Attempt, samples: tuple[NodeSample, ...], unread: tuple[str, ...] = ()) -> Facts:
    """Add the facts of the attempt's record and of its nodes' samples. Pure."""
    failures = [*found.failures, *([attempt.first_failure] if attempt.first_failure else []), *attempt.other_failures]
    slurm = found.slurm
    return replace(
        found,
        failures=tuple({one.rank: one for one in reversed(failures)}.values()),
        ranks=found.ranks or attempt.ranks,
        slurm=slurm if slurm.failed_nodes else replace(slurm, failed_nodes=attempt.lost_nodes),
        reason=attempt.reason or "",
        stacks=attempt.stacks or found.stacks,
        samples=samples,
        unread=(*unread, *found.unread),
    )


def verdict_of(
    paths: RunPaths,
    attempt: Attempt,
    slurm: SlurmEnd,
    seconds: float = CLOSING_S,
    report: Callable[[str], None] = print,
) -> Verdict | None:
    """Return the verdict on a bad ending, or None. report: prints the reason if there is no verdict in time."""
    if not is_bad_end(attempt):
        return None

    def find() -> Verdict:
        rules = _rules(report)
        return decide(facts_of(paths, attempt, slurm, rules, seconds * 0.8), rules)

    return _bounded(find, seconds, report)


def judge_lost(paths: RunPaths) -> Callable[[Attempt, JobEnd | None], Attempt]:
    """Return a function that adds the verdict to an attempt closed by another process (for `attempts.lost`)."""

    def judge(attempt: Attempt, end: JobEnd | None) -> Attempt:
        slurm = SlurmEnd() if end is None else SlurmEnd(end.state, (), end.exit_code, end.signal or None)
        verdict = verdict_of(paths, attempt, slurm, COMMAND_S, lambda _line: None)
        if verdict is not None:
            note_node(paths, attempt, verdict)
        return msgspec.structs.replace(attempt, verdict=verdict)

    return judge


def note_node(paths: RunPaths, attempt: Attempt, verdict: Verdict) -> None:
    """Record the verdict's evidence against a node, once for each attempt and node, if the file is writable."""
    if verdict.user_fault or not verdict.node or verdict.cause not in _OF_THE_NODE or verdict.confidence < _SURE:
        return
    try:
        known = {(one.attempt, one.node) for one in read_node_evidence(paths) if one.by == "triage"}
        if (attempt.id, verdict.node) in known:
            return
        seen = NodeEvidence(
            node=verdict.node,
            kind=verdict.cause,
            at=verdict.at or attempt.closed_at or now(),
            words=verdict.summary,
            confidence=verdict.confidence,
            attempt=attempt.id,
            by="triage",
        )
        append_node_evidence(paths, seen)
    except OSError:
        return


def chosen_rules() -> Rules:
    """Return the tables of sites, named in profiles, then the shipped one. Raises OpsctlError."""
    return site_rules(triage_rules_files()) if profile_files() else shipped_rules()


def _rules(report: Callable[[str], None]) -> Rules:
    """Return the chosen rules. If a site's table has an error, report it and return the shipped rules."""
    try:
        return chosen_rules()
    except OpsctlError as error:
        report(f"opsctl: triage uses the shipped rules only: {error}")
        return shipped_rules()


def _bounded(find: Callable[[], _T], seconds: float, report: Callable[[str], None]) -> _T | None:
    """Return the result of `find` within `seconds`, else None. A file system that hangs blocks only the thread."""
    found: list[_T] = []

    def work() -> None:
        try:
            found.append(find())
        except Exception as error:  # closing continues after any error
            report(f"opsctl: no verdict: {type(error).__name__}: {error}")

    thread = threading.Thread(target=work, name="triage", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the machine gives no more threads
        report(f"opsctl: no verdict: {error}")
        return None
    thread.join(seconds)
    if thread.is_alive():
        report(f"opsctl: no verdict within {seconds:.0f} s. To continue the search: opsctl triage")
        return None
    return found[0] if found else None


def choose(attempts: Sequence[Attempt], word: str | None) -> Attempt:
    """Return the attempt of a job (`12`, `12_3`) or number (`4`), else the last bad end. Raises OpsctlError."""
    ended = [one for one in attempts if not one.is_open]
    if word is None:
        bad = [one for one in ended if is_bad_end(one)]
        if not bad:
            what = "no attempt has ended badly" if ended else "no attempt has ended yet"
            raise OpsctlError(f"{what}. List attempts: opsctl attempts. Read any log: opsctl triage --log FILE")
        return bad[-1]
    of_job = [one for one in attempts if word in (one.display_id, str(one.job_id))]
    by_number = [one for one in attempts if word.removeprefix("#") == str(one.number)]
    found = (by_number if word.startswith("#") else of_job or by_number)[-1:]
    if not found:
        known = f"1 to {attempts[-1].number}" if attempts else "none"
        raise OpsctlError(f"no attempt or job {word}. Attempts: {known}. List them: opsctl attempts")
    if found[0].is_open:
        raise OpsctlError(f"attempt {found[0].number}, job {found[0].display_id}, has not ended. See: opsctl status")
    return found[0]
