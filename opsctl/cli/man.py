"""`opsctl man`: manual pages, made from what `--help` says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click


@click.command()
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for man1/, such as ~/.local/share/man, which man searches.",
)
def command(output: Path) -> None:
    """Write manual pages of opsctl and all its commands, such as `man opsctl-status`."""
    from opsctl.core.files.state_files import write_atomically
    from opsctl.core.output import message

    folder = output.expanduser().absolute() / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    written = pages()
    for name, text in written.items():
        write_atomically(folder, folder / name, text)
    message(f"{len(written)} pages in {folder}")


def pages() -> dict[str, str]:
    """File name -> page, of opsctl and of every command that people call."""
    from opsctl.cli import root

    return {f"{'-'.join(words)}.1": _page(words, one) for words, one in commands_below(("opsctl",), root)}


def _page(words: tuple[str, ...], one: click.Command) -> str:
    """Return a page in man's own language. Source: groff_man(7)."""
    context = context_of(words, one)
    title = "-".join(words)
    short = one.get_short_help_str(limit=300).rstrip(".")
    usage = " ".join(one.collect_usage_pieces(context))
    lines = [
        f'.TH "{title.upper()}" "1"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(short)}",
        ".SH SYNOPSIS",
        f".B {_text(' '.join(words))}",
        _text(usage),
        ".SH DESCRIPTION",
    ]
    for paragraph, kept in help_paragraphs(one):
        lines.append(".PP")
        lines += [".nf", *map(_text, paragraph), ".fi"] if kept else [_text(" ".join(paragraph))]
    if records := options_of(one, context):
        lines.append(".SH OPTIONS")
        for names, what in records:
            lines += [".TP", f".B {_text(names)}", _text(what)]
    if below := list(members(one)):
        lines.append(".SH COMMANDS")
        for name, each in below:
            lines += [".TP", f".BR {_text('-'.join((*words, name)))} (1)", _text(each.get_short_help_str(limit=200))]
    lines += [".SH EXIT STATUS", "0 done, 1 failed or refused, 2 usage or run file, 130 interrupted."]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """`text` as man takes it literally."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ").strip("\n")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


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
