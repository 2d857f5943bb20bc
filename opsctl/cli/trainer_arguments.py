"""Commands that take the trainer's own arguments after `--`."""

from __future__ import annotations

from typing import Any

import click

_KEY = "opsctl.rest"


class CommandWithRest(click.Command):
    """Keeps what stands after `--` apart: click itself would mix it with the command's arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """To click goes what stands before the first `--`; without one, `rest()` is empty."""
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[_KEY] = args[:place], tuple(args[place + 1 :])
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The line of click, with `[-- TRAINER_ARGUMENT...]` at its end."""
        pieces: list[Any] = self.collect_usage_pieces(ctx)
        formatter.write_usage(ctx.command_path, " ".join([*pieces, "[-- TRAINER_ARGUMENT...]"]))


def rest() -> tuple[str, ...]:
    """What stood after `--`."""
    found: tuple[str, ...] = click.get_current_context().meta.get(_KEY, ())
    return found
