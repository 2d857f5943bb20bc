"""kill -9 anywhere in a save leaves a checkpoint that loads, and what it left behind is never loaded."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool, RanksFailed
from tests.distributed.whole_training import Seen, run_training, write_corpus

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("ranks")]

# Where the second save is killed -> the iteration of the checkpoint that must load afterwards.
MOMENTS = {
    "in the middle of a file": 2,
    "after the first file": 2,
    "before the manifest": 2,
    "after the manifest": 2,
    "after the rename": 2,
    "beside latest": 2,
    "after latest": 4,
}


def run_and_die(options: dict[str, Any], moment: str, victim: int = 0) -> Seen:
    """Train; the victim's second save is killed at the moment."""
    from trainer import files
    from trainer.checkpoint import save, writer

    saves = 0

    def die() -> None:
        if saves == 2 and int(os.environ["RANK"]) == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    def patched(owner: Any, name: str, before: bool) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before:
                die()
            result = original(*args, **kwargs)
            if not before:
                die()
            return result

        setattr(owner, name, wrapper)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal saves
        saves += 1
        return make_room(*args, **kwargs)

    # Called on every rank at the beginning of a save.
    make_room = save._write
    save._write = counted
    owner, name, before = {
        "in the middle of a file": (writer._HashingSink, "write", False),
        "after the first file": (writer.RecordingCheckpointEngine, "save", False),
        "before the manifest": (save, "write_json", True),
        "after the manifest": (save, "write_json", False),
        "after the rename": (save, "fsync", True),
        "beside latest": (Path, "replace", True),
        "after latest": (save, "write_atomically", False),
    }[moment]
    if moment == "beside latest":
        write_manifest = files.write_json

        def without_dying(*args: Any) -> None:
            nonlocal saves
            saves -= 1
            write_manifest(*args)
            saves += 1

        setattr(save, "write_json", without_dying)  # noqa: B010 - the module imports the name for itself
    patched(owner, name, before)
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
    with pytest.raises(RanksFailed, match="died without an answer"):
        pool.run(1, run_and_die, saving(corpus, tmp_path), moment)
    left_over = list(tmp_path.glob(".tmp-*"))
    assert bool(left_over) == (moment not in ("after the rename", "beside latest", "after latest"))

    (seen,) = pool.run(1, run_training, saving(corpus, tmp_path))
    assert seen.status == 0, seen.errors
    assert f"successfully loaded checkpoint from {tmp_path} at iteration {MOMENTS[moment]}\n" in seen.output
    assert seen.losses == whole[MOMENTS[moment] :]
    assert (tmp_path / "latest").read_text() == "global_step6"
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_kill_of_another_rank_in_a_save_leaves_a_checkpoint_that_loads(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    with pytest.raises(RanksFailed, match="rank 1: died without an answer"):
        pool.run(2, run_and_die, saving(corpus, tmp_path), "after the first file", 1)
    ranks = pool.run(2, run_training, saving(corpus, tmp_path))
    assert [rank.status for rank in ranks] == [0, 0]
    assert [len(rank.losses) for rank in ranks] == [4, 4]


def test_a_tag_that_exists_is_replaced_as_a_whole(pool: Pool, corpus: str, tmp_path: Path) -> None:
    """A training that starts again in a folder meets its predecessor's checkpoints."""
    pool.run(1, run_training, saving(corpus, tmp_path))
    stale = tmp_path / "global_step2" / "stale"
    stale.write_text("of the run before")
    (again,) = pool.run(1, run_training, {**saving(corpus, tmp_path), "load": None})
    assert again.status == 0, again.errors
    assert len(again.losses) == 6
    assert not stale.exists()
    assert not list(tmp_path.glob(".tmp-*"))
    (last,) = pool.run(1, run_training, {**saving(corpus, tmp_path), "train_iters": 7, "override_lr_scheduler": True})
    assert f"at iteration {6}\n" in last.output


def run_on_a_small_disk(options: dict[str, Any], largest_file_bytes: int) -> Seen:
    """Train where no file can grow beyond a size; the kernel refuses the rest, as a full disk does."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))
    return run_training(options)


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_checkpoint_before(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    pool.run(1, run_training, {**saving(corpus, tmp_path), "exit_interval": 2})
    (failed,) = pool.run(1, run_on_a_small_disk, saving(corpus, tmp_path), 30_000)
    assert failed.status == 1
    assert len(failed.losses) == 2
    assert f"cannot write {tmp_path}/.tmp-global_step4/" in failed.errors
    assert "File too large" in failed.errors
    assert failed.errors.count("\n") == 1
    assert not list(tmp_path.glob(".tmp-*"))  # its room is free for the record of the failure
    (seen,) = pool.run(1, run_training, saving(corpus, tmp_path))
    assert len(seen.losses) == 4


def replace_without_swapping(folder: str) -> tuple[str, list[str]]:
    """What a file system that cannot swap two names (NFS) has after the replacement: contents, and the other names."""
    import ctypes

    from trainer.checkpoint import save

    class NoSwap:
        def __init__(self, *_: Any, **__: Any) -> None: ...

    setattr(ctypes, "CDLL", NoSwap)  # noqa: B010 - a name that mypy lets nobody assign
    new, old = Path(folder) / ".tmp-global_step2", Path(folder) / "global_step2"
    for made in (new, old):
        made.mkdir()
        (made / "made").write_text(made.name)
    save._put_in_place_of(new, old)
    return (old / "made").read_text(), sorted(path.name for path in Path(folder).iterdir())


def test_where_names_cannot_be_swapped_the_old_folder_goes_aside(pool: Pool, tmp_path: Path) -> None:
    ((contents, names),) = pool.run(1, replace_without_swapping, str(tmp_path))
    assert contents == ".tmp-global_step2"
    assert names == [".tmp-replaced-global_step2", "global_step2"]


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
    return "manifest.json is missing, so this checkpoint was never finished"


def with_half_a_manifest(folder: Path) -> str:
    manifest = folder / "global_step2" / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    return f"{manifest} cannot be read"


def with_a_lost_tag(folder: Path) -> str:
    (folder / "latest").write_text("global_step4\n")
    return f"{folder}/latest names global_step4, which is not in {folder}"


@pytest.mark.parametrize(
    "damage", [cut_short, removed, changed, without_manifest, with_half_a_manifest, with_a_lost_tag]
)
def test_a_damaged_checkpoint_is_refused_by_the_name_of_the_file(
    pool: Pool, corpus: str, saved: Path, tmp_path: Path, damage: Any
) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(saved, folder)
    complaint = damage(folder)
    (refused,) = pool.run(1, run_training, {**saving(corpus, folder), "verify_checkpoint_checksums": True})
    assert refused.status == 1
    assert complaint in refused.errors
    assert refused.errors.count("\n") == 1
    assert refused.losses == []
