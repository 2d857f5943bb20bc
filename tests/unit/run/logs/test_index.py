"""The summary of a whole log: read once, continued from there, and never taken for another log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from opsctl.run.config.paths import RunPaths
from opsctl.run.logs import index
from opsctl.run.logs.index import LogIndex, read_current, read_on, take_newest

NOISE = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"


def training(first: int, last: int, loss: float = 3.0) -> str:
    return "".join(
        f" iteration {i:8d}/  100000 | consumed samples: {8 * i:12d} | elapsed time per iteration (s): 2.00"
        f" | lm loss: {loss:.6E} |\n"
        for i in range(first, last + 1)
    )


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a run with an empty log, and an account with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = RunPaths(tmp_path / "output")
    found.logs.mkdir(parents=True)
    found.main_log.touch()
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the byte from which each check has read."""
    begins: list[int] = []

    def noted(fd: int, found: LogIndex, budget_s: float) -> None:
        begins.append(found.read_bytes)
        read_on(fd, found, budget_s)

    monkeypatch.setattr(index, "read_on", noted)
    return begins


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/opsctl/logs").glob("*"))


def grow(paths: RunPaths, text: str) -> int:
    with paths.main_log.open("a") as file:
        file.write(text)
    return paths.main_log.stat().st_size


def test_a_second_look_reads_only_what_has_come_since(paths: RunPaths, read: list[int]) -> None:
    size = grow(paths, NOISE * 2000 + training(1, 800))
    assert read_current(paths, 60).last_line is not None
    grow(paths, training(801, 900, 2.0))
    found = read_current(paths, 60)
    assert read == [0, size]
    assert found.last_line is not None and found.last_line.iteration == 900 and found.is_caught_up
    whole = LogIndex()
    with paths.main_log.open("rb") as file:
        read_on(file.fileno(), whole, 60)
    take_newest(whole)
    assert found.curve.points() == whole.curve.points()


def test_a_line_that_is_being_written_is_taken_when_it_is_whole(paths: RunPaths) -> None:
    text = NOISE * 2000 + training(1, 2)
    grow(paths, text[:-20])
    half = read_current(paths, 60)
    assert half.last_line is not None and half.last_line.iteration == 1
    grow(paths, text[-20:])
    found = read_current(paths, 60)
    assert found.last_line is not None and found.last_line.iteration == 2 and found.read_bytes == len(text)


def test_a_line_over_the_border_of_two_blocks_is_read_as_one(paths: RunPaths) -> None:
    for shift in (0, 50, 150):
        paths.main_log.write_text("x" * (256 * 1024 - shift - 1) + "\n" + training(1, 3) + NOISE)
        found = read_current(paths, 60)
        assert found.last_line is not None and found.last_line.iteration == 3
        assert [one.iteration for one in found.curve.points()] == [1, 2, 3]


def test_a_look_has_only_so_much_time_and_the_next_goes_on(paths: RunPaths, read: list[int]) -> None:
    grow(paths, (NOISE * 10_000 + training(1, 5)) * 4)
    while not (found := read_current(paths, 0.0)).is_caught_up:
        assert len(read) < 50
    assert len(read) > 4 and read == sorted(set(read))
    assert found.last_line is not None and found.last_line.iteration == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.write_text(training(1, 7)),  # truncated and restarted, as by copytruncate
        lambda log: os.truncate(log, 500),
        lambda log: (log.rename(log.with_suffix(".1")), log.write_text("again\n" + training(1, 9000))),  # rotated
        lambda log: log.write_text(log.read_text().replace("3.000000E", "1.000000E") + training(901, 999)),
    ],
    ids=["begun again", "cut", "rotated", "rewritten"],
)
def test_of_another_log_in_its_place_nothing_is_taken_over(change: object, paths: RunPaths, read: list[int]) -> None:
    grow(paths, NOISE * 2000 + training(1, 900))
    read_current(paths, 60)
    assert callable(change)
    change(paths.main_log)
    found = read_current(paths, 60)
    assert read == [0, 0]
    last = [int(line.split()[1].strip("/")) for line in paths.main_log.read_text().splitlines() if "iteration" in line]
    assert (found.last_line.iteration if found.last_line else None) == (last[-1] if last else None)


def test_a_copy_of_the_log_in_its_place_is_the_same_log(paths: RunPaths, read: list[int]) -> None:
    size = grow(paths, NOISE * 2000 + training(1, 900))
    read_current(paths, 60)
    shutil.copy(paths.main_log, paths.main_log.with_suffix(".new"))
    paths.main_log.with_suffix(".new").rename(paths.main_log)
    read_current(paths, 60)
    assert read == [0, size]


def test_the_summary_is_the_accounts_own_and_closed_to_others(paths: RunPaths, tmp_path: Path) -> None:
    grow(paths, NOISE * 2000 + training(1, 9))
    read_current(paths, 60)
    (file,) = kept(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_others_can_write_is_neither_read_nor_written(
    paths: RunPaths, tmp_path: Path, read: list[int]
) -> None:
    grow(paths, NOISE * 2000 + training(1, 9))
    read_current(paths, 60)
    (file,) = kept(tmp_path)
    file.parent.chmod(0o777)
    file.write_text("{}")
    assert read_current(paths, 60).curve.points() and read == [0, 0] and file.read_text() == "{}"


def test_a_damaged_summary_or_one_of_another_release_is_made_anew(
    paths: RunPaths, tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(paths, NOISE * 2000 + training(1, 9))
    read_current(paths, 60)
    (file,) = kept(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    assert len(read_current(paths, 60).curve.points()) == 9
    monkeypatch.setattr(index, "VERSION", index.VERSION + 1)
    assert len(read_current(paths, 60).curve.points()) == 9
    assert read == [0, 0, 0]


def test_no_log_a_folder_in_its_place_and_a_full_disk_are_no_errors(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(paths, NOISE * 2000 + training(1, 9))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(index, "write_atomically", full)
        assert len(read_current(paths, 60).curve.points()) == 9
    paths.main_log.unlink()
    assert read_current(paths).curve.points() == []
    paths.main_log.mkdir()
    assert read_current(paths).curve.points() == []


def test_of_a_log_that_nobody_looked_at_for_months_nothing_is_kept(paths: RunPaths, tmp_path: Path) -> None:
    grow(paths, NOISE * 2000 + training(1, 9))
    read_current(paths, 60)
    (old,) = kept(tmp_path)
    os.utime(old, (0, 0))
    other = RunPaths(tmp_path / "other")
    other.logs.mkdir(parents=True)
    shutil.copy(paths.main_log, other.main_log)
    read_current(other, 60)
    assert len(kept(tmp_path)) == 1 and old not in kept(tmp_path)


def test_a_line_that_a_page_has_broken_is_read_whole_also_between_two_looks(paths: RunPaths) -> None:
    whole = training(1, 1).rstrip("\n") + " number of nan iterations:   0 |\n"
    first, second = whole[:90] + "\n", whole[90:]
    grow(paths, NOISE * 2000 + first)
    read_current(paths, 60)
    grow(paths, second + NOISE * 2000)
    found = read_current(paths, 60)
    assert found.curve.points() == [(1, 3.0, 2.0)]


def test_torchtitans_steps_are_iterations_with_the_seconds_between_their_clocks(paths: RunPaths) -> None:
    titan = "2025-04-27 00:00:{at:02d},123 - root - INFO - step: {step:2d}  loss: {loss:.4f}  memory: 30.0GiB(31.00%)\n"
    grow(paths, "".join(titan.format(at=3 * n, step=n, loss=9.0 - n) for n in range(1, 6)))
    assert read_current(paths, 60).curve.points()[-1] == (5, 4.0, 3.0)


def test_a_line_without_an_end_is_read_no_longer_than_a_look_may_take(paths: RunPaths, read: list[int]) -> None:
    grow(paths, NOISE + training(1, 3) + "a" * 3_000_000)
    sizes = [read_current(paths, 0.0).read_bytes for _ in range(4)]
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3] < 3_000_000 and read == [0, *sizes[:3]]
    grow(paths, "\n" + training(4, 5))
    found = read_current(paths, 60)
    assert found.last_line is not None and found.last_line.iteration == 5
    assert [one.iteration for one in found.curve.points()] == [1, 2, 3, 4, 5]
