"""Every run of the group on one screen, worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.output import printable, shortened
from opsctl.core.timestamps import iso, to_the_second
from opsctl.monitoring.all_runs import RunSnapshot
from opsctl.monitoring.finding import Severity, rough, since
from opsctl.monitoring.overview import (
    SCREEN_PARTS,
    OpenFinding,
    Overview,
    PrintedOpenFinding,
    open_findings,
    printed_open,
    read_extras,
)
from opsctl.monitoring.runner import in_words, settings_of
from opsctl.monitoring.snapshot import Part
from opsctl.slurm.arrays import arrays_behind
from opsctl.ui.status.json_output import (
    PrintedCheckpoint,
    Progress,
    Speed,
    finite,
    printed_checkpoint,
    printed_progress,
    printed_speed,
)
from opsctl.ui.status.text import BOLD, GREEN, RED, STATE_COLOURS, YELLOW, answer_age, paint
from trainer.formats.json_text import Moment

_COLUMNS = ("RUN", "STATE", "DONE", "SPEED", "LEFT", "LOSS", "SAVED", "BEHIND")
#: Columns that a narrow terminal does without, one after the other; then names are shortened.
_LEFT_OUT_FIRST = ("SPEED", "LOSS", "SAVED", "LEFT")
_NAME_LEAST, _NAME_MOST = 10, 40
_GAP = "  "
_INDENT = 4


@dataclass(frozen=True)
class Row:
    """One run."""

    name: str
    output: Path | None  # None: not known
    overview: Overview | None  # None: it cannot be read, `problem` says why
    findings: tuple[OpenFinding, ...] = ()  # worst first
    problem: str = ""

    @property
    def worst(self) -> Severity:
        """The worst severity; unknown for a run that cannot be read, or whose queue cannot be seen."""
        if self.overview is None:
            return Severity.UNKNOWN
        if self.findings:
            return self.findings[0].severity
        return Severity.UNKNOWN if self.overview.state == "unknown" else Severity.OK

    @property
    def state(self) -> str:
        """As `Overview.state`; `unreadable` where there is none."""
        return self.overview.state if self.overview is not None else "unreadable"


#: Worst first; unknown comes after critical.
_ORDER = {Severity.CRITICAL: 0, Severity.UNKNOWN: 1, Severity.WARNING: 2, Severity.OK: 3}
_ENDED = ("finished", "unsubmitted")


def sorted_rows(rows: Sequence[Row]) -> list[Row]:
    """Sort worst first, ended healthy runs last, then by name."""
    return sorted(rows, key=lambda row: (_ORDER[row.worst], row.state in _ENDED, row.name, str(row.output)))


def all_lines(rows: Sequence[Row], now: datetime, width: int, colour: bool) -> list[str]:
    """Return the screen of `sorted_rows`, no line longer than `width`: a row each, with its worst finding below."""
    if not rows:
        return ["no runs: opsctl submit makes one known, a cron folder those of a group"]
    cells = [[printable(cell) for cell in _cells(row)] for row in rows]
    shown = _columns(cells, width)
    lines = [_headline(rows, now, width, colour)]
    lines.append(paint(_line(list(_COLUMNS), shown), BOLD, colour))
    for row, texts in zip(rows, cells, strict=True):
        line = _line(texts, shown)
        state = shown[0] + len(_GAP)
        code = STATE_COLOURS.get(row.state, RED)
        end = state + len(row.state)
        lines.append(line[:state] + paint(line[state:end], code, colour) + line[end:])
        lines += _under(row, now, width, colour)
    age = answer_age(max((row.overview.seen.queue_age_s for row in rows if row.overview is not None), default=0.0))
    return [*lines, age] if age else lines


def _headline(rows: Sequence[Row], now: datetime, width: int, colour: bool) -> str:
    counts = {severity: sum(row.worst is severity for row in rows) for severity in _ORDER}
    words = [
        (f"{counts[Severity.CRITICAL]} critical", RED, counts[Severity.CRITICAL]),
        (f"{counts[Severity.UNKNOWN]} unknown", RED, counts[Severity.UNKNOWN]),
        (f"{counts[Severity.WARNING]} warning", YELLOW, counts[Severity.WARNING]),
        (f"{counts[Severity.OK]} healthy", GREEN, counts[Severity.OK]),
    ]
    said = [(text, code) for text, code, number in words if number]
    head = f"{len(rows)} run{'s' if len(rows) != 1 else ''}: "
    plain = head + ", ".join(text for text, _ in said)
    painted = head + ", ".join(paint(text, code, colour) for text, code in said)
    clock = iso(now, "minutes")
    gap = width - len(plain) - len(clock)
    return painted + (" " * gap + clock if gap >= 2 else "")


def _under(row: Row, now: datetime, width: int, colour: bool) -> list[str]:
    """Return the worst finding in a line, or why there is none."""
    if row.overview is None:
        return [_cut(" " * _INDENT + row.problem, width)]
    if not row.findings:
        blind = row.overview.seen.blind
        return [_cut(" " * _INDENT + blind, width)] if blind is not None else []
    first, more = row.findings[0], len(row.findings) - 1
    word = first.severity.name.lower()
    known = [f"for {since(first.since, now)}"] if first.since is not None else []
    known += [f"acknowledged by {first.acknowledged_by}"] if first.acknowledged_by else []
    known += [f"{more} more"] if more else []
    tail = f" ({', '.join(known)})" if known else ""
    room = width - _INDENT - len(word) - 2 - len(tail)
    text = _cut(first.finding.text, max(10, room))
    code = YELLOW if first.severity is Severity.WARNING else RED
    return [_trimmed(" " * _INDENT, word, f"  {text}{printable(tail)}", width, code, colour)]


def _trimmed(indent: str, word: str, rest: str, width: int, code: str, colour: bool) -> str:
    return indent + paint(word, code, colour) + _cut(rest, width - len(indent) - len(word))


def _cut(text: str, width: int) -> str:
    clean = printable(text.replace("\n", " "))
    return clean if len(clean) <= width else clean[: max(0, width - 1)] + "…"


def _columns(cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column, 0 for one that is left out."""
    wide = [max(len(head), *(len(row[i]) for row in cells)) for i, head in enumerate(_COLUMNS)]
    wide[0] = min(wide[0], _NAME_MOST)
    for head in (None, *_LEFT_OUT_FIRST):
        if head is not None:
            wide[_COLUMNS.index(head)] = 0
        rest = sum(len(_GAP) + one for one in wide[1:] if one)
        if rest + min(wide[0], _NAME_LEAST) <= width:
            break
    wide[0] = max(1, min(wide[0], width - rest))
    return wide


def _line(texts: Sequence[str], wide: Sequence[int]) -> str:
    """Join the cells of a row: names and states to the left, numbers to the right."""
    shown = [
        shortened(text, size).ljust(size) if i < 2 else text.rjust(size)
        for i, (text, size) in enumerate(zip(texts, wide, strict=True))
        if size
    ]
    return _GAP.join(shown).rstrip()


def _speed(one: Overview, speed_s: float | None) -> str:
    if speed_s is None or one.state != "running":
        return ""
    return f"{speed_s:.3g} s/it" if one.standstill is None else "no progress"


def _cells(row: Row) -> tuple[str, ...]:
    one = row.overview
    if one is None:
        return (row.name, row.state, "", "", "", "", "", "")
    seen, measured = one.seen, one.seen.measured
    last, at = measured.last_iteration, seen.checkpoint_at
    speed = measured.seconds_per_iteration
    return (
        row.name,
        row.state,
        one.percent_text,
        _speed(one, speed),
        "" if one.left_s is None or seen.is_finished else rough(one.left_s),
        "" if last is None or last.loss is None else f"{last.loss:.4g}",
        "" if at is None else since(at, seen.now),
        "?" if seen.blind is not None else str(len(arrays_behind(seen.jobs))) if seen.jobs else "",
    )


class PrintedRow(Struct, frozen=True, kw_only=True):
    """One run among all. What is not known is null."""

    name: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str | None, Meta(description="Absolute path of its output folder.")]
    problem: Annotated[str | None, Meta(description="Why the run cannot be read.")]
    state: Annotated[str, Meta(description="As in `status`; `unreadable` if the run cannot be read.")]
    slurm_problem: Annotated[str | None, Meta(description="Reason why Slurm did not answer; else empty.")]
    progress: Annotated[Progress | None, Meta(description="How far it is.")]
    speed: Annotated[Speed | None, Meta(description="The speed.")]
    left_s: Annotated[
        float | None, Meta(description="Seconds of training left at this speed; null during a standstill.")
    ]
    finishes_at: Annotated[Moment | None, Meta(description="The expected end at this speed.")]
    lm_loss: Annotated[float | None, Meta(description="Loss of the last iteration in the log, in nats a token.")]
    checkpoint: Annotated[PrintedCheckpoint | None, Meta(description="The last whole checkpoint.")]
    arrays_behind: Annotated[int | None, Meta(description="How many arrays wait behind the live one.")]
    findings: Annotated[list[PrintedOpenFinding], Meta(description="Findings for a person, worst first.")]


def printed_row(row: Row) -> PrintedRow:
    """Return `row` as printed with `--json`."""
    one = row.overview
    seen = one.seen if one is not None else None
    last = seen.measured.newest_loss if seen is not None else None
    return PrintedRow(
        name=row.name,
        output=str(row.output) if row.output is not None else None,
        problem=row.problem or None,
        state=row.state,
        slurm_problem=seen.blind if seen is not None else None,
        progress=printed_progress(one) if one is not None else None,
        speed=printed_speed(seen.measured) if seen is not None else None,
        left_s=one.left_s if one is not None else None,
        finishes_at=to_the_second(one.finishes_at) if one is not None else None,
        lm_loss=finite(last.loss) if last is not None else None,
        checkpoint=printed_checkpoint(seen) if seen is not None else None,
        arrays_behind=len(arrays_behind(seen.jobs)) if seen is not None and seen.blind is None else None,
        findings=[printed_open(finding) for finding in row.findings],
    )


#: Of many runs the log's lines are not looked at one by one, nor the cron, which is the same for all.
LIST_PARTS = SCREEN_PARTS & ~(Part.SERIES | Part.CRON)


def rows_of(looks: Iterable[RunSnapshot]) -> list[Row]:
    """Return a row for each snapshot of LIST_PARTS, worst first; an unreadable run is a row with the reason."""
    return sorted_rows([_row(look) for look in looks])


def _row(look: RunSnapshot) -> Row:
    run, snapshot = look.run, look.snapshot
    if run is None or snapshot is None:
        return Row(look.name, look.output, None, (), look.problem)
    try:
        overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot, settings_of(run))
        found = open_findings(run, overview, read_extras(run.paths, snapshot.now), LIST_PARTS)
    except Exception as error:  # one broken run must not hide the others
        return Row(look.name, look.output, None, (), in_words(error))
    return Row(look.name, look.output, overview, found)
