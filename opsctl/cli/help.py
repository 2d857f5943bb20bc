"""`opsctl help`: every command in a line, or all that one takes."""

from __future__ import annotations

import click


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND ...]")
def command(words: tuple[str, ...]) -> None:
    """List every command in one line, or show the help of one."""
    from opsctl.cli import COMMANDS, GROUPS, root
    from opsctl.core.output import show_lines

    if words:
        root.main([*words, "--help"], prog_name="opsctl", standalone_mode=False)
        return
    width = max(map(len, COMMANDS))
    lines: list[str] = []
    for heading, names in GROUPS.items():
        lines += [f"{heading}:", *(f"  {name:<{width}}  {line}" for name, line in names.items()), ""]
    show_lines(lines[:-1])
