"""`opsctl man`: manual pages, made from what `--help` says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click


@click.command()
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Where man1/ is made, such as ~/.local/share/man, where man looks by itself.",
)
def command(output: Path) -> None:
    """Write a manual page for opsctl and for each of its commands: `man opsctl-status`."""
    from opsctl.output import message
    from opsctl.records.state_files import write_atomically

    folder = output.expanduser().absolute() / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    written = pages()
    for name, text in written.items():
        write_atomically(folder, folder / name, text)
    message(f"{len(written)} pages in {folder}")


def pages() -> dict[str, str]:
    """File name -> page, of opsctl and of every command that people call."""
    from opsctl.cli import root

    return {f"{'-'.join(words)}.1": _page(words, one) for words, one in _commands(("opsctl",), root)}


def _commands(words: tuple[str, ...], one: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, one
    if isinstance(one, click.Group):
        context = click.Context(one, info_name=words[-1])
        for name in one.list_commands(context):
            below = one.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _commands((*words, name), below)


def _page(words: tuple[str, ...], one: click.Command) -> str:
    """A page in man's own language. Source: groff_man(7)."""
    parent: click.Context | None = None
    for word in words[:-1]:
        parent = click.Context(one, info_name=word, parent=parent)
    context = click.Context(one, info_name=words[-1], parent=parent)
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
        *_paragraphs(one.help or ""),
    ]
    records = [record for param in one.get_params(context) if (record := param.get_help_record(context))]
    if records:
        lines.append(".SH OPTIONS")
        for names, what in records:
            lines += [".TP", f".B {_text(names)}", _text(what)]
    if isinstance(one, click.Group):
        lines.append(".SH COMMANDS")
        for name in one.list_commands(context):
            below = one.get_command(context, name)
            if below is not None and not below.hidden:
                lines += [".TP", f".BR {_text('-'.join((*words, name)))} (1)"]
                lines.append(_text(below.get_short_help_str(limit=200)))
    lines += [".SH EXIT STATUS", "0 done, 1 failed or refused, 2 usage or run file, 130 interrupted."]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """The help's paragraphs; one that click would leave as it is keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        kept = paragraph.lstrip(" \n").startswith("\b")
        lines = (
            paragraph.strip("\b\n ").splitlines() if not kept else paragraph.replace("\b", "").strip("\n").splitlines()
        )
        yield ".PP"
        if kept:
            yield from (".nf", *(_text(line) for line in lines), ".fi")
        else:
            yield _text(" ".join(line.strip() for line in lines))


def _text(text: str) -> str:
    """`text` as man takes it literally."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ").strip("\n")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
