"""One run on a screen that stays, whatever its size: what matters first gets its lines first. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest

from opsctl.core.output import printable
from opsctl.core.timestamps import iso
from opsctl.monitoring.finding import Severity, rough
from opsctl.monitoring.overview import Overview, RunStatus
from opsctl.run.logs.lines import parse_line
from opsctl.slurm.durations import format_duration
from opsctl.ui.status.screen import (
    LABEL_WIDTH,
    ago,
    attempt_rows,
    checkpoint_text,
    headline,
    health_rows,
    job_rows,
    kill_switch_text,
    loss_text,
    speed_text,
)
from opsctl.ui.status.text import BOLD, GREEN, RED, STATE_COLOURS, YELLOW, paint, progress_bar, sparks, tall_sparks
from trainer.formats.logs.training_line import TrainingLine
from trainer.recipe.save_schedule import SaveSchedule

#: A look that takes so much longer than the pause between two is worth a word.
LATE_S = 20.0
_DIM = "2"
_GAP = "  "
_SGR = re.compile(r"\x1b\[[0-9;]*m")
#: Columns of a bar or of sparks, and what a narrow terminal leaves of them.
_DRAWN_MOST, _DRAWN_LEAST = 60, 8
_NARROW = 40
#: A later end than this is shown by its date.
_FAR = timedelta(hours=20)
#: Lines that the words of a finding take at most.
_FINDING_LINES = 3
#: Lines of the log that count as lately.
_LATELY = 200
#: From so many columns on, the curves, the queue and the nodes are shown side by side.
_WIDE, _CURVES_WIDTH, _CURVE_LINES = 180, 86, 2
#: The ranks of the sections in each of these columns, the lowest of them, and that of the log, with its least lines.
_COLUMNS = ((3, 4), (5, 9), (7, 8, 10, 11))
_FIRST_IN_COLUMNS, _LOG_RANK, _LOG_LEAST = 3, 12, 5


@dataclass(frozen=True)
class Shown:
    """The content for the screen of one run."""

    name: str  # as it is known before anything could be looked at
    status: RunStatus | None = None  # the last look that succeeded; None: none yet
    saves: SaveSchedule | None = None
    last_lines: tuple[str, ...] = ()  # of the log, oldest first
    problem: str = ""  # why the newest look failed
    looked_at: datetime | None = None  # the last look that succeeded


@dataclass(frozen=True)
class Section:
    """Some lines that belong together. Of those with a lower `rank` the first `least` lines come before all others."""

    rank: int
    least: int
    lines: tuple[str, ...]
    is_log: bool = False  # of too many lines the last ones count


def panel_lines(shown: Shown, now: datetime, width: int, height: int, colour: bool) -> list[str]:
    """Return at most `height` lines of at most `width` characters each, colors not counted."""
    wide = _wide_columns(width)
    if shown.status is None or not wide:
        return [cut(line, width) for line in fitted(_sections(shown, now, width, colour), height)]
    first, *others = wide
    sections = _sections(shown, now, width, colour, first, others[0])
    top = [one for one in sections if one.rank < _FIRST_IN_COLUMNS]
    columns = [[one for one in sections if one.rank in ranks] for ranks in _COLUMNS]
    log = [one for one in sections if one.rank == _LOG_RANK]
    room = max(0, height - len(fitted(top, height)))
    cells = [fitted(column, max(room - _LOG_LEAST * bool(log), room // 2)) for column in columns]
    rows = [
        _GAP.join(_filled(cell, each) for cell, each in zip(row, wide, strict=True)).rstrip()
        for row in zip_longest(*cells, fillvalue="")
    ]
    between = Section(_FIRST_IN_COLUMNS, len(rows), tuple(rows))
    return [cut(line, width) for line in fitted([*top, between, *log], height)]


def _wide_columns(width: int) -> tuple[int, ...]:
    """Return the widths of the columns on a wide terminal: curves, queue and attempts, nodes and the rest."""
    if width < _WIDE:
        return ()
    other = (width - _CURVES_WIDTH - 2 * len(_GAP)) // 2
    return width - 2 * other - 2 * len(_GAP), other, other


def _filled(line: str, width: int) -> str:
    short = cut(line, width)
    return short + " " * (width - len(_SGR.sub("", short)))


def fitted(sections: Sequence[Section], height: int) -> list[str]:
    """Return the sections' lines in order, as far as `height` allows: first the minimum of each, by rank."""
    given = [0] * len(sections)
    left = height
    by_rank = sorted(range(len(sections)), key=lambda number: sections[number].rank)
    for wants in ("least", "all"):
        for number in by_rank:
            section = sections[number]
            wanted = min(section.least, len(section.lines)) if wants == "least" else len(section.lines)
            more = min(left, wanted - given[number])
            given[number] += more
            left -= more
    return [
        line
        for section, count in zip(sections, given, strict=True)
        for line in (section.lines[len(section.lines) - count :] if section.is_log else section.lines[:count])
    ]


def cut(line: str, width: int) -> str:
    """Cut `line` to `width` characters, SGR codes not counted, and end every color."""
    if len(_SGR.sub("", line)) <= width:
        return line
    kept, room, at = "", max(0, width - 1), 0
    for code in _SGR.finditer(line):
        piece = line[at : code.start()]
        kept += piece[:room]
        room = max(0, room - len(piece))
        kept += code[0]
        at = code.end()
    return kept + line[at:][:room] + ("…" if width > 0 else "")


def _sections(
    shown: Shown, now: datetime, width: int, colour: bool, curves: int | None = None, rows: int | None = None
) -> list[Section]:
    """Return all sections. curves, rows: the widths of those that are shown side by side; None: they are not."""
    curves, is_beside, rows = curves or width, rows is not None, rows or width
    if shown.status is None:
        told = [f"cannot look: {shown.problem}"] if shown.problem else ["looking ..."]
        return [
            Section(0, 1, (_headline(shown.name, "", "", now, width, colour),)),
            Section(1, 1, tuple(paint(printable(one), RED if shown.problem else _DIM, colour) for one in told)),
        ]
    status = shown.status
    overview = status.overview
    state = overview.state
    looked_at = shown.looked_at or overview.seen.now
    first = _headline(overview.name, headline(overview), STATE_COLOURS.get(state, RED), looked_at, width, colour)
    sections = [
        Section(0, 1, (first,)),
        Section(1, 1, tuple(_trouble(shown, now, colour))),
        Section(2, 2, tuple(_findings(status, width, colour))),
        Section(3, 3, tuple(_bars(overview, shown.saves, curves, colour))),
        Section(4, 2, tuple(_curves(overview, curves, colour, is_beside))),
        Section(5, 2, _rows(job_rows(overview), rows, colour, is_beside)),
        Section(7, 1, _rows(_nodes(overview), rows, colour, is_beside)),
        Section(8, 1, _rows([("checkpoint", checkpoint_text(overview.seen))], rows, colour, is_beside)),
        Section(9, 1, _rows(attempt_rows(overview.seen), rows, colour, is_beside)),
        Section(10, 1, _rows(health_rows(overview, status.extras), rows, colour, is_beside)),
        Section(11, 0, _rows([("kill switch", kill_switch_text(overview.seen))], rows, colour, is_beside)),
    ]
    if overview.seen.kill_switch is not None and overview.seen.kill_switch.is_triggered:
        sections[-1] = Section(2, 1, _rows([("kill switch", kill_switch_text(overview.seen))], width, colour))
    if not shown.last_lines:
        return sections
    log = tuple(told_line(line, width) for line in shown.last_lines)
    return [*sections, Section(12, 1, (paint("─" * width, _DIM, colour),)), Section(12, 4, log, is_log=True)]


def _headline(name: str, said: str, code: str, at: datetime, width: int, colour: bool) -> str:
    plain = f"{printable(name)}{_GAP}{printable(said)}"
    clock = iso(at)
    if len(plain) + len(clock) + 2 > width:
        clock = at.strftime("%H:%M:%S")
    gap = width - len(plain) - len(clock)
    what = paint(printable(said), f"1;{code}", colour and bool(code))
    painted = f"{paint(printable(name), BOLD, colour)}{_GAP}{what}"
    return painted + (" " * gap + clock if gap >= 2 else "")


def _trouble(shown: Shown, now: datetime, colour: bool) -> list[str]:
    """Return why the screen may be outdated."""
    lines = []
    late_s = (now - shown.looked_at).total_seconds() if shown.looked_at is not None else 0.0
    if not shown.problem and late_s > LATE_S:
        said = f"this screen is {rough(late_s)} old: the file system or Slurm answers slowly"
        lines.append(paint(said, YELLOW, colour))
    if shown.problem:
        since = f", so this is {ago(shown.looked_at, now)} old" if shown.looked_at is not None else ""
        lines.append(paint(f"cannot look: {printable(shown.problem)}{since}", f"1;{RED}", colour))
    seen = shown.status.overview.seen if shown.status is not None else None
    if seen is not None and seen.blind is not None:
        lines.append(paint(f"Slurm: {printable(seen.blind)}", RED, colour))
    return lines


def _findings(status: RunStatus, width: int, colour: bool) -> list[str]:
    lines = []
    now = status.overview.seen.now
    for one in status.found:
        code = YELLOW if one.severity is Severity.WARNING else RED
        word = paint(f"{one.severity.name.lower():<{LABEL_WIDTH}}", f"1;{code}", colour)
        first, *more = _wrapped(one.finding.text, width)
        lines += [word + first, *(" " * LABEL_WIDTH + line for line in more)]
        lines += [" " * LABEL_WIDTH + paint(line, _DIM, colour) for line in _wrapped(one.story(now), width) if line]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text next to the labels into at least one line."""
    room = max(1, width - LABEL_WIDTH)
    found = textwrap.wrap(printable(text.replace("\n", " ")), room, max_lines=_FINDING_LINES, placeholder=" …")
    return [cut(line, room) for line in found] or [""]


def _bars(overview: Overview, saves: SaveSchedule | None, width: int, colour: bool) -> list[str]:
    """Return bars to the end, to the next save, and to the job's limit."""
    seen, code = overview.seen, STATE_COLOURS.get(overview.state, YELLOW)
    told: list[tuple[str, float | None, str]] = []
    if overview.iteration is not None:
        counted = " of samples" if seen.total_samples else ""
        done = f"{overview.percent_text:>7}{counted}{_GAP}iteration {overview.iteration:,}"
        if overview.iterations_in_all:
            done += f" of {overview.iterations_in_all:,}"
        told.append(("training", overview.share, done + _left(overview)))
    if (save := next_save(overview, saves)) is not None:
        share, due, in_s = save
        when = "" if in_s is None or seen.running is None else f", in {rough(in_s)}"
        told.append(("next save", share, f"{100 * share:5.1f} %{_GAP}at iteration {due:,}{when}"))
    job = seen.running
    if job is not None and job.time_limit_s:
        share = min(1.0, job.elapsed_at_s(seen.now) / job.time_limit_s)
        left = format_duration(job.left_at_s(seen.now) or 0)
        told.append(("time limit", share, f"{100 * share:5.1f} %{_GAP}{left} left of {job.display_id}'s time"))
    columns = _drawn_width(width)
    drawn = [(label, progress_bar(share, columns) if share is not None else "", text) for label, share, text in told]
    return [_drawn_row(*one, code, width, colour) for one in drawn]


def _left(overview: Overview) -> str:
    if overview.left_s is None or overview.seen.is_finished:
        return ""
    at = overview.finishes_at
    far = at is not None and at - overview.seen.now > _FAR
    end = "" if at is None else f", to {at.date().isoformat() if far else at.strftime('%H:%M')}"
    return f"; {rough(overview.left_s)} left{end}"


def next_save(overview: Overview, saves: SaveSchedule | None) -> tuple[float, int, float | None] | None:
    """Return (completed share since the last save, iteration of the next save, seconds until then)."""
    at = overview.iteration
    due = saves.next_after(at) if saves is not None and at is not None else None
    if at is None or due is None or overview.seen.is_finished:
        return None
    if overview.iterations_in_all:
        due = min(due, overview.iterations_in_all)
    checkpoint = overview.seen.checkpoint
    before = min(checkpoint.iteration, at) if checkpoint is not None else 0
    seconds = overview.seen.measured.seconds_per_iteration
    share = (at - before) / (due - before) if due > before else 1.0
    return share, due, None if seconds is None else max(0, due - at) * seconds


def _curves(overview: Overview, width: int, colour: bool, is_tall: bool) -> list[str]:
    """Draw the loss and speed of the newest lines of the log; `is_tall`: in the whole width, under their numbers."""
    seen = overview.seen
    lately = seen.series[-_LATELY:]
    known = (
        ("loss", [one.loss for one in seen.series], loss_text(seen)),
        ("recent loss", [one.loss for one in lately], _range(one.loss for one in lately)),
        ("s/iteration", [one.seconds_per_iteration for one in lately], speed_text(overview)),
    )
    lines: list[str] = []
    for label, values, text in known if seen.series else ():
        if text and is_tall:
            drawn = tall_sparks(values, width - LABEL_WIDTH, _CURVE_LINES)
            lines += [
                _row(label, text, width, colour),
                *(_row("", paint(one, GREEN, colour), width, colour) for one in drawn),
            ]
        elif text:
            columns = _drawn_width(width)
            lines.append(_drawn_row(label, sparks(values, columns).ljust(columns), text, GREEN, width, colour))
    return lines


def _drawn_row(label: str, drawn: str, text: str, code: str, width: int, colour: bool) -> str:
    return _row(label, f"{paint(drawn, code, colour)} {text.strip() if not drawn else text}".lstrip(), width, colour)


def _range(values: Iterable[float | None]) -> str:
    known = [one for one in values if one is not None]
    return f"{min(known):.4g} to {max(known):.4g} in the last {len(known):,} lines" if known else ""


def _nodes(overview: Overview) -> list[tuple[str, str]]:
    """Return the running job's nodes by state, the bad ones by name."""
    states: dict[str, int] = {}
    for node in overview.seen.nodes:
        states[node.state] = states.get(node.state, 0) + 1
    if not states:
        return []
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    bad = [f"{one.name} is {one.state}{f': {one.reason}' if one.reason else ''}" for one in overview.seen.nodes]
    bad = [text for one, text in zip(overview.seen.nodes, bad, strict=True) if one.is_out_of_service]
    return [("nodes", counts), *(("", text) for text in bad)]


def _rows(rows: Iterable[tuple[str, str]], width: int, colour: bool, is_beside: bool = False) -> tuple[str, ...]:
    texts = (
        (label, _wrapped(text, width) if is_beside else [printable(text.replace("\n", " "))]) for label, text in rows
    )
    return tuple(
        _row("" if number else label, line, width, colour)
        for label, lines in texts
        for number, line in enumerate(lines)
    )


def _row(label: str, text: str, width: int, colour: bool) -> str:
    """Return a row; a narrow terminal has no column of labels."""
    shown = f"{label:<{LABEL_WIDTH}}" if width >= _NARROW else f"{label} " if label else ""
    return paint(shown, _DIM, colour) + text


def _drawn_width(width: int) -> int:
    return max(_DRAWN_LEAST, min(_DRAWN_MOST, (width - LABEL_WIDTH) // 5)) if width >= _NARROW else 0


def told_line(line: str, width: int) -> str:
    """Return the line if it fits, and a longer one of an iteration shortened; the screen cuts others."""
    plain = printable(line.replace("\t", " "))
    if len(plain) <= width:
        return plain
    record = parse_line(line)
    return _in_short(record) if isinstance(record, TrainingLine) else plain


def _in_short(line: TrainingLine) -> str:
    """Return its loss, gradient norm and time."""
    loss, norm, seconds = line.loss, line.grad_norm, line.seconds_per_iteration
    parts = [f"iteration {line.iteration}"]
    parts += [f"loss {loss:.5f}"] if loss is not None else ["no loss"]
    parts += [f"gradient norm {norm:.3f}"] if norm is not None else []
    parts += [f"{seconds:.3g} s"] if seconds is not None else []
    parts += [f"{line.skipped_iterations} skipped"] if line.skipped_iterations else []
    parts += [f"{line.nan_iterations} NaN"] if line.nan_iterations else []
    return " | ".join(parts)
