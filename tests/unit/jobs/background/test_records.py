from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.background.records import KEPT, comment_of, new_name
from tests.unit.jobs.background.sent import a_command, a_place


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    place, command = a_place(tmp_path), a_command(tmp_path, "data", "prepare", "-- a\nb", "c d")
    with place.locked("test"):
        place.write(command)
    assert place.read(command.name) == command
    assert place.root.stat().st_mode & 0o777 == 0o700


def test_its_comment_says_which_of_its_jobs_it_is(tmp_path: Path) -> None:
    command = a_command(tmp_path)
    assert command.comment == f"{comment_of(command.name)} job=1"
    assert not new_name().isdecimal()


def test_one_is_found_by_its_name_its_beginning_or_a_job(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    place.root.mkdir(mode=0o700)
    one, other = a_command(tmp_path).with_last(job_id=12), a_command(tmp_path).with_last(job_id=13)
    for command in (one, other):
        place.write(command)
    assert place.find("12") == one and place.find(other.name) == other
    for wrong in ("e", "99", "", "nothing", "../errands"):
        with pytest.raises(OpsctlError, match="opsctl jobs --all"):
            place.find(wrong)


def test_damaged_ones_are_passed_over_and_the_oldest_that_have_ended_forgotten(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    place.root.mkdir(mode=0o700)
    kept = a_command(tmp_path)
    place.write(kept)
    ended = [a_command(tmp_path).ended("done") for _ in range(KEPT + 2)]
    for command in ended:
        place.write(command)
        place.output(command.name).write_text("text\n")
    place.record(ended[-1].name).write_text("{")
    place.forget_old()
    assert [one.name for one in place.all()] == [kept.name, *(one.name for one in ended[1:-1])]
    assert not place.record(ended[0].name).parent.exists()
