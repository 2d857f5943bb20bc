from __future__ import annotations

from pathlib import Path

from opsctl.jobs.background.errand_jobs import Seen
from opsctl.jobs.background.listing import errand_lines, last_line, printed_errand, read_output
from tests.unit.jobs.background.sent import a_place, an_errand


def test_the_last_line_is_the_last_that_says_something_and_of_a_bar_what_it_shows_now(tmp_path: Path) -> None:
    place, errand = a_place(tmp_path), an_errand(tmp_path)
    place.root.mkdir(mode=0o700)
    place.write(errand)
    assert last_line(place, errand.errand) == ""
    place.output(errand.errand).write_text("first\n" * 10_000 + "10 %\r20 %\n\n  \n")
    assert last_line(place, errand.errand) == "20 %"
    assert read_output(place, errand.errand, 0)[1] == place.output(errand.errand).stat().st_size
    assert read_output(place, errand.errand, 10**9)[0] == ""


def test_a_command_is_shown_as_a_shell_takes_it_and_steers_no_terminal(tmp_path: Path) -> None:
    place, errand = a_place(tmp_path), an_errand(tmp_path, "data", "prepare", "a b", "\x1b[2J")
    printed = printed_errand(place, Seen(errand.ended("failed", "why\nso", 3)))
    assert printed.command == "opsctl data prepare 'a b' '\x1b[2J'"
    text = "\n".join(errand_lines([printed]))
    assert "\x1b" not in text and "why\\nso" in text and "failed" in text


def test_a_command_line_that_fills_screens_is_cut_for_people_and_whole_for_programs(tmp_path: Path) -> None:
    place, errand = a_place(tmp_path), an_errand(tmp_path, "data", "prepare", "x" * 100_000)
    printed = printed_errand(place, Seen(errand))
    assert printed.command.endswith("x" * 100_000)
    (line,) = [one for one in errand_lines([printed]) if errand.errand in one]
    assert len(line) < 400 and line.endswith("... (100,020 characters)")
