from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.convert import output
from trainer.convert.output import being_written
from trainer.formats.errors import CheckpointError

WRITES_AND_WAITS = """
import sys, time
from pathlib import Path
from trainer.convert.output import being_written
with being_written(Path(sys.argv[1]), 0) as folder:
    (folder / "half").write_text("half")
    print(folder, flush=True)
    time.sleep(600)
"""


def started(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """Return a process that has begun to write `target`, and the folder that it writes into."""
    words = [sys.executable, "-c", WRITES_AND_WAITS, str(target)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def write_one(target: Path) -> None:
    with being_written(target, 0) as folder:
        (folder / "file").write_text("whole")


def test_a_folder_is_there_when_the_block_has_ended_and_not_before(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder"
    with being_written(target, 0) as folder:
        (folder / "file").write_text("whole")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_slash_at_the_end_changes_nothing(tmp_path: Path) -> None:
    write_one(Path(f"{tmp_path}/folder/"))
    assert (tmp_path / "folder" / "file").is_file()


def test_a_signal_that_comes_right_after_the_folder_was_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_path: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "create_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_one(tmp_path / "folder")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CheckpointError("no"), OSError(errno.ENOSPC, "No space left")])
def test_what_ends_the_block_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises((KeyboardInterrupt, CheckpointError)), being_written(tmp_path / "folder", 0) as folder:
        (folder / "file").write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nothing")])
def test_what_is_there_is_never_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    target = tmp_path / "folder"
    make(target)
    with pytest.raises(CheckpointError, match=r"/folder .*--output"):
        write_one(target)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_too_little_room_is_refused_with_what_is_needed_before_anything_is_written(tmp_path: Path) -> None:
    refused = pytest.raises(CheckpointError, match=r"GiB free, 1,048,576\.0 GiB are needed")
    with refused, being_written(tmp_path / "folder", 1 << 50):
        pass
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process, half = started(tmp_path / "folder")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert half.is_dir()
    write_one(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_somebody_else_is_writing_is_left_alone(tmp_path: Path) -> None:
    process, half = started(tmp_path / "folder")
    try:
        write_one(tmp_path / "folder")
        assert (half / "half").read_text() == "half"
    finally:
        process.kill()
        process.communicate()


def test_all_that_was_written_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        steps.append("unfinished" if name.startswith(".unfinished-") else name)
        fsync(fd)

    def noted_rename(self: Path, target: Path) -> Path:
        steps.append(f"-> {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    with being_written(tmp_path / "folder", 0) as folder:
        (folder / "below").mkdir()
        (folder / "below" / "file").write_text("whole")
    assert steps == ["file", "below", "unfinished", "-> folder", tmp_path.name]
