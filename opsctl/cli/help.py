"""`opsctl help`: every command in a line, or all that one takes."""

from __future__ import annotations

import click


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND ...]")
def command(words: tuple[str, ...]) -> None:
    """Every command in a line, by what a person wants; of a named one what its --help says."""
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
