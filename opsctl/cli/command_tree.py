"""Every command of opsctl with the words that call it."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import click


def commands_below(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """`command`, then those of its group and theirs, but for hidden ones. words: what calls it, `opsctl` first."""
    yield words, command
    for name, below in members(command):
        yield from commands_below((*words, name), below)


def members(command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """(name, command) of those that people call in a group; none where it is no group."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield name, below


def context_of(words: tuple[str, ...], command: click.Command) -> click.Context:
    """One in which help says all of `words`."""
    parent: click.Context | None = None
    for word in words[:-1]:
        parent = click.Context(command, info_name=word, parent=parent)
    return click.Context(command, info_name=words[-1], parent=parent)


def help_paragraphs(command: click.Command) -> Iterator[tuple[list[str], bool]]:
    r"""(lines, whether they stay as they are) of each paragraph of its help; click's mark for that is a \b before."""
    for paragraph in (command.help or "").strip().split("\n\n"):
        kept = paragraph.lstrip(" \n").startswith("\b")
        text = dedent(paragraph.replace("\b", "").strip("\n")) if kept else paragraph
        yield [line.rstrip() if kept else line.strip() for line in text.splitlines() if line.strip()], kept


def options_of(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """(names, what it means), as --help has them."""
    return [record for param in command.get_params(context) if (record := param.get_help_record(context))]
