from __future__ import annotations

from pathlib import Path

from opsctl.jobs.background.listing import command_lines, last_line, printed_command, read_output
from opsctl.jobs.background.submission import Seen
from tests.unit.jobs.background.sent import a_command, a_place


def test_the_last_line_is_the_last_that_says_something_and_of_a_bar_what_it_shows_now(tmp_path: Path) -> None:
    place, command = a_place(tmp_path), a_command(tmp_path)
    place.root.mkdir(mode=0o700)
    place.write(command)
    assert last_line(place, command.name) == ""
    place.output(command.name).write_text("first\n" * 10_000 + "10 %\r20 %\n\n  \n")
    assert last_line(place, command.name) == "20 %"
    assert read_output(place, command.name, 0)[1] == place.output(command.name).stat().st_size
    assert read_output(place, command.name, 10**9)[0] == ""


def test_a_command_is_shown_as_a_shell_takes_it_and_steers_no_terminal(tmp_path: Path) -> None:
    place, command = a_place(tmp_path), a_command(tmp_path, "data", "prepare", "a b", "\x1b[2J")
    printed = printed_command(place, Seen(command.ended("failed", "why\nso", 3)))
    assert printed.command == "opsctl data prepare 'a b' '\x1b[2J'"
    text = "\n".join(command_lines([printed]))
    assert "\x1b" not in text and "why\\nso" in text and "failed" in text


def test_a_command_line_that_fills_screens_is_cut_for_people_and_whole_for_programs(tmp_path: Path) -> None:
    place, command = a_place(tmp_path), a_command(tmp_path, "data", "prepare", "x" * 100_000)
    printed = printed_command(place, Seen(command))
    assert printed.command.endswith("x" * 100_000)
    (line,) = [one for one in command_lines([printed]) if command.name in one]
    assert len(line) < 400 and line.endswith("... (100,020 characters)")
