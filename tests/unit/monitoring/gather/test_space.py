from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.core.dirwalk import file_system
from opsctl.core.dirwalk.file_system import FileSystems, mount_point_of
from opsctl.core.process import Said, ask
from opsctl.core.timestamps import now
from opsctl.monitoring.gather import space
from opsctl.monitoring.gather.space import remember
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.run_view import RunView, view
from opsctl.run.state.space import read_space, read_walk
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.monitoring.run_folder import slurm

BOTH = Part.SPACE | Part.PURGE


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look is cut short because this machine has other work."""
    monkeypatch.setattr(space, "BUDGET_S", 600.0)
    monkeypatch.setattr(file_system, "TIMEOUT_S", 600.0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunView:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return a_run(tmp_path, "purge_days = 30")


def a_run(folder: Path, watch: str = "") -> RunView:
    path = write_run(folder)
    path.write_text(path.read_text() + f"\n[watch]\n{watch}\n")
    found = view(str(path))
    found.paths.state.mkdir(parents=True)
    return found


def looked(run: RunView) -> Snapshot:
    return gather(run, slurm([]), BOTH)


def age(path: Path, days: float) -> None:
    at = time.time() - days * 86400
    os.utime(path, (at, at))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB and 64 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True, timeout=10).returncode:
        pytest.skip("needs to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=10)


def test_a_disk_that_is_nearly_full_and_one_without_inodes_are_seen_so(tmp_path: Path, tiny_disk: Path) -> None:
    run = a_run(tmp_path / "run", f'filesystems = ["{tiny_disk}"]')
    (tiny_disk / "data").write_bytes(b"x" * 1_000_000)
    spaces = {one.name: one for one in looked(run).spaces}
    assert set(spaces) == {str(run.paths.output), str(tiny_disk), f"{run.paths.output} (this run)"}
    disk = spaces[str(tiny_disk)]
    assert disk.limit_bytes == 2**20 and disk.share is not None and disk.share > 0.93 and disk.how == "statvfs"
    for number in range(62):
        (tiny_disk / str(number)).touch()
    disk = {one.name: one for one in looked(run).spaces}[str(tiny_disk)]
    assert (disk.used_inodes, disk.limit_inodes, disk.inode_share) == (64, 64, 1.0)


def test_a_folder_that_is_not_there_is_a_problem_of_its_own(tmp_path: Path) -> None:
    run = a_run(tmp_path, 'filesystems = ["/no/such/place", "-rf\\\\n"]')
    spaces = {one.name: one for one in looked(run).spaces}
    assert spaces["/no/such/place"].problem == "No such file or directory"
    assert spaces[str(run.paths.output)].problem == "" and spaces[str(run.paths.output)].share is not None


def test_a_hanging_file_system_is_waited_for_once_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stand-in: no file system that hangs is to be had here, so `stat` does for the folder of that name.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "stat").write_text(
        '#!/bin/sh\ncase "$*" in */hung*) exec sleep 60;; esac\nexec /usr/bin/stat "$@"\n'
    )
    (tmp_path / "bin" / "stat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def asked(command: Sequence[str], timeout_s: float) -> Said:
        return ask(command, 0.3 if "/hung" in command[-1] else timeout_s)

    monkeypatch.setattr(file_system, "ask", asked)
    monkeypatch.setattr(file_system, "mount_point_of", lambda folder: "/hung" if "hung" in str(folder) else "/")
    run = a_run(tmp_path, 'filesystems = ["/hung/a", "/hung/b"]')
    began = time.monotonic()
    spaces = {one.name: one for one in looked(run).spaces}
    assert time.monotonic() - began < 50  # of the sixty that each would take
    assert "/hung" in spaces["/hung/a"].problem and "/hung" in spaces["/hung/b"].problem
    assert spaces[str(run.paths.output)].share is not None


def test_what_the_run_uses_is_counted_as_du_does(run: RunView) -> None:
    (run.paths.output / "logs").mkdir()
    (run.paths.output / "logs" / "x").write_bytes(b"x" * 100_000)
    (run.paths.output / "logs" / "link").symlink_to("/")
    (run.paths.output / "logs" / "y").hardlink_to(run.paths.output / "logs" / "x")
    counted = subprocess.run(["du", "-s", "-B1", str(run.paths.output)], capture_output=True, text=True, check=True)
    own = looked(run).spaces[-1]
    assert own.how == "walk" and own.used_bytes == int(counted.stdout.split()[0])
    assert own.used_inodes == 6 and own.share is None


def test_a_walk_that_runs_out_of_its_budget_goes_on_where_it_stopped(
    run: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b", "b/c", "d"):
        (run.paths.output / folder).mkdir()
        for number in range(5):
            (run.paths.output / folder / f"f{number}").write_bytes(b"x")
    old = run.paths.output / "b" / "c" / "f3"
    age(old, 29)
    monkeypatch.setattr(space, "BUDGET_ENTRIES", 7)
    hows = []
    for _ in range(6):
        seen = looked(run)
        hows.append(seen.spaces[-1].how)
        if hows[-1] == "walk":
            break
        assert seen.purge is None or not seen.purge.is_all
    assert hows == ["part of a walk"] * (len(hows) - 1) + ["walk"] and len(hows) == 4
    # walk.json in .opsctl came after the walk had passed there, or before.
    assert seen.spaces[-1].used_inodes in (26, 27)
    assert seen.purge is not None and (seen.purge.example, seen.purge.files) == (str(old), 1)
    state = read_walk(run.paths)
    assert state.whole is not None and state.pending == ()
    (run.paths.output / "new").touch()
    assert looked(run).spaces[-1].used_inodes == seen.spaces[-1].used_inodes  # a whole walk counts for hours


def test_files_are_about_to_go_a_week_before_they_do_unless_somebody_reads_them(run: RunView) -> None:
    for name, days in (("young", 20.0), ("old", 24.0), ("older", 28.0)):
        (run.paths.output / name).write_bytes(b"xyz")
        age(run.paths.output / name, days)
    read = run.paths.output / "read"
    read.touch()
    os.utime(read, (time.time(), time.time() - 50 * 86400))
    purge = looked(run).purge
    assert purge is not None
    assert (purge.files, purge.size_bytes, purge.is_all, purge.hits_latest) == (2, 6, True, False)
    assert purge.example == str(run.paths.output / "older")
    assert abs(purge.first_at - now() - timedelta(days=2)) < timedelta(minutes=1)


def test_the_latest_checkpoint_is_looked_at_however_far_the_walk_has_come(
    run: RunView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, 10, 80)
    manifest = run.paths.checkpoints / "global_step10" / "manifest.json"
    age(manifest, 29)
    monkeypatch.setattr(space, "BUDGET_ENTRIES", 1)
    purge = looked(run).purge
    assert purge is not None and purge.hits_latest and purge.example == str(manifest) and not purge.is_all


def test_without_purge_days_nothing_is_about_to_go(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    (run.paths.output / "x").touch()
    age(run.paths.output / "x", 1000)
    assert looked(run).purge is None


def test_where_files_go_after_days_the_notice_is_half_of_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = a_run(tmp_path, "purge_days = 4")
    file = run.paths.output / "notes.txt"
    file.touch()
    age(file, 1.9)
    assert looked(run).purge is None
    run.paths.walk.unlink()
    age(file, 2.1)
    purge = looked(run).purge
    assert purge is not None and purge.files == 1


def test_a_walk_that_has_not_seen_all_is_no_look_to_remember(run: RunView) -> None:
    whole = looked(run)
    part = replace(whole, spaces=tuple(structs.replace(one, how="part of a walk") for one in whole.spaces))
    remember(run.paths, part)
    assert read_space(run.paths) == []
    remember(run.paths, whole)
    assert read_space(run.paths) != []


def test_a_run_that_was_never_submitted_has_the_room_of_the_folder_that_it_will_be_in(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    first, own = looked(run).spaces
    assert (first.name, first.problem, own.used_bytes) == (str(run.paths.output), "", 0)
    assert first.share is not None and not run.paths.output.exists()


def test_looks_are_remembered_and_come_as_history(run: RunView) -> None:
    first = looked(run)
    assert first.space_history == ()
    remember(run.paths, first)
    (*_, last) = looked(run).space_history
    assert {one.name for one in looked(run).space_history} == {one.name for one in first.spaces}
    assert last.share is None or 0 < last.share <= 1


def test_the_kernels_table_tells_where_a_folder_is_mounted(tiny_disk: Path) -> None:
    assert mount_point_of(tiny_disk / "any" / "where") == str(tiny_disk)
    assert mount_point_of(Path("/")) == "/"
    assert FileSystems().problem(tiny_disk) == ""


def test_a_link_in_a_walk_is_not_what_it_leads_to(tmp_path: Path) -> None:
    root, private = tmp_path / "output", tmp_path / "diary"
    root.mkdir()
    private.touch()
    (root / "b").symlink_to(private)
    os.utime(private, (1, 1))
    os.utime(root / "b", (1, 1), follow_symlinks=False)
    assert space.walked(RunPaths(root), now(), now())[0].old_files == 0


def test_no_name_in_a_folder_that_a_checkpoint_links_to_is_told(run: RunView, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10, 80)
    private = tmp_path / "private"
    (run.paths.checkpoints / "global_step10").rename(private)
    (run.paths.checkpoints / "global_step10").symlink_to(private)
    for path in private.iterdir():
        age(path, 29)
    purge = looked(run).purge
    assert purge is None or not purge.hits_latest


def test_what_the_readers_variables_hold_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter22")
    run = a_run(tmp_path, 'filesystems = ["/${SOME_TOKEN}", "$SOME_TOKEN"]')
    seen = looked(run)
    remember(run.paths, seen)
    assert "/${SOME_TOKEN}" in {one.name for one in seen.spaces}
    assert "hunter22" not in repr(seen) and "hunter22" not in run.paths.space.read_text()
