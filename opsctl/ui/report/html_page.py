"""The page: one file of HTML with its data, script and style inside. It fetches nothing, and runs nothing but its own.

What comes from logs and run files reaches it as JSON alone, in which no `<` stands, and is put on the screen as text.
The policy in its head names the two scripts and two styles by their digests: another one would not run.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import html
import math
import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files import state_files
from opsctl.run.config.paths import RunPaths
from opsctl.ui.report.curves import SAVE, Course, Mark
from opsctl.ui.report.rows import AXES, CURVES, SHAPES, Rows, Superseded, Utilisation, kept

#: Points of all runs together: with them the page stays below 5 MB.
MOST_POINTS = 32_000
#: The number of shown marks of a run, the newest, and of its saves.
MOST_MARKS = 1_500
#: What was trained again later: the newest stretches of it, with an eighth of the points among them.
MOST_SUPERSEDED = 200


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table with a heading; the first column names its rows."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str = ""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run's wall time, in seconds since the epoch."""

    kind: str  # "attempt", "waited", "idle", "not known"
    begins_s: float
    ends_s: float
    text: str
    is_bad: bool = False  # an attempt that ended badly


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the wall time."""

    part: str
    percent: float
    hours: float


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A large number at the head of a run."""

    name: str
    value: str
    note: str = ""


class PageMark(msgspec.Struct, frozen=True, kw_only=True):
    """A mark; see `course.Mark`."""

    kind: str
    iteration: int
    text: str
    at_s: float | None = None


class PageSuperseded(msgspec.Struct, frozen=True, kw_only=True):
    """Iterations from `first` to `last` as they were before they were trained again; columns as a run's."""

    first: int
    last: int
    columns: dict[str, str]


class PageRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Columns are base64 of little-endian numbers: axes of 8 bytes, curves of 4; NaN is not known."""

    name: str
    source: str
    clock: str  # "world": at_s is UTC's; "log": the log's own; "trained": seconds of training; "": nothing is known
    lines: int  # of iterations, before thinning
    columns: dict[str, str]
    evaluations: dict[str, list[list[float | None]]]  # by group: iterations, losses; None is no number
    superseded: list[PageSuperseded]
    superseded_iterations: int  # in all
    sources: dict[str, str]  # of curves that the log lacks: the values that they were computed from
    marks: list[PageMark]
    saves: int  # checkpoints in all
    marks_left_out: int  # older than those told, saves aside
    figures: list[Figure]
    tables: list[Table] = []
    timeline: list[Stretch] = []
    shares: list[Share] = []


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    version: int = 1
    title: str
    made_at: str
    runs: list[PageRun]


@dataclass(frozen=True)
class Known:
    """The facts of a run besides its log."""

    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    timeline: tuple[Stretch, ...] = ()
    shares: tuple[Share, ...] = ()
    utilisation: Utilisation | None = None  # where the log says none
    marks: tuple[Mark, ...] = field(default=())  # with a moment each, and without an iteration: -1


def page_run(name: str, source: str, course: Course, known: Known, most_points: int = MOST_POINTS) -> PageRun:
    """Return a run's part of the page, with about `most_points` points at most."""
    iterations, times = course.column("iteration"), course.column("at_s")
    marks = [*course.marks, *course.spikes(), *(_placed(mark, iterations, times) for mark in known.marks)]
    saves = [mark for mark in marks if mark.kind == SAVE]
    others = [mark for mark in marks if mark.kind != SAVE]
    places = kept(
        [course.column(name) for name in SHAPES],
        most_points,
        tail=most_points // 8,
        always=[bisect_left(iterations, mark.iteration) for mark in others],
    )
    computed = {"mfu": known.utilisation} if known.utilisation is not None else {}
    columns = {name: course.column(name) for name in (*AXES, *CURVES)}
    columns |= {name: one.percent for name, one in computed.items()}
    return PageRun(
        name=name,
        source=source,
        clock=_clock(course),
        lines=course.lines,
        columns=_columns(columns, places),
        superseded=_superseded(course.superseded[-MOST_SUPERSEDED:], most_points // 8),
        superseded_iterations=sum(one.iterations for one in course.superseded),
        sources={name: one.source for name, one in computed.items()},
        evaluations={
            group: [[float(at) for at, _ in points], [_finite(loss) for _, loss in points]]
            for group, points in course.evaluations.items()
            if points
        },
        marks=_told([*_newest(others), *_newest(saves)]),
        saves=len(saves),
        marks_left_out=max(0, len(others) - MOST_MARKS),
        figures=list(known.figures),
        tables=list(known.tables),
        timeline=list(known.timeline),
        shares=list(known.shares),
    )


def _superseded(found: Sequence[Superseded], most_points: int) -> list[PageSuperseded]:
    each = max(8, most_points // max(1, len(found)))
    return [PageSuperseded(first=one.first, last=one.last, columns=_few(one.rows, each)) for one in found]


def _few(rows: Rows, most_points: int) -> dict[str, str]:
    places = kept([rows.column(name) for name in SHAPES], most_points, tail=0, always=[len(rows) - 1])
    return _columns({name: rows.column(name) for name in (*AXES, *CURVES)}, places)


def _columns(columns: Mapping[str, array[float]], places: Sequence[int]) -> dict[str, str]:
    return {name: _encoded(column, places, "d" if name in AXES else "f") for name, column in columns.items()}


def _clock(course: Course) -> str:
    times = course.column("at_s")
    if not times or math.isnan(times[-1]):
        return ""
    if course.has_zone:
        return "world"
    # A time before 1990 is the time since the start.
    return "log" if times[-1] > 631_152_000 else "trained"


def _placed(mark: Mark, iterations: array[float], times: array[float]) -> Mark:
    """Place a mark that has only a time at the iteration of that time."""
    if mark.iteration >= 0 or mark.at_s is None:
        return mark
    place = bisect_right(times, mark.at_s)
    iteration = int(iterations[place - 1]) if place else 0
    return Mark(mark.kind, iteration, mark.text, mark.at_s)


def _newest(marks: Sequence[Mark]) -> list[Mark]:
    return sorted(marks, key=_iteration_of)[-MOST_MARKS:]


def _told(marks: Sequence[Mark]) -> list[PageMark]:
    return [
        PageMark(kind=one.kind, iteration=one.iteration, text=one.text[:300], at_s=one.at_s)
        for one in sorted(marks, key=_iteration_of)
    ]


def _iteration_of(mark: Mark) -> int:
    return mark.iteration


def _finite(value: float) -> float | None:
    """Return a finite number, else None: JSON has no other numbers."""
    return value if math.isfinite(value) else None


def _encoded(column: array[float], places: Sequence[int], form: str) -> str:
    few = array(form, (_float(column[place]) for place in places))
    if sys.byteorder == "big":
        few.byteswap()
    return base64.b64encode(few.tobytes()).decode()


def _float(value: float) -> float:
    """Return the value, NaN if it does not fit 4 bytes."""
    return value if -3e38 < value < 3e38 else math.nan


_FOLDER = Path(__file__).parent / "page"
#: In the order in which they build on one another.
_MODULES = ("data.js", "colours.js", "drawn.js", "touch.js", "curves.js", "controls.js", "tables.js", "main.js")
_STYLES = ("uPlot.min.css", "page.css")
#: What every page begins with, and no log.
_BEGINS = b"<!DOCTYPE html"
_BETWEEN_MODULES = re.compile(r"^import [^;]*;\n|^export (?=const|let|function|class|async)", re.MULTILINE)


def page_html(data: PageData) -> str:
    """Return the whole file."""
    library = _read("uPlot.iife.min.js")
    script = "\n".join(_BETWEEN_MODULES.sub("", _read(name)) for name in _MODULES)
    style = "\n".join(_read(name) for name in _STYLES)
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(_read("page.html")).substitute(
        policy=html.escape(policy, quote=False),
        title=html.escape(data.title),
        style=style,
        library=library,
        data=json_in_html(data),
        script=script,
        licence=html.escape(_read("uPlot.LICENSE").replace("--", "- -")),
    )


def write_page(text: str, path: Path | None, own: RunPaths | None, logs: Sequence[Path] = ()) -> Path:
    """Put the page in the place of the one before, in one step, and say where.

    path: None is the page of the run `own`, and without one `report.html` here. logs: what it is made of. Raises
    OpsctlError.
    """
    where = path or (own.page if own is not None else Path("report.html"))
    if path is None and own is not None and not own.output.exists():
        raise OpsctlError(
            f"{own.output}: nothing has been submitted yet, so there is no log; opsctl submit begins, "
            "--output FILE writes the plan alone"
        )
    try:
        if path is not None or own is None:
            _check_place(where, logs)
        if path is None and own is not None:
            state_files.make_folder(own.output, where.parent)
            state_files.write_atomically(own.output, where, text)
        else:
            state_files.replace_named_file(where, text)
    except OSError as error:
        raise OpsctlError(
            f"{where}: cannot write the page: {file_problem(error)}; --output FILE names another place"
        ) from None
    return where


def _check_place(where: Path, logs: Sequence[Path]) -> None:
    """Raise OSError if the place has another file than a page, such as a log."""
    for log in logs:
        with contextlib.suppress(FileNotFoundError):
            if where.samefile(log):
                raise FileExistsError(errno.EEXIST, "it is the log", str(where))
    if not where.exists():
        return
    if not where.is_file():
        raise FileExistsError(errno.EEXIST, "there is something that is no plain file", str(where))
    with where.open("rb") as file:
        if file.read(len(_BEGINS)) != _BEGINS:
            raise FileExistsError(errno.EEXIST, "there is a file that is no page", str(where))


def json_in_html(data: PageData) -> str:
    """Return JSON in which no name or log line can end or begin an element or a comment."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
