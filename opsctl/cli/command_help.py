"""The commands as a page: `python -m opsctl.cli.command_help > docs/commands.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from opsctl.cli import grouped, root
from opsctl.cli.command_tree import commands_below, context_of, help_paragraphs, options_of
from opsctl.core.output import show_text

HEAD = """\
# Commands

Made from what `--help` says by `python -m opsctl.cli.command_help > docs/commands.md`. On a terminal `opsctl help`
has a line for each, `opsctl COMMAND --help` one of them whole; `opsctl man --output DIR` makes manual pages. Every one
has `--help`; those that list or tell have `--json`, whose fields are in [JSON](json.md).

Exit codes: 0 done, 1 failed or refused, 2 usage or run file, 130 interrupted; `watch` uses Nagios's (0 ok, 1 warning,
2 critical, 3 unknown)."""
_EVERYWHERE = {"--help", "-h, --help"}
#: What Markdown would read as its own; what stands in backticks is left as it is.
_TEXT = re.compile(r"(`[^`]*`)|([|<*\[\]\\])")


def markdown() -> str:
    """The page."""
    lines = [HEAD]
    for heading, names in grouped().items():
        lines.append(f"## {heading}")
        for name in names:
            command = root.get_command(click.Context(root), name)
            assert command is not None
            for words, below in commands_below(("opsctl", name), command):
                lines += _section(words, below)
    return "\n\n".join(lines)


def _section(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = context_of(words, command)
    yield f"{'#' * (len(words) + 1)} {' '.join(words)}"
    yield f"```\n{' '.join([*words, *command.collect_usage_pieces(context)])}\n```"
    for lines, kept in help_paragraphs(command):
        yield "\n".join(["```", *lines, "```"]) if kept else _text(" ".join(lines))
    options = [(names, what) for names, what in options_of(command, context) if what and names not in _EVERYWHERE]
    if options:
        yield "\n".join(["| | |", "|---|---|", *(f"| `{names}` | {_text(what)} |" for names, what in options)])


def _text(text: str) -> str:
    """`text` as Markdown shows it literally, but for code."""
    return _TEXT.sub(lambda found: found[1] or f"\\{found[2]}", " ".join(text.split()))


if __name__ == "__main__":
    show_text(markdown())
