"""Test that every command and option has a help text, and that lists of commands show it whole."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from opsctl.cli import COMMANDS, GROUPS, root
from opsctl.cli.man import commands_below, context_of, members
from tests.unit.cli.called import answer

ALL = list(commands_below(("opsctl",), root))


@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda one: " ".join(one) if isinstance(one, tuple) else "")
def test_every_option_has_a_help_text(words: tuple[str, ...], command: click.Command) -> None:
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert not [one.opts for one in options if len((one.help or "").strip()) < 5]
    assert command.help


@pytest.mark.parametrize(
    ("words", "command"),
    [(words, command) for words, command in ALL[1:] if list(members(command))],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_a_list_of_commands_shows_each_short_help_whole(words: tuple[str, ...], command: click.Command) -> None:
    context = context_of(words, command)
    context.help_option_names = ["-h", "--help"]  # click keeps them for later
    context.terminal_width = 78  # click's own in 80 columns
    listed = command.get_help(context)
    assert not [line for line in listed.partition("Commands:")[2].splitlines() if line.endswith("...")]


def test_every_command_takes_q() -> None:
    lack = [
        " ".join(words) for words, one in ALL if not list(members(one)) and "quiet" not in {p.name for p in one.params}
    ]
    assert not lack


def test_q_prints_data_and_errors_only(tmp_path: Path) -> None:
    made = answer(tmp_path, "init", "tiny", "--from", "demo", "-q")
    assert (made.returncode, made.stdout, made.stderr) == (0, f"{tmp_path}/tiny/run.toml\n", "")
    again = answer(tmp_path, "init", "tiny", "--from", "demo", "-q")
    assert again.returncode == 1
    assert again.stderr.startswith("opsctl: ")
    assert "next:" in answer(tmp_path, "init", "loud", "--from", "demo").stderr


def test_the_line_of_each_command_in_opsctl_help_is_one_sentence_that_fits() -> None:
    names = max(map(len, COMMANDS))
    for lines in GROUPS.values():
        for line in lines.values():
            assert len(line) + names + 4 <= 100
            assert line.endswith(".")
