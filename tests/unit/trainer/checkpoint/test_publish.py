"""Publishing what was written: by whom it may be, and that nothing of it is left when it may not."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.facts import missing
from tests.unit.trainer.formats.attempt.test_lease import held_by_a_stopped_process
from trainer.checkpoint.destination import Destination, Overtaken, OwnLease
from trainer.checkpoint.publish import make_room, publish, write
from trainer.core.files import HeldFolder
from trainer.formats.attempt.lease import LEASE_FILE, End, Holder, ended_line, taken_line
from trainer.formats.checkpoint.manifest import Manifest, SavedFile
from trainer.formats.errors import CheckpointError
from trainer.parallel.agreement import Refusal

pytestmark = pytest.mark.usefixtures("alone")

OWN, OTHER = (Holder(number, f"attempt-{number}", 10 + number, "ada", "x01") for number in (1, 2))


def manifest_of(iteration: int) -> Manifest:
    counters: dict[str, Any] = {"consumed_train_samples": 0, "consumed_train_tokens": 0, "consumed_valid_samples": 0}
    return Manifest(iteration=iteration, **counters, precision="fp32", layout={}, model={}, learning_rate={}, files={})


def say(folder: Path, *lines: str) -> None:
    """Append a line to the lease."""
    with (folder / LEASE_FILE).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def destination_in(folder: Path, lock_wait_s: float = 5) -> Destination:
    return Destination(HeldFolder(folder / "checkpoints"), OwnLease(folder / LEASE_FILE, 1, lock_wait_s))


def save(destination: Destination, iteration: int, before_it_counts: Callable[[], None] = lambda: None) -> None:
    name = make_room(destination, iteration)

    def written() -> dict[str, SavedFile]:
        files = write({"weights": lambda: {"iteration": iteration}}, destination.folder.place() / name)
        before_it_counts()
        return files

    publish(destination, name, manifest_of(iteration), written)


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (taken_line(OTHER), ["job 12", "ada", "x01", "2"]),
        (ended_line(End(1, "silent for 180 s", "job 12")), ["job 12", "silent for 180 s"]),
    ],
    ids=["taken", "ended"],
)
def test_a_writer_that_is_overtaken_while_it_writes_publishes_nothing_and_leaves_nothing(
    tmp_path: Path, line: str, facts: list[str]
) -> None:
    say(tmp_path, taken_line(OWN))
    destination = destination_in(tmp_path)
    save(destination, 1)
    with pytest.raises(Overtaken) as overtaken:
        save(destination, 2, lambda: say(tmp_path, line))
    assert not missing(str(overtaken.value), *facts)
    assert names(tmp_path) == {"global_step1", "latest"}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step1"


def test_whoever_overtakes_may_clear_away_what_is_half_written_and_that_is_no_failure(tmp_path: Path) -> None:
    say(tmp_path, taken_line(OWN))

    def overtaken() -> None:
        say(tmp_path, taken_line(OTHER))
        for folder in (tmp_path / "checkpoints").glob(".tmp-*"):
            shutil.rmtree(folder)
        raise CheckpointError("cannot write: No such file or directory")

    with pytest.raises(Overtaken):
        save(destination_in(tmp_path), 2, overtaken)


def test_what_another_writer_has_begun_is_not_cleared_away_once_a_checkpoint_is_published(tmp_path: Path) -> None:
    say(tmp_path, taken_line(OWN))
    destination = destination_in(tmp_path)
    save(destination, 2)
    save(destination, 2, (tmp_path / "checkpoints" / ".tmp-global_step3.of-the-next").mkdir)
    assert names(tmp_path) == {"global_step2", "latest", ".tmp-global_step3.of-the-next"}


def test_nobody_can_take_the_lease_while_a_checkpoint_is_being_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(tmp_path, taken_line(OWN))
    pointed: list[bool] = []
    locks: list[int] = []
    lock, rename = fcntl.lockf, Path.rename

    def noted_lock(fd: int, operation: int) -> None:
        lock(fd, operation)
        locks.append(fd)

    def noted_rename(self: Path, target: Path) -> Path:
        found = Path(f"/proc/self/fd/{locks[-1]}").readlink()
        pointed.append(found == tmp_path / LEASE_FILE)
        return rename(self, target)

    monkeypatch.setattr(fcntl, "lockf", noted_lock)
    monkeypatch.setattr(Path, "rename", noted_rename)
    save(destination_in(tmp_path), 1)
    assert pointed == [True], "the lock is held where the folder gets its name"


def test_a_lock_that_is_never_given_back_keeps_nobody_from_saving(tmp_path: Path) -> None:
    say(tmp_path, taken_line(OWN))
    with held_by_a_stopped_process(tmp_path / LEASE_FILE):
        save(destination_in(tmp_path, lock_wait_s=0.2), 1)
        assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step1"
        say(tmp_path, taken_line(OTHER))
        with pytest.raises(Overtaken):
            save(destination_in(tmp_path, lock_wait_s=0.2), 2)


def test_latest_never_goes_back(tmp_path: Path) -> None:
    destination = Destination(HeldFolder(tmp_path / "checkpoints"))
    save(destination, 10)
    with pytest.raises(Refusal, match=f"^{tmp_path}/checkpoints/latest .*global_step10"):
        save(destination, 9)
    assert names(tmp_path) == {"global_step10", "latest"}
    save(destination, 10)
    (tmp_path / "checkpoints" / "latest").write_text("global_step10\n")
    save(destination, 11)
    (tmp_path / "checkpoints" / "latest").write_text("global_step10")  # as a repointing leaves it
    save(destination, 11)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step11"


def test_no_two_saves_write_into_the_same_folder(tmp_path: Path) -> None:
    destination = Destination(HeldFolder(tmp_path / "checkpoints"))
    assert make_room(destination, 5) != make_room(destination, 5)


def test_a_folder_that_has_vanished_with_all_around_it_is_not_made_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    destination = Destination(HeldFolder(run / "checkpoints"))
    run.mkdir()
    save(destination, 1)
    shutil.rmtree(run / "checkpoints")
    save(destination, 2)
    assert names(run) == {"global_step2", "latest"}
    shutil.rmtree(run)
    with pytest.raises(Refusal, match=f"{run}/checkpoints: No such file or directory"):
        save(destination, 3)
    assert not run.exists()


def test_each_step_of_publishing_is_on_the_disk_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill shows no fsync that is missing, a node that loses power does."""
    steps: list[str] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def told(path: Path) -> str:
        return "beside" if path.name.endswith(".tmp") else "new" if path.name.startswith(".tmp-") else path.name

    def noted_fsync(fd: int) -> None:
        steps.append(f"fsync {told(Path(f'/proc/self/fd/{fd}').readlink())}")
        fsync(fd)

    def noted_rename(self: Path, target: Path) -> Path:
        steps.append(f"{told(self)} -> {target.name}")
        return rename(self, target)

    def noted_replace(self: Path, target: Path) -> Path:
        steps.append(f"{told(self)} -> {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(Path, "replace", noted_replace)
    save(Destination(HeldFolder(tmp_path / "checkpoints")), 1)
    assert steps == [
        *("fsync weights", "fsync beside", "beside -> manifest.json", "fsync new"),
        *("new -> global_step1", "fsync checkpoints"),
        *("fsync beside", "beside -> latest", "fsync checkpoints"),
    ]


def test_a_file_that_is_shorter_than_what_was_written_is_not_published(tmp_path: Path) -> None:
    destination = Destination(HeldFolder(tmp_path / "checkpoints"))

    def lose_the_end() -> None:
        for path in (tmp_path / "checkpoints").glob(".tmp-*/weights"):
            os.truncate(path, 10)

    with pytest.raises(Refusal, match=r"weights\b.*\b10 bytes\b"):
        save(destination, 1, lose_the_end)
    assert names(tmp_path) == set()
