"""Tests of streamed file, which `trainer.convert.native` contains."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path

import pytest
import torch

from trainer.convert.native import StreamedFile
from trainer.formats.checkpoint.manifest import checksum


def test_a_file_filled_part_by_part_reads_as_one_that_was_saved_whole(tmp_path: Path) -> None:
    file = StreamedFile()
    flat = file.tensor((10,), torch.float32, requires_grad=True)
    half = file.tensor((2, 3), torch.bfloat16)
    empty = file.tensor((0,), torch.float32)
    file.fill(flat, 2, lambda: torch.arange(3.0))
    file.fill(flat, 8, lambda: torch.ones(2))
    file.fill(half, 3, lambda: torch.full((1, 3), 2.0, dtype=torch.bfloat16))
    contents = {"state": {0: {"step": torch.tensor(7.0), "flat": flat}}, "list": [half, empty], "text": "and more"}
    written = file.write(contents, tmp_path / "file.pt")
    found = torch.load(tmp_path / "file.pt", weights_only=True)
    assert found["state"][0]["flat"].tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 1, 1]
    assert found["state"][0]["flat"].requires_grad
    assert found["state"][0]["step"] == 7 and found["text"] == "and more"
    assert found["list"][0].tolist() == [[0, 0, 0], [2, 2, 2]] and found["list"][0].dtype == torch.bfloat16
    assert found["list"][1].numel() == 0
    assert written.bytes == (tmp_path / "file.pt").stat().st_size
    assert written.xxh64 == checksum(tmp_path / "file.pt")


def test_one_part_at_a_time_is_asked_for(tmp_path: Path) -> None:
    """And a tensor that stands for them takes no memory, however large it is: the file has holes there."""
    file = StreamedFile()
    before: list[weakref.ref[torch.Tensor]] = []

    def values(number: int) -> torch.Tensor:
        assert all(one() is None for one in before), "the part before is still there"
        found = torch.full((4,), float(number))
        before.append(weakref.ref(found))
        return found

    large = file.tensor((1 << 24,), torch.float32)
    for number in range(3):
        file.fill(large, number * 4, partial(values, number))
    file.write({"large": large}, tmp_path / "file.pt")
    assert torch.load(tmp_path / "file.pt", weights_only=True, mmap=True)["large"][:12:4].tolist() == [0, 1, 2]
    assert (tmp_path / "file.pt").stat().st_blocks * 512 < 1 << 20


def test_a_part_that_cannot_be_had_is_nobodys_file(tmp_path: Path) -> None:
    file = StreamedFile()
    flat = file.tensor((1,), torch.float32)

    def missing() -> torch.Tensor:
        raise KeyError("missing")

    file.fill(flat, 0, missing)
    with pytest.raises(KeyError, match="missing"):
        file.write({"flat": flat}, tmp_path / "file.pt")
