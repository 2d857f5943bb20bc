"""kill -9 anywhere in a save leaves a checkpoint that loads, and what it left behind is never loaded."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool, RanksFailed
from tests.distributed.whole_training import Seen, run_training, write_corpus

pytestmark = pytest.mark.distributed

# What a save does that the system can see. The folder is the one that is being written.
FILE, MANIFEST, FOLDER, ROOT, LATEST = (
    "open a file",
    "open the manifest",
    "rename the folder",
    "open root",
    "rename latest",
)

# Where the second save is killed: before the last of these acts, in this order -> the checkpoint that loads afterwards.
MOMENTS: dict[str, tuple[list[str], int]] = {
    "in the middle of a file": ([], 2),
    "after the first file": ([FILE, FILE], 2),
    "before the manifest": ([MANIFEST], 2),
    "after the manifest": ([FOLDER], 2),
    "after the rename": ([FOLDER, ROOT], 2),
    "beside latest": ([FOLDER, LATEST], 2),
    "after latest": ([FOLDER, LATEST, ROOT], 4),
}


def act_of(tag: str, event: str, args: Sequence[Any]) -> str | None:
    """Return which of the acts Python is about to do for the save of `tag`, by its audit event."""
    held = re.compile(r"/proc/self/fd/\d+")  # how a rank calls the root, wherever that has been moved to
    first, *others = (held.sub("ROOT", str(arg)) for arg in args[:2])
    in_folder = first.startswith(f"ROOT/.tmp-{tag}.")
    if event == "os.rename":
        if in_folder and "/" not in first.removeprefix("ROOT/"):
            return FOLDER
        return LATEST if others == ["ROOT/latest"] else None
    if in_folder and "/.manifest" in first:
        return MANIFEST
    return FILE if in_folder and first.endswith(".pt") else ROOT if first == "ROOT" else None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_next_file() -> None:
    """Have the kernel end this process where a file grows beyond some blocks."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def run_and_die(options: dict[str, Any], acts: list[str], victim: int = 0, tag: str = "global_step4") -> Seen:
    """Train; in the save of `tag` the victim is killed before the last of the acts, in the first file without any."""
    left = list(acts) or [FILE]

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename") and left and act_of(tag, event, args) == left[0]:
            left.pop(0)
            if not left:
                die() if acts else die_in_the_next_file()

    if int(os.environ["RANK"]) == victim:
        sys.addaudithook(watch)
    return run_training(options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(pool: Pool, corpus: str) -> list[float]:
    return pool.run(1, run_training, {"data_path": [corpus], "train_iters": 6})[0].losses  # type: ignore[no-any-return]


def saving(corpus: str, folder: Path) -> dict[str, Any]:
    return {
        "data_path": [corpus],
        "train_iters": 6,
        "save": str(folder),
        "load": str(folder),
        "save_interval": 2,
    }


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_in_a_save_leaves_a_checkpoint_that_loads(
    pool: Pool, corpus: str, whole: list[float], tmp_path: Path, moment: str
) -> None:
    acts, iteration = MOMENTS[moment]
    with pytest.raises(RanksFailed, match="died"):
        pool.run(1, run_and_die, saving(corpus, tmp_path), acts)
    left_over = list(tmp_path.glob(".tmp-*"))
    assert bool(left_over) == (moment not in ("after the rename", "beside latest", "after latest"))

    (seen,) = pool.run(1, run_training, saving(corpus, tmp_path))
    assert seen.status == 0, seen.errors
    assert f"successfully loaded checkpoint from {tmp_path} at iteration {iteration}\n" in seen.output
    assert seen.losses == whole[iteration:]
    assert (tmp_path / "latest").read_text() == "global_step6"
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_kill_of_another_rank_in_a_save_leaves_a_checkpoint_that_loads(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    with pytest.raises(RanksFailed, match="rank 1: died"):
        pool.run(2, run_and_die, saving(corpus, tmp_path), [], 1)
    ranks = pool.run(2, run_training, saving(corpus, tmp_path))
    assert [rank.status for rank in ranks] == [0, 0]
    assert [len(rank.losses) for rank in ranks] == [4, 4]


def roll_back(root: Path, iteration: int) -> None:
    """Let a checkpoint be the latest again, as a repointing does."""
    (root / "latest").write_text(f"global_step{iteration}")


def test_a_tag_that_exists_is_replaced_as_a_whole(pool: Pool, corpus: str, tmp_path: Path) -> None:
    """A training that was rolled back meets its own later checkpoints."""
    pool.run(1, run_training, saving(corpus, tmp_path))
    stale = tmp_path / "global_step4" / "stale"
    stale.write_text("from before it was rolled back")
    roll_back(tmp_path, 2)
    (again,) = pool.run(1, run_training, saving(corpus, tmp_path))
    assert again.status == 0, again.errors
    assert len(again.losses) == 4
    assert not stale.exists()
    assert not list(tmp_path.glob(".tmp-*"))
    (last,) = pool.run(1, run_training, {**saving(corpus, tmp_path), "train_iters": 7, "override_lr_scheduler": True})
    assert f"at iteration {6}\n" in last.output


def run_on_a_small_disk(options: dict[str, Any], rank: int) -> Seen:
    """Train where, on one rank, no file can grow beyond a size; the kernel refuses the rest, as a full disk does."""
    if int(os.environ["RANK"]) == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    return run_training(options)


@pytest.mark.parametrize(("ranks", "failing"), [(1, 0), (2, 1)])
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_checkpoint_before(
    pool: Pool, corpus: str, tmp_path: Path, ranks: int, failing: int
) -> None:
    pool.run(ranks, run_training, {**saving(corpus, tmp_path), "exit_interval": 2})
    failed = pool.run(ranks, run_on_a_small_disk, saving(corpus, tmp_path), failing)
    assert [rank.status for rank in failed] == [1] * ranks
    assert [len(rank.losses) for rank in failed] == [2] * ranks
    assert f"{tmp_path}/.tmp-global_step4." in failed[0].errors
    assert "File too large" in failed[0].errors
    assert failed[0].errors.count("\n") == 1
    assert [rank.errors for rank in failed[1:]] == [""] * (ranks - 1)
    assert not list(tmp_path.glob(".tmp-*"))  # its room is free for the record of the failure
    for seen in pool.run(ranks, run_training, saving(corpus, tmp_path)):
        assert len(seen.losses) == 4


class CannotSwap(ctypes.CDLL):
    """A C library without the call that swaps two names, as on a file system that cannot (NFS)."""

    def __getattr__(self, name: str) -> Any:
        if name == "renameat2":
            raise AttributeError(name)
        return super().__getattr__(name)


def run_where_names_cannot_be_swapped(options: dict[str, Any], acts: list[str] | None = None) -> Seen:
    setattr(ctypes, "CDLL", CannotSwap)  # noqa: B010 - a name that mypy lets no one assign
    return run_training(options) if acts is None else run_and_die(options, acts)


def test_where_names_cannot_be_swapped_the_old_folder_goes_aside_until_the_new_one_is_there(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    pool.run(1, run_training, saving(corpus, tmp_path))
    stale = tmp_path / "global_step4" / "stale"
    stale.write_text("from before it was rolled back")
    roll_back(tmp_path, 2)
    with pytest.raises(RanksFailed, match="died"):
        pool.run(1, run_where_names_cannot_be_swapped, saving(corpus, tmp_path), [FOLDER])
    aside = tmp_path / ".tmp-replaced-global_step4"
    assert (aside / "stale").is_file() and (aside / "manifest.json").is_file()
    (again,) = pool.run(1, run_where_names_cannot_be_swapped, saving(corpus, tmp_path))
    assert again.status == 0, again.errors
    assert (tmp_path / "global_step4" / "manifest.json").is_file()
    assert not stale.exists()
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    pool.run(1, run_training, {**saving(corpus, folder), "exit_interval": 2})
    return folder


def cut_short(folder: Path) -> str:
    file = folder / "global_step2" / "layer_03-model_00-model_states.pt"
    os.truncate(file, file.stat().st_size - 1)
    return f"{file} has {file.stat().st_size} bytes instead of {file.stat().st_size + 1}"


def removed(folder: Path) -> str:
    file = folder / "global_step2" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    file.unlink()
    return f"{file} is missing"


def changed(folder: Path) -> str:
    file = folder / "global_step2" / "layer_01-model_00-model_states.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return f"{file} has checksum "


def without_manifest(folder: Path) -> str:
    (folder / "global_step2" / "manifest.json").unlink()
    return "manifest.json"


def with_half_a_manifest(folder: Path) -> str:
    manifest = folder / "global_step2" / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    return str(manifest)


def with_a_lost_tag(folder: Path) -> str:
    (folder / "latest").write_text("global_step4\n")
    return f"{folder}/latest names global_step4"


@pytest.mark.parametrize(
    "damage", [cut_short, removed, changed, without_manifest, with_half_a_manifest, with_a_lost_tag]
)
def test_a_damaged_checkpoint_is_refused_by_the_name_of_the_file(
    pool: Pool, corpus: str, saved: Path, tmp_path: Path, damage: Any
) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(saved, folder)
    complaint = damage(folder)
    (refused,) = pool.run(1, run_training, {**saving(corpus, folder)})
    assert refused.status == 1
    assert complaint in refused.errors
    assert refused.errors.count("\n") == 1
    assert refused.losses == []
