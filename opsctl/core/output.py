"""The output of commands: data on stdout, messages on stderr, JSON with its schema version.

All text for people goes through this module, so that no part of it controls the terminal: logs, names, reasons and
Slurm's messages may contain anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

_quiet = False  # set by the option -q


def print_json(key: str, value: Any) -> None:
    """Print `json_text(key, value)`, which is ASCII."""
    sys.stdout.write(json_text(key, value))


def json_text(key: str, value: Any) -> str:
    """Return `{"schema_version": 1, key: value}`; value: of the shape that the command's `json_option` names."""
    from trainer.formats.json_text import printed_json_text

    return printed_json_text(key, value)


def printable(text: str, instead: str | None = None) -> str:
    r"""`text` on one line and without what would steer a terminal.

    Escapes, line ends, what turns the direction of writing, halves of surrogate pairs: each is written as `\x1b`,
    `\n`, `\u202e`, or is `instead` where that is given.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] if instead is None else instead
        for character in text
    )


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters, its middle left out: both ends tell it apart."""
    clean = printable(text)
    if len(clean) <= width:
        return clean
    tail = (width - 1) // 2
    return clean[: width - 1 - tail] + "…" + clean[len(clean) - tail :]


def table_lines(rows: Sequence[Sequence[str]], align: str = "<") -> list[str]:
    """Return rows of cells as lines with aligned columns.

    align: `<` or `>` for each column; its last character is for all further columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return [
        "  ".join(
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]


def show(line: str) -> None:
    """Print a line of data to stdout, at once."""
    show_lines((line,))


def show_lines(lines: Iterable[str]) -> None:
    """Lines of data, each as it comes, so that what reads us sees it at once: stdout."""
    for line in lines:
        _write_line(sys.stdout, line)


def show_text(text: str) -> None:
    """`text` with the line ends in it, such as a script; nothing where there is none: stdout."""
    show_lines(_lines(text))


def message(line: str) -> None:
    """Print a line for people to stderr. With `-q`, print only errors, which begin with `opsctl: `."""
    if not _quiet or line.startswith("opsctl: "):
        _write_line(sys.stderr, line)


def be_quiet(quiet: bool) -> None:
    """Set whether messages that are no errors are left out."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether messages that are no errors are left out."""
    return _quiet


def message_text(text: str) -> None:
    """`text` with the line ends in it: stderr."""
    for line in _lines(text):
        message(line)


def write_screen(text: str, to: TextIO | None = None) -> None:
    """Write text that controls the terminal on purpose, to stdout by default; its other parts are `printable`."""
    to = to or sys.stdout
    to.write(text)
    to.flush()


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _write_line(to: TextIO, line: str) -> None:
    """Tabs stay, which logs and scripts are full of; what this terminal's encoding lacks is written as an escape."""
    shown = "\t".join(printable(part) for part in line.split("\t"))
    encoding = to.encoding or "utf-8"
    to.write(shown.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    to.flush()
