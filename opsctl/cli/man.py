"""`opsctl man`: manual pages, made from what `--help` says."""

from __future__ import annotations

from pathlib import Path

import click

from opsctl.cli.command_tree import commands_below, context_of, help_paragraphs, members, options_of


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
    """A page in man's own language. Source: groff_man(7)."""
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
