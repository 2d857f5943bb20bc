"""A plan as text for a terminal of about 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from opsctl.core.output import table_lines
from opsctl.run.planning.section import Section

_LABEL_WIDTH = 26
_WIDTH = 100


def lines_of(sections: Sequence[Section]) -> Iterator[str]:
    """The screen's lines, a blank one before each section but the first."""
    for position, section in enumerate(sections):
        if not section.rows and not section.table:
            continue
        if position:
            yield ""
        yield section.title
        for label, text in section.rows:
            yield from _row(label, text)
        if section.table:
            yield from _table(section.table)
        if section.note:
            yield from textwrap.wrap(section.note, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def bullet_lines(title: str, texts: Sequence[str]) -> Iterator[str]:
    """A title and one line per text; nothing when there is none."""
    if texts:
        yield ""
        yield title
        yield from (f"  {text}" for text in texts)


def _row(label: str, text: str) -> Iterator[str]:
    indent = " " * (_LABEL_WIDTH + 2)
    wrapped = textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    yield f"  {label:<{_LABEL_WIDTH - 2}}  {wrapped[0]}"
    yield from (indent + line for line in wrapped[1:])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"  {line}" for line in table_lines(rows, ">"))
