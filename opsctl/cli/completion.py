"""`opsctl completion`: what a shell reads once, so that Tab completes commands, options and values."""

from __future__ import annotations

import click

from opsctl.cli.complete import SHELLS


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print what makes Tab complete commands, options, runs, jobs, nodes and checkpoints.

    \b
      bash   opsctl completion bash > ~/.local/share/bash-completion/completions/opsctl
      zsh    opsctl completion zsh > DIR/_opsctl          where DIR is one of $fpath
      fish   opsctl completion fish > ~/.config/fish/completions/opsctl.fish

    For this shell alone: source <(opsctl completion bash). What is not known within a second is not offered;
    $OPSCTL_COMPLETION_SECONDS says another time.
    """  # noqa: D301 - click looks for that very character
    from opsctl.cli.complete import script
    from opsctl.core.output import show_text

    show_text(script(shell))
