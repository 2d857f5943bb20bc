from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.background.records import KEPT, comment_of, new_name
from tests.unit.jobs.background.sent import a_place, an_errand


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    place, errand = a_place(tmp_path), an_errand(tmp_path, "data", "prepare", "-- a\nb", "c d")
    with place.locked("test"):
        place.write(errand)
    assert place.read(errand.errand) == errand
    assert place.root.stat().st_mode & 0o777 == 0o700


def test_its_comment_says_which_of_its_jobs_it_is(tmp_path: Path) -> None:
    errand = an_errand(tmp_path)
    assert errand.comment == f"{comment_of(errand.errand)} job=1"
    assert not new_name().isdecimal()


def test_one_is_found_by_its_name_its_beginning_or_a_job(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    place.root.mkdir(mode=0o700)
    one, other = an_errand(tmp_path).with_last(job_id=12), an_errand(tmp_path).with_last(job_id=13)
    for errand in (one, other):
        place.write(errand)
    assert place.find("12") == one and place.find(other.errand) == other
    for wrong in ("e", "99", "", "nothing", "../errands"):
        with pytest.raises(OpsctlError, match="opsctl jobs --all"):
            place.find(wrong)


def test_damaged_ones_are_passed_over_and_the_oldest_that_have_ended_forgotten(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    place.root.mkdir(mode=0o700)
    kept = an_errand(tmp_path)
    place.write(kept)
    ended = [an_errand(tmp_path).ended("done") for _ in range(KEPT + 2)]
    for errand in ended:
        place.write(errand)
        place.output(errand.errand).write_text("text\n")
    place.record(ended[-1].errand).write_text("{")
    place.forget_old()
    assert [one.errand for one in place.all()] == [kept.errand, *(one.errand for one in ended[1:-1])]
    assert not place.record(ended[0].errand).parent.exists()
