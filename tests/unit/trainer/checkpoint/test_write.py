"""Writing a snapshot's files."""

from __future__ import annotations

import copy
import os
import resource
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import xxhash

from trainer.checkpoint.publish import write
from trainer.engine.snapshot import Snapshot
from trainer.formats.checkpoint.manifest import SavedFile
from trainer.formats.errors import CheckpointError

COLLECTIVES = [
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
    *(
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "irecv",
        "isend",
        "monitored_barrier",
    ),
    *("new_group", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"),
]


def states() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "layer_01-model_00-model_states.pt": {"weight": torch.randn(64, 33, generator=generator)},
        "mp_rank_00_model_states.pt": {"iteration": 3, "optimizer": None, "args": {"lr": 1e-3}},
    }


def taken() -> Snapshot:
    return {name: partial(copy.deepcopy, state) for name, state in states().items()}


def test_each_file_reads_back_and_its_size_and_checksum_are_the_files(tmp_path: Path) -> None:
    written = write(taken(), tmp_path / "new")
    assert sorted(written) == sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(states())
    for name, facts in written.items():
        data = (tmp_path / "new" / name).read_bytes()
        assert facts == SavedFile(len(data), xxhash.xxh64_hexdigest(data))
    weights = torch.load(tmp_path / "new" / "layer_01-model_00-model_states.pt", weights_only=True)
    assert torch.equal(weights["weight"], states()["layer_01-model_00-model_states.pt"]["weight"])
    facts_of_rank = torch.load(tmp_path / "new" / "mp_rank_00_model_states.pt", weights_only=True)
    assert facts_of_rank == states()["mp_rank_00_model_states.pt"]


def test_writing_talks_to_no_other_rank_and_may_be_done_by_a_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a collective")

    for name in COLLECTIVES:
        monkeypatch.setattr(dist, name, refused)
        monkeypatch.setattr(dist.distributed_c10d, name, refused)
    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(write, taken(), tmp_path / "beside")
        here = write(taken(), tmp_path / "here")
    assert beside.result() == here


def test_every_file_is_on_the_disk_when_it_returns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    synced: dict[str, int] = {}

    def noted(fd: int) -> None:
        synced[Path(f"/proc/self/fd/{fd}").readlink().name] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fsync", noted)
    assert synced | {name: facts.bytes for name, facts in write(taken(), tmp_path).items()} == synced


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o2770, 0o660), (0o755, 0o644), (0o2777, 0o664)])
def test_what_was_written_is_as_open_as_the_folder_that_it_was_written_in(
    tmp_path: Path, folder: int, file: int
) -> None:
    tmp_path.chmod(folder)
    before = os.umask(0o027)
    try:
        write(taken(), tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == folder & ~0o002
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {file}


def test_a_file_that_cannot_grow_is_one_line_with_the_systems_reason(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CheckpointError) as refused:
            write(taken(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{tmp_path}/layer_01-model_00-model_states.pt: File too large" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file/new: Not a directory"):
        write(taken(), tmp_path / "file" / "new")


def test_a_link_that_somebody_put_into_the_folder_is_not_written_through(tmp_path: Path) -> None:
    thesis, folder = tmp_path / "thesis.txt", tmp_path / "new"
    thesis.write_text("years of work\n")
    folder.mkdir()
    (folder / "mp_rank_00_model_states.pt").symlink_to(thesis)
    with pytest.raises(CheckpointError, match=r"mp_rank_00_model_states\.pt: File exists"):
        write(taken(), folder)
    assert thesis.read_text() == "years of work\n"
