"""Launches replayed under sanitizers (`tests.emulator.replayed`): planted bugs are named, right kernels pass."""

from __future__ import annotations

import re
from ctypes import c_int, c_int64, c_void_p
from pathlib import Path

import pytest
import torch

from tests.emulator.replayed import Sanitizer, record, recording, replay
from tests.emulator.runner import EMULATOR, needs_gxx
from trainer.kernels.native.launching import Launch

pytestmark = [needs_gxx, pytest.mark.nightly]

SAMPLE = Path(__file__).with_name("sample.cu")
PLANTED = EMULATOR / "planted.cu"


def address(tensor: torch.Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def complaint_of(
    kernel: str, folder: Path, sanitizer: Sanitizer, *more: object, threads: int, shared: int = 0
) -> str | None:
    """Return the complaints about a planted kernel with an output, an optional input, and `more`."""
    file = folder / "launches"
    tensors = [torch.zeros(4 * threads), torch.ones(4 * threads)]
    given = [address(one) for one in tensors[: 2 if kernel.startswith(("no_", "with_")) else 1]]
    launch = Launch(kernel, (1, 1, 1), (threads, 1, 1), shared, (*given, *more))  # type: ignore[arg-type]
    file.write_bytes(record(launch))  # not run here: it writes where it must not
    return replay(PLANTED, file, sanitizer)


@pytest.mark.parametrize(
    ("kernel", "more", "shared", "said"),
    [
        ("overruns_static_shared", (c_int(32),), 0, r"index 32 out of bounds|global-buffer-overflow"),
        ("overruns_dynamic_shared", (c_int(32),), 128, r"heap-buffer-overflow"),
        ("overruns_dynamic_shared", (c_int(-1),), 128, r"heap-buffer-overflow"),
        ("overruns_global", (c_int(128),), 0, r"heap-buffer-overflow"),
        ("overruns_global", (c_int(-1),), 0, r"heap-buffer-overflow"),
    ],
)
def test_what_is_touched_beside_an_array_is_found(
    tmp_path: Path, kernel: str, more: tuple[c_int, ...], shared: int, said: str
) -> None:
    complaint = complaint_of(kernel, tmp_path, Sanitizer.MEMORY, *more, threads=32, shared=shared)
    assert complaint and re.search(said, complaint) and "planted.cu" in complaint, complaint


@pytest.mark.parametrize(
    ("kernel", "more", "threads"),
    [("no_barrier", (), 128), ("no_trailing_barrier", (c_int(2),), 128), ("no_syncwarp", (), 32)],
)
def test_a_race_between_barriers_is_found_with_both_lines(
    tmp_path: Path, kernel: str, more: tuple[c_int, ...], threads: int
) -> None:
    complaint = complaint_of(kernel, tmp_path, Sanitizer.RACES, *more, threads=threads)
    assert complaint and "data race" in complaint, complaint
    assert len(set(re.findall(r"planted\.cu:\d+", complaint))) >= 2, complaint


def test_a_race_between_blocks_is_found(tmp_path: Path) -> None:
    out = torch.zeros(64)
    with recording(tmp_path / "launches", PLANTED) as runner:
        runner.launch(Launch("blocks_that_write_the_same", (2, 1, 1), (32, 1, 1), 0, (address(out),)))
    complaint = replay(PLANTED, tmp_path / "launches", Sanitizer.RACES)
    assert complaint and "data race" in complaint, complaint


@pytest.mark.parametrize("sanitizer", Sanitizer)
def test_right_kernels_pass(tmp_path: Path, sanitizer: Sanitizer) -> None:
    x, out = torch.randn(6, 203), torch.zeros(6, 203)
    with recording(tmp_path / "launches", SAMPLE) as runner:
        runner.launch(Launch("row_sum_f32", (6, 1, 1), (96, 1, 1), 0, (address(out), address(x), c_int64(203))))
        runner.launch(Launch("log_sum_exp_f32", (1, 1, 1), (96, 1, 1), 0, (address(out), address(x), c_int64(203))))
        runner.launch(Launch("reversed_f32", (6, 1, 1), (64, 1, 1), 203 * 4, (address(out), address(x), c_int(203))))
    assert torch.equal(out, x.flip(1))
    assert replay(SAMPLE, tmp_path / "launches", sanitizer) is None


def test_memory_that_is_no_tensors_cannot_be_recorded(tmp_path: Path) -> None:
    with (
        recording(tmp_path / "launches", PLANTED) as runner,
        pytest.raises(LookupError, match="address"),
    ):
        runner.launch(Launch("overruns_global", (1, 1, 1), (1, 1, 1), 0, (c_void_p(64), c_int(0))))
