"""Reading what is left of a bad end: logs, ranks' own output, error files, launchers' notes. Never more than it may."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import read_text
from opsctl.core.timestamps import now
from opsctl.diagnosis.hangs.grouping import grouped, recorded
from opsctl.diagnosis.hangs.summary import SILENT_STACKS, read_written
from opsctl.diagnosis.triage.findings import Facts, SlurmWord, words_of_failures
from opsctl.diagnosis.triage.log_part import LogPart, Read, read_part, share_of
from opsctl.diagnosis.triage.rank_locations import Places, learn, with_places
from opsctl.diagnosis.triage.rank_outputs import rank_outputs
from opsctl.diagnosis.triage.rules import Rules
from opsctl.run.attempts.verdict import StackGroup
from opsctl.run.state.attempt_folder import node_clocks, noted_failures, rank_map
from trainer.formats.attempt.attempt_records import Failure
from trainer.formats.attempt.error_file import read_error_file

#: How much of an attempt's time its part of the log takes; ranks' own output is read in the rest.
_LOG_SHARE = 0.7


def read_log(part: LogPart, rules: Rules, seconds: float) -> Facts:
    """What one log says by itself. Raises OpsctlError where it cannot be read."""
    ends_at = time.monotonic() + seconds
    try:
        read = read_part(part, rules, ends_at)
    except OSError as error:
        raise OpsctlError(f"cannot read {part.path}: {error.strerror or error}") from None
    places = learn(read.told, read.failures, (), (), read.opening)
    nodes = _nodes_named(read, [*places.nodes, *(one.node for one in read.findings)], places)
    findings = with_places(read.findings, places, {})
    if len(nodes) == 1 and places.launchers > 1 and not places.tasks_are_ranks:
        nodes = ()  # the log names one of several
    return Facts(
        findings=tuple(findings),
        failures=tuple(read.placed_failures(places) or read.killed_task(places.tasks_are_ranks)),
        told_to_end=read.told_to_end,
        ranks=places.of_ranks(),
        nodes=nodes,
        cancelled=read.cancelled,
        failed_tasks=read.failed_by_themselves(findings),
        ended_on=read.ended_on(findings),
        other_work=read.other_work,
        iteration=read.iteration,
        last_lines=read.last,
        unread=(*read.unread, *rules.given_up()),
    )


def read_attempt(
    root: Path, folder: Path, part: LogPart | None, nodes: Sequence[str], slurm: SlurmWord, rules: Rules, seconds: float
) -> Facts:
    """What the attempt in `folder`, under the run's `root`, has left. Never raises for what cannot be read."""
    ends_at = time.monotonic() + seconds
    read = Read()
    if part is not None:
        try:
            read = read_part(part, rules, share_of(ends_at, _LOG_SHARE))
        except OSError as error:
            read.unread.append(f"{part.path}: {error.strerror or error}")
    ranks = rank_map(root, folder)
    noted = noted_failures(root, folder)
    own, known = rank_outputs(root, folder, rules, ends_at, read.unread)
    nodes = tuple(nodes) or tuple(dict.fromkeys(place.node for place in ranks))
    places = learn(read.told, read.failures, ranks, nodes, read.opening)
    if not nodes:
        nodes = _nodes_named(read, [], places)
        places = replace(places, nodes=nodes) if len(nodes) == 1 else places
    findings = with_places(read.findings, places, known)
    said = {(one.rank, one.text.rpartition("]:")[2].strip()) for one in findings}
    new = [one for one in with_places(own, places, known) if (one.rank, one.text.strip()) not in said]
    reference = max((one.at for one in (*findings, *new) if one.at), default=now())
    words = words_of_failures(rules, ((one, _error_words(root, one)) for one in noted), reference)
    failures = _one_each([*noted, *read.placed_failures(places)]) or read.killed_task(places.tasks_are_ranks)
    return Facts(
        findings=(*findings, *new, *words),
        failures=tuple(failures),
        told_to_end=read.told_to_end,
        ranks=ranks or places.of_ranks(),
        slurm=slurm,
        nodes=nodes,
        cancelled=read.cancelled,
        failed_tasks=read.failed_by_themselves(findings),
        ended_on=read.ended_on(findings),
        other_work=read.other_work,
        iteration=read.iteration,
        last_lines=read.last,
        unread=(*dict.fromkeys(read.unread), *rules.given_up()),
        stacks=_stacks(root, folder) if read.is_silent else (),
        advances_s={said.node: said.clock.timestamp() - stamped_s for said, stamped_s in node_clocks(root, folder)},
    )


def _stacks(root: Path, folder: Path) -> tuple[StackGroup, ...]:
    """Where the ranks were that said nothing any more, as the job's last look left it."""
    try:
        return recorded(grouped(read_written(read_text(root, folder / SILENT_STACKS) or "")))
    except OSError:
        return ()


def _error_words(root: Path, failure: Failure) -> str:
    """All that a rank left of its traceback; its node's file may be gone, or another's."""
    path = Path(failure.error_file) if failure.error_file else None
    if path is None or not path.is_relative_to(root):
        return ""
    return read_error_file(path)


def _one_each(failures: Sequence[Failure]) -> list[Failure]:
    """A failure for each rank: what launchers noted comes before what they printed."""
    found: dict[int, Failure] = {}
    for one in failures:
        found.setdefault(one.rank, one)
    return list(found.values())


def _nodes_named(read: Read, more: Sequence[str], places: Places) -> tuple[str, ...]:
    names = [*(one.node for one in read.told), *more, *(one.node for one in read.failures)]
    return tuple(dict.fromkeys(places.name(name) for name in names if name))
