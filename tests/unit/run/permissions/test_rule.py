from __future__ import annotations

import os
import stat

import pytest

from opsctl.run.permissions.rule import Lack, is_sealed, lack

GROUP = 70


def entry(mode: int, gid: int = GROUP) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, 1000, gid, 0, 0, 0, 0))


def lacks(mode: int, place: str = "x", gid: int = GROUP, is_kept_apart: bool = False) -> Lack | None:
    return lack(GROUP, place, entry(mode, gid), is_kept_apart)


@pytest.mark.parametrize("mode", [0o2770, 0o2775, 0o3770, 0o3750])
def test_folders_that_the_group_can_work_in_lack_nothing(mode: int) -> None:
    assert lacks(stat.S_IFDIR | mode) is None


@pytest.mark.parametrize(("mode", "missing"), [(0o700, 0o2070), (0o2750, 0o020), (0o770, 0o2000), (0o1700, 0o2050)])
def test_folders_lack_what_is_missing_of_2770(mode: int, missing: int) -> None:
    assert lacks(stat.S_IFDIR | mode) == Lack(mode=missing)


@pytest.mark.parametrize(
    ("mode", "missing"),
    [(0o600, 0o060), (0o640, 0o020), (0o700, 0o070), (0o400, 0o040), (0o755, 0o020), (0o200, 0o020)],
)
def test_the_group_may_do_with_a_file_what_its_owner_may(mode: int, missing: int) -> None:
    assert lacks(stat.S_IFREG | mode) == Lack(mode=missing)
    assert lacks(stat.S_IFREG | mode | missing) is None


def test_nothing_is_opened_to_everybody_and_what_is_writable_by_all_is_closed() -> None:
    for mode in range(0o1000):
        for kind in (stat.S_IFREG, stat.S_IFDIR):
            found = lacks(kind | mode)
            mended = found.fixed(kind | mode) if found else mode
            assert mended & 0o007 == mode & 0o005, oct(mode)
            assert lacks(kind | mended) is None
    assert lacks(stat.S_IFDIR | 0o3777) is None  # such as /tmp


def test_another_group_is_said() -> None:
    found = lacks(stat.S_IFREG | 0o600, gid=GROUP + 1)
    assert found == Lack(group=True, mode=0o060)
    assert len(found.words(False)) == 2


@pytest.mark.parametrize("place", [".opsctl/revisions", ".opsctl/revisions/0001-ab/run.json", "in/.opsctl/requests/x"])
def test_what_is_published_and_asked_for_is_only_to_be_read(place: str) -> None:
    assert is_sealed(place)
    assert lacks(stat.S_IFREG | 0o440, place) is None and lacks(stat.S_IFDIR | 0o2750, place) is None
    assert lacks(stat.S_IFREG | 0o600, place) == Lack(mode=0o040)


def test_what_lies_where_everybody_keeps_his_own_is_only_to_be_read() -> None:
    assert lacks(stat.S_IFREG | 0o640, is_kept_apart=True) is None
    assert not is_sealed(".opsctl/attempts.jsonl") and not is_sealed("revisions/x")
