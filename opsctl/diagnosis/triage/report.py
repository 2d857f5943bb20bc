"""The report of triage on one failure, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.timestamps import iso
from opsctl.diagnosis.triage.decide import teardown
from opsctl.diagnosis.triage.findings import Facts
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Quote, StackGroup, Verdict
from opsctl.run.state.chains import Cancel
from opsctl.slurm.durations import format_duration
from trainer.formats.json_text import Moment

_SHOWN_QUOTES, _QUOTE_WIDTH = 3, 160
_LAST_LINES = 5


class Triage(Verdict, frozen=True, kw_only=True):
    """The cause of a failure, its evidence, and the lost work."""

    log: Annotated[str, Meta(description="Path of the log that was read; empty if there was none.")] = ""
    attempt: Annotated[int | None, Meta(description="Number of the attempt; null for a log alone.")] = None
    job: Annotated[str, Meta(description="Its job as squeue shows it; empty for a log alone.")] = ""
    reason: Annotated[str, Meta(description="Reason of the attempt's end; empty for a log alone.")] = ""
    ended_at: Annotated[Moment | None, Meta(description="Time of the end.")] = None
    cancelled: Annotated[Cancel | None, Meta(description="User of the `opsctl cancel` that ended it; else null.")] = (
        None
    )
    teardown: Annotated[tuple[Quote, ...], Meta(description="Lines that only end the remaining processes.")] = ()
    last_lines: Annotated[tuple[Quote, ...], Meta(description="The last lines of the log.")] = ()
    iteration: Annotated[int | None, Meta(description="The last iteration done; null if unknown.")] = None
    checkpoint: Annotated[
        int | None, Meta(description="Iteration of the last complete checkpoint; null for none, or a log alone.")
    ] = None
    lost_iterations: Annotated[int | None, Meta(description="Iterations since then; null if unknown.")] = None
    lost_s: Annotated[
        float | None, Meta(description="Seconds of the attempt since that checkpoint; null if unknown.")
    ] = None
    lost_gpu_hours: Annotated[float | None, Meta(description="GPU hours since then; null if unknown.")] = None
    stacks: Annotated[tuple[StackGroup, ...], Meta(description="Stacks of the ranks of a hung step.")] = ()
    unread: Annotated[tuple[str, ...], Meta(description="Files that were not read, or not fully, and why.")] = ()


def triage_of_log(log: str, facts: Facts, verdict: Verdict) -> Triage:
    """Return the report on a log alone, without checkpoints or times."""
    return msgspec.structs.replace(_triage(facts, verdict), log=log, iteration=facts.iteration)


def triage_of_attempt(
    attempt: Attempt, facts: Facts, verdict: Verdict, log: str, saved_at: datetime | None, cancel: Cancel | None = None
) -> Triage:
    """Return the report. saved_at: time of the attempt's own last checkpoint, or None. cancel: of its job."""
    lost_s = _lost_s(attempt, saved_at)
    cancelled = cancel if verdict.cause == Cause.CANCELLED else None
    if cancelled is not None:
        text = f"cancelled by {_canceller(cancelled)}"
        todo = (f"The job was {text}. To continue: opsctl submit", *verdict.todo[1:])
        verdict = msgspec.structs.replace(verdict, summary=text, todo=todo)
    ranks = len(facts.ranks)
    return msgspec.structs.replace(
        _triage(facts, verdict),
        log=log,
        cancelled=cancelled,
        attempt=attempt.number,
        job=attempt.display_id,
        reason=str(attempt.reason or ""),
        ended_at=attempt.closed_at,
        iteration=attempt.iteration_at_end,
        checkpoint=attempt.checkpoint_at_end,
        lost_iterations=_lost_iterations(attempt),
        lost_s=lost_s,
        lost_gpu_hours=round(lost_s * ranks / 3600, 2) if lost_s is not None and ranks else None,
    )


def _triage(facts: Facts, verdict: Verdict) -> Triage:
    return Triage(
        **msgspec.structs.asdict(verdict),
        teardown=teardown(facts),
        last_lines=facts.last_lines,
        stacks=facts.stacks,
        unread=facts.unread,
    )


def _lost_iterations(attempt: Attempt) -> int | None:
    """Return the iterations since the checkpoint from which the next task resumes."""
    if attempt.iteration_at_end is None:
        return None
    return max(0, attempt.iteration_at_end - (attempt.checkpoint_at_end or 0))


def _lost_s(attempt: Attempt, saved_at: datetime | None) -> float | None:
    """Return the seconds since the attempt's last checkpoint, or since its start if it made none."""
    if attempt.opened_at is None or attempt.closed_at is None:
        return None
    since = saved_at if attempt.made_checkpoint else attempt.opened_at
    return None if since is None else max(0.0, (attempt.closed_at - since).total_seconds())


def verdict_line(verdict: Verdict) -> str:
    """Return one line for the training log."""
    if not verdict.is_known:
        return "opsctl: triage: cause not found. To see the last lines: opsctl triage"
    how_sure = f"confidence {verdict.confidence:.2f}"
    quote = f"; {_quoted(verdict.evidence[0])}" if verdict.evidence else ""
    return f"opsctl: triage: {verdict.words}, {how_sure}{quote}"


def lines_of(triage: Triage) -> list[str]:
    """Return the lines of the report."""
    lines = [_heading(triage), ""]
    if triage.is_known:
        fault = "user error" if triage.user_fault else "not a user error"
        fault = "user unknown" if triage.cause == Cause.CANCELLED else fault
        fault = f"by {_canceller(triage.cancelled)}" if triage.cancelled is not None else fault
        lines.append(f"cause         {triage.cause} ({fault}), confidence {triage.confidence:.2f}")
    else:
        lines.append(f"cause         {triage.summary.removeprefix('cause ')}")
    lines += [f"failed first  {_place(triage)}"] if _place(triage) else []
    if triage.is_known:
        lines += _quotes("evidence", triage.evidence)
    lines += _quotes("followed by", triage.cascade)
    lines += _quotes("teardown", triage.teardown)
    if not triage.is_known:
        lines += _quotes("last lines", triage.last_lines[-_LAST_LINES:], _LAST_LINES)
    lines += [
        f"stacks        {'others wait for ' if group.is_odd else ''}{group.count} ranks ({group.ranks}): "
        f"{group.frames[0] if group.frames else '?'}"
        for group in triage.stacks
    ]
    lines += _loss(triage)
    lines += [f"not read      {one}" for one in triage.unread]
    if triage.todo:
        lines += ["", triage.todo[0], *(f"  {command}" for command in triage.todo[1:])]
    return lines


def _heading(triage: Triage) -> str:
    if triage.attempt is None:
        return triage.log
    when = f" at {iso(triage.ended_at)}" if triage.ended_at else ""
    return f"attempt {triage.attempt}, job {triage.job}: ended{when}: {triage.reason}"


def _canceller(cancel: Cancel) -> str:
    host = f" on {cancel.host}" if cancel.host else ""
    return f"{cancel.by}{host} at {iso(cancel.at)}"


def _place(triage: Verdict) -> str:
    """Return rank, node and time of the first failure, as far as known."""
    parts = (
        f"rank {triage.rank}" if triage.rank is not None else "",
        f"on {triage.node}" if triage.node else "",
        f"at {iso(triage.at)}" if triage.at else "",
    )
    return " ".join(filter(None, parts))


def _quotes(title: str, quotes: Sequence[Quote], most: int = _SHOWN_QUOTES) -> list[str]:
    shown = [_quoted(one) for one in quotes[:most]]
    return [f"{title if number == 0 else '':<13} {text}" for number, text in enumerate(shown)]


def _quoted(quote: Quote) -> str:
    where = quote.source + (f":{quote.line}" if quote.line is not None else "")
    text = quote.text if len(quote.text) <= _QUOTE_WIDTH else quote.text[: _QUOTE_WIDTH - 1] + "…"
    return f"{where}: {text}"


def _loss(triage: Triage) -> list[str]:
    if triage.attempt is None:
        return [f"iteration     {triage.iteration} was the last one logged"] if triage.iteration is not None else []
    saved = "none" if triage.checkpoint is None else f"iteration {triage.checkpoint}"
    lost = []
    if triage.lost_iterations is not None:
        lost.append(f"{triage.lost_iterations} iteration{'s' if triage.lost_iterations != 1 else ''}")
    if triage.lost_s is not None:
        lost.append(format_duration(triage.lost_s))
    if triage.lost_gpu_hours is not None:
        lost.append(f"{triage.lost_gpu_hours} GPU hours")
    return [f"checkpoint    {saved}", f"lost work     {', '.join(lost) or 'unknown'}"]
