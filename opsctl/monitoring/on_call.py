"""The handover from one who was on call to the next: what happened since a time, what is open, what is queued.

What happened comes from the run's records alone, each line with the time that its writer's clock said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.core.files.state_files import read_state, write_state
from opsctl.core.timestamps import to_the_second
from opsctl.monitoring.overview import (
    SCREEN_PARTS,
    Extras,
    OpenFinding,
    Overview,
    PrintedJob,
    PrintedOpenFinding,
    open_findings,
    printed_job,
    printed_open,
    read_extras,
)
from opsctl.monitoring.runner import in_words
from opsctl.monitoring.snapshot import Part, Snapshot, queue_order
from opsctl.run.attempts.ending import Ending, ending_words
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.outcome import describe
from opsctl.run.attempts.table import changed_pairs
from opsctl.run.checkpoints.rollbacks import Pruned, read_prunes, read_rollbacks
from opsctl.run.config.locate import account_state_folder
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import alert_log, requests
from opsctl.run.state.alert_log import Event
from opsctl.run.state.chains import REFILL, REVISE, Cancel, Chain
from opsctl.run.state.kill_switch import Deactivation, read_deactivations
from opsctl.run.state.requests import PrintedRequest
from opsctl.run.state.revisions import Revision, published_since
from opsctl.run.state.run_view import RunView
from opsctl.slurm.durations import parse_duration_s
from trainer.formats.checkpoint.history import Rollback
from trainer.formats.checkpoint.manifest import MANIFEST, checkpoint_folders, iteration_of
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment

_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Facts:
    """All that a handover of one run is made from."""

    name: str
    output: Path | None
    overview: Overview | None  # None: the run cannot be read, `problem` says why
    findings: tuple[OpenFinding, ...] = ()  # worst first
    extras: Extras = field(default_factory=Extras)
    cancels: Sequence[Cancel] = ()
    deactivations: Sequence[Deactivation] = ()
    revisions: Sequence[Revision] = ()
    alerts: Sequence[Event] = ()
    requests: Sequence[PrintedRequest] = ()
    rollbacks: Sequence[Rollback] = ()
    prunes: Sequence[Pruned] = ()
    checkpoints: Sequence[tuple[int, datetime]] = ()  # iteration, when it was whole
    unread: tuple[str, ...] = ()  # records that cannot be read, and why
    problem: str = ""


class Happening(Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at: Annotated[Moment, Meta(description="The time, by the clock of the process that recorded it.")]
    kind: Annotated[
        str,
        Meta(
            description="One of `attempt`, `chain`, `cancel`, `revision`, `alert`, `request`, `checkpoint`, "
            "`rollback`, `prune`, `kill-switch`."
        ),
    ]
    text: Annotated[str, Meta(description="The event, in one line.")]


def happenings(facts: Facts, since: datetime) -> list[Happening]:
    """Return the events after `since`, oldest first. Successive checkpoints are one event."""
    found = [*_all(facts), *(_checkpoint(iteration, at) for iteration, at in facts.checkpoints)]
    # A record may have been edited by hand: a time without a zone is read as UTC.
    zoned = (one if one.at.tzinfo else replace(one, at=one.at.replace(tzinfo=UTC)) for one in found)
    found = [one for one in zoned if one.at > since]
    merged: list[Happening] = []
    for kind, row in groupby(sorted(found, key=lambda one: (one.at, one.kind)), key=lambda one: one.kind):
        together = list(row)
        if kind == _CHECKPOINT and len(together) > 1:
            first, last = together[0], together[-1]
            text = f"{len(together)} checkpoints saved, {first.text.split()[-2]} to {last.text.split()[-2]}"
            together = [Happening(at=last.at, kind=kind, text=text)]
        merged += together
    return merged


def waiting_requests(facts: Facts) -> list[PrintedRequest]:
    """Return the requests without an answer."""
    return [one for one in facts.requests if one.state != "answered"]


def unsent(facts: Facts) -> int:
    """Return how many alert messages a channel has not taken yet, at least."""
    return max((one.waiting for one in facts.overview.seen.channels), default=0) if facts.overview else 0


def _all(facts: Facts) -> Iterator[Happening]:
    if facts.overview is not None:
        seen = facts.overview.seen
        yield from _of_attempts(seen.attempts)
        yield from _of_chains(seen.chains)
        switch = seen.kill_switch
        if switch is not None and switch.is_triggered and switch.at is not None:
            why = f": {switch.why}" if switch.why else ""
            text = f"{switch.by or 'a user'} triggered the kill switch{why}"
            yield Happening(at=switch.at, kind="kill-switch", text=text)
    for off in facts.deactivations:
        who, why = off.triggered_by or "a user", f": {off.triggered_why}" if off.triggered_why else ""
        if off.triggered_at is not None:
            text = f"{who} triggered the kill switch{why}"
            yield Happening(at=off.triggered_at, kind="kill-switch", text=text)
        yield Happening(at=off.at, kind="kill-switch", text=f"{off.by} deactivated the kill switch of {who}")
    for cancel in facts.cancels:
        what = "the queued tasks" if cancel.queued_only else "the run's jobs"
        jobs = f" ({', '.join(cancel.jobs)})" if cancel.jobs else ""
        yield Happening(at=cancel.at, kind="cancel", text=f"{cancel.by} cancelled {what}{jobs}")
    for one in facts.revisions:
        text = f"{one.created_by} published revision {one.name} ({one.note or 'no note'})"
        yield Happening(at=one.created_at, kind="revision", text=text)
    yield from _of_alerts(facts.alerts)
    yield from _of_requests(facts.requests)
    for back in facts.rollbacks:
        if back.at is not None:
            before = f" in place of {back.before}" if back.before is not None else ""
            why = f": {back.why}" if back.why else ""
            text = f"{back.by} let iteration {back.to} be the latest{before}{why}"
            yield Happening(at=back.at, kind="rollback", text=text)
    yield from _of_prunes(facts.prunes)


def _of_attempts(attempts: Sequence[Attempt]) -> Iterator[Happening]:
    unlike = {after.id: before.number for before, after in changed_pairs(attempts)}
    for one in attempts:
        job = f"attempt {one.number} ({one.display_id})"
        if one.opened_at is not None:
            nodes = f" on {len(one.nodes)} node{'s' if len(one.nodes) != 1 else ''}" if one.nodes else ""
            text = f"{job} of {one.user or 'a user'} began{nodes} from iteration {one.iteration_at_start or 0}"
            yield Happening(at=one.opened_at, kind="attempt", text=text)
        if one.closed_at is not None:
            text = f"{job} ended: {ending_words(one.reason or Ending.UNKNOWN)}"
            text += f" at iteration {one.iteration_at_end}" if one.iteration_at_end is not None else ""
            text += "" if one.made_checkpoint else ", no new checkpoint"
            text += f"; lost {', '.join(one.lost_nodes)}" if one.lost_nodes else ""
            text += f"; {one.verdict.words}" if one.verdict is not None and one.verdict.is_known else ""
            text += f"; {describe(one.first_failure)}" if one.first_failure else ""
            text += f"; {one.note}" if one.note else ""
            text += f"; its environment was not attempt {unlike[one.id]}'s" if one.id in unlike else ""
            yield Happening(at=one.closed_at, kind="attempt", text=text)


def _of_prunes(lines: Iterable[Pruned]) -> Iterator[Happening]:
    """Return one event for all that one user pruned within a minute."""
    timed = ((one, one.at) for one in lines if one.at is not None)
    for (by, _), row in groupby(timed, key=lambda one: (one[0].by, one[1].replace(second=0, microsecond=0))):
        together = list(row)
        iterations = [one.iteration for one, _ in together]
        which = f"checkpoint {iterations[0]}"
        if len(together) > 1:
            which = f"{len(together)} checkpoints, {min(iterations)} to {max(iterations)}"
        yield Happening(at=together[-1][1], kind="prune", text=f"{by or 'a user'} pruned {which}")


def _of_chains(chains: Iterable[Chain]) -> Iterator[Happening]:
    words = {REFILL: "was refilled with", REVISE: "was revised: resubmitted as"}
    for one in chains:
        behind = f" behind {', '.join(one.after)}" if one.after else ""
        did = f"the queue {words[one.how]}" if one.how in words else f"{one.user} submitted"
        by = f", {one.user}'s" if one.how in words else ""
        text = f"{did} chain {one.chain} ({one.array}){behind}{by}"
        yield Happening(at=one.submitted_at, kind="chain", text=text)


def _of_alerts(lines: Sequence[Event]) -> Iterator[Happening]:
    took: dict[str, list[str]] = {}
    for line in lines:
        if line.event == "sent":
            took.setdefault(line.id, []).append(line.channel)
    for line in lines:
        why = f": {line.why}" if line.why else ""
        if line.event == "message" and line.message is not None and line.message.kind not in ("reminder", "test"):
            channels = took.get(line.message.id)
            sent = f" (sent to {', '.join(channels)})" if channels else " (not sent yet)"
            yield Happening(at=line.message.at, kind="alert", text=f"alert: {line.message.title}{sent}")
        elif line.event == "acknowledged":
            text = f"{line.by} acknowledged {', '.join(line.keys)}{why}"
            yield Happening(at=line.at, kind="alert", text=text)
        elif line.event in ("silenced", "unsilenced"):
            text = (
                f"{line.by} {'silenced the alerts' if line.event == 'silenced' else 'ended the silence of alerts'}{why}"
            )
            yield Happening(at=line.at, kind="alert", text=text)


def _of_requests(requests: Iterable[PrintedRequest]) -> Iterator[Happening]:
    for one in requests:
        why = f" ({one.why})" if one.why else ""
        if one.state == "answered" and one.at is not None:
            text = f"{one.asked_by}'s request to {one.action or '?'}{why}: {one.outcome}: {one.words}"
            yield Happening(at=one.at, kind="request", text=text)
        elif one.asked_at is not None:
            yield Happening(at=one.asked_at, kind="request", text=f"{one.asked_by} requested {one.action or '?'}{why}")


def _checkpoint(iteration: int, at: datetime) -> Happening:
    return Happening(at=at, kind=_CHECKPOINT, text=f"checkpoint of iteration {iteration} saved")


class HandOver(Struct, frozen=True, kw_only=True):
    """The handover of a run from one on-call engineer to the next."""

    run: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str | None, Meta(description="Absolute path of its output folder.")]
    since: Annotated[Moment, Meta(description="Events after this time are listed.")]
    at: Annotated[Moment, Meta(description="When this was so.")]
    state: Annotated[str | None, Meta(description="As in `status`; null if the run cannot be read.")]
    problem: Annotated[str | None, Meta(description="Why the run cannot be read.")]
    slurm_problem: Annotated[str | None, Meta(description="Reason why Slurm did not answer; else empty.")]
    unread: Annotated[list[str], Meta(description="Records that cannot be read, and why.")]
    happened: Annotated[list[Happening], Meta(description="Events, oldest first.")]
    findings: Annotated[list[PrintedOpenFinding], Meta(description="Open findings, worst first.")]
    requests: Annotated[list[PrintedRequest], Meta(description="Requests without an answer.")]
    unsent_alerts: Annotated[int, Meta(description="Alert messages that a channel has not taken yet, at least.")]
    queue: Annotated[list[PrintedJob] | None, Meta(description="The run's jobs; null while Slurm does not answer.")]


def handover(facts: Facts, since: datetime, now: datetime) -> HandOver:
    """Return the handover as printed with `--json`; the text is made from it."""
    one = facts.overview
    jobs = sorted(one.seen.jobs, key=queue_order) if one is not None else []
    return HandOver(
        run=facts.name,
        output=str(facts.output) if facts.output is not None else None,
        since=to_the_second(since),
        at=to_the_second(now),
        state=one.state if one is not None else None,
        problem=facts.problem or None,
        slurm_problem=one.seen.blind if one is not None else None,
        unread=list(facts.unread),
        happened=happenings(facts, since),
        findings=[printed_open(finding) for finding in facts.findings],
        requests=waiting_requests(facts),
        unsent_alerts=unsent(facts),
        queue=None if one is None or one.seen.blind is not None else [printed_job(job, True) for job in jobs],
    )


T = TypeVar("T")


def read_facts(run: RunView, snapshot: Snapshot, since: datetime, parts: Part = SCREEN_PARTS) -> Facts:
    """Return the run according to `snapshot`, which has `parts`, with its records since then."""
    overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot)
    extras, paths, unread = read_extras(run.paths, snapshot.now), run.paths, []

    def tried(what: str, read: Callable[[], Sequence[T]]) -> Sequence[T]:
        try:
            return read()
        except (OSError, OpsctlError, CheckpointError) as error:
            unread.append(f"{what}: {in_words(error)}")
            return ()

    revisions = tried("revisions", lambda: published_since(paths, since))
    events = tried("alerts", lambda: alert_log.events(paths))
    asked = tried("requests", lambda: requests.printed(paths))
    rollbacks = tried("rollbacks", lambda: read_rollbacks(paths))
    prunes = tried("prunes", lambda: read_prunes(paths))
    deactivations = tried("the kill switch's record", lambda: read_deactivations(paths))
    checkpoints = tried("checkpoints", lambda: _checkpoints(paths))
    problems = [f"{part.name}: {why}" for part, why in snapshot.problems if part in Part.ALL and snapshot.blind is None]
    return Facts(
        name=run.table.name,
        output=paths.output,
        overview=overview,
        findings=open_findings(run, overview, extras, parts),
        extras=extras,
        cancels=extras.cancels,
        deactivations=deactivations,
        revisions=revisions,
        alerts=events,
        requests=asked,
        rollbacks=rollbacks,
        prunes=prunes,
        checkpoints=checkpoints,
        unread=(*problems, *unread, *([extras.problem] if extras.problem else [])),
    )


def _checkpoints(paths: RunPaths) -> list[tuple[int, datetime]]:
    """Return the iteration of each checkpoint with a manifest, and when it was complete. Raises CheckpointError."""
    found = []
    for folder in checkpoint_folders(paths.checkpoints):
        iteration = iteration_of(folder.name)
        try:
            at = datetime.fromtimestamp((folder / MANIFEST).stat().st_mtime, UTC).astimezone()
        except OSError:
            continue
        if iteration is not None:
            found.append((iteration, at))
    return found


LAST = "last"
USUAL = timedelta(hours=12)
_LENGTH = re.compile(r"(?P<number>\d{1,6}) ?(?P<unit>min|m|h|d|w)")
_SECONDS = {"min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MEANT = "--since {text}: expected a length (90min, 12h, 3d, 1-12:00:00), a time (2026-03-01T08:00), or last"


def since_of(text: str, now: datetime, last: datetime | None) -> datetime:
    """Return the moment that `text` means. last: when this account asked before, None: never.

    If it never asked, or the clock was set back since, this is the usual length ago. Raises UsageError.
    """
    if text == LAST:
        return last if last is not None and last <= now else now - USUAL
    match = _LENGTH.fullmatch(text)
    try:
        if match:
            return now - timedelta(seconds=int(match["number"]) * _SECONDS[match["unit"]])
        if ":" in text and "T" not in text:
            return now - timedelta(seconds=parse_duration_s(text))
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(_MEANT.format(text=text)) from None
    if moment > now:
        raise UsageError(f"--since {text}: that is still to come")
    return moment


def last_asked(environment: Mapping[str, str]) -> dict[str, datetime]:
    """Return output folder -> when this account last printed its handover."""
    folder = account_state_folder(environment)
    found = read_state(folder, folder / "on-call.json", dict[str, datetime]) or {}
    return {name: at for name, at in found.items() if at.tzinfo is not None}


def remember_asked(outputs: Mapping[str, datetime], environment: Mapping[str, str]) -> None:
    """Put it down for the next `last`. Not being able to fails no command."""
    folder = account_state_folder(environment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder, folder / "on-call.json", {**last_asked(environment), **outputs}, mode=0o600)
    except OSError:
        pass
