"""The emulator of a thread block (`tests/emulator`): right kernels pass, planted bugs are found."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emulator.runner import EMULATOR, ORDERS, EmulatedRunner, needs_gxx, pointer
from trainer.kernels.native.launching import KernelError, Launch

pytestmark = needs_gxx

SAMPLE = Path(__file__).with_name("sample.cu")
PLANTED = EMULATOR / "planted.cu"
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def planted(kernel: str, *arguments: object, threads: int = 64, order: str = "forward", shared_bytes: int = 0) -> None:
    launch = Launch(kernel, (1, 1, 1), (threads, 1, 1), shared_bytes, arguments)  # type: ignore[arg-type]
    EmulatedRunner(PLANTED, order=order).launch(launch)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "threads"), [(3, 40, 32), (2, 1000, 128), (2, 7, 1024)])
def test_sums_over_a_block_are_those_of_fp64(dtype: str, order: str, rows: int, columns: int, threads: int) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    out = torch.full((rows,), float("nan"), dtype=x.dtype)
    arguments = (c_void_p(out.data_ptr()), c_void_p(x.data_ptr()), c_int64(columns))
    EmulatedRunner(SAMPLE, order=order).launch(Launch(f"row_sum_{dtype}", (rows, 1, 1), (threads, 1, 1), 0, arguments))
    exact = x.double().sum(1)
    error = (out.double() - exact).abs()
    rounding = torch.finfo(x.dtype).eps * exact.abs() + 8 * torch.finfo(torch.float32).eps * x.double().abs().sum(1)
    assert (error <= rounding).all(), error


@pytest.mark.parametrize("order", ORDERS)
def test_pairs_of_maximum_and_sum_are_joined_as_online_softmax_needs_it(order: str) -> None:
    x = np.random.default_rng(0).normal(size=777).astype(np.float32) * 30
    x[3] = -np.inf
    ends = np.full(2, np.nan, np.float32)
    EmulatedRunner(SAMPLE, order=order).launch(
        Launch("log_sum_exp_f32", (1, 1, 1), (96, 1, 1), 0, (pointer(ends), pointer(x), c_int64(x.size)))
    )
    assert ends[0] == pytest.approx(np.logaddexp.reduce(x.astype(np.float64)), rel=1e-6)
    assert ends[1] == x.max()


@pytest.mark.parametrize("order", ORDERS)
def test_dynamic_shared_memory_is_what_the_launch_asks_for(order: str) -> None:
    x = np.arange(300, dtype=np.float32).reshape(3, 100)
    out = np.zeros_like(x)
    EmulatedRunner(SAMPLE, order=order).launch(
        Launch("reversed_f32", (3, 1, 1), (64, 1, 1), 400, (pointer(out), pointer(x), c_int(100)))
    )
    assert (out == x[:, ::-1]).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_numbers_are_rounded_to_sixteen_bits_as_torch_rounds_them(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, size=8 * 32 * 64, dtype=np.uint32)
    x = torch.from_numpy(bits.view(np.float32).copy())
    x[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 65519.99, 3.0e-8])
    out = torch.zeros(x.shape, dtype=DTYPES[dtype])
    arguments = (pointer(out.view(torch.int16).numpy()), pointer(x.numpy()))
    EmulatedRunner(SAMPLE).launch(Launch(f"rounded_{dtype}", (32, 1, 1), (64, 1, 1), 0, arguments))
    is_number = ~x.isnan()
    assert torch.equal(out[is_number], x.to(out.dtype)[is_number])
    assert out[~is_number].isnan().all() and (~is_number).sum() > 0


@pytest.mark.parametrize(
    ("kernel", "threads", "rows"), [("no_barrier", 128, 1), ("no_trailing_barrier", 128, 4), ("no_syncwarp", 32, 1)]
)
def test_a_missing_barrier_gives_wrong_numbers_in_some_order(kernel: str, threads: int, rows: int) -> None:
    x = np.arange(1, rows * threads + 1, dtype=np.float32).reshape(rows, threads)
    exact = np.roll(x, -32, 1) if kernel == "no_trailing_barrier" else x[:, ::-1]
    wrong = []
    for order in ORDERS:
        out = np.zeros_like(x)
        more = (c_int(rows),) if kernel == "no_trailing_barrier" else ()
        planted(kernel, pointer(out), pointer(x), *more, threads=threads, order=order)
        wrong += [order] if not np.array_equal(out, exact) else []
    assert wrong


@pytest.mark.parametrize("order", ORDERS)
def test_syncwarp_orders_what_lanes_write_and_read(order: str) -> None:
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    planted("with_syncwarp", pointer(out), pointer(x), threads=32, order=order)
    assert (out == x[::-1]).all()


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("barrier_of_some", r"__syncthreads at planted.cu:\d+, .*thread \("),
        ("barriers_in_two_places", r"planted.cu:\d+, thread .* planted.cu:\d+"),
        ("lane_not_in_its_mask", r"__shfl_xor_sync .*0x0000ffff.*lane \d+ .*planted.cu"),
        (
            "masks_that_differ",
            r"(0xfffffffe, .*lane 0|__shfl_sync .*0x.*, lane \d+)",
        ),
        ("source_outside_the_mask", r"__shfl_sync .*lane 20, .*0x0000ffff"),
        ("lane_that_has_left", r"__shfl_xor_sync .*, lane 7 "),
        ("shuffle_against_vote", r"__\w+ .*0xffffffff .*, lane \d+ .*__\w+"),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_what_no_chip_defines_ends_the_launch_with_a_line(kernel: str, said: str, order: str) -> None:
    with pytest.raises(KernelError, match=rf"^{kernel}: thread \(\d+,0,0\) of block \(0,0,0\).*{said}"):
        planted(kernel, pointer(np.zeros(64, np.float32)), order=order)


def test_a_misaligned_vector_is_refused() -> None:
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(KernelError, match=r"misaligned_vector: .*\b16 bytes"):
        planted("misaligned_vector", pointer(out), pointer(x), threads=1)


def test_shared_memory_is_poisoned_before_every_block() -> None:
    out = np.zeros(2, np.float32)
    planted("reads_unwritten_shared", pointer(out), threads=32, shared_bytes=128)
    assert np.isnan(out).all()


def test_a_warp_that_is_not_whole_cannot_shuffle_with_a_whole_mask() -> None:
    with pytest.raises(KernelError, match=r"0xffffffff .*\b20 threads"):
        planted("lane_that_has_left", pointer(np.zeros(64, np.float32)), threads=20)


def test_arguments_of_other_types_than_the_kernels_are_refused() -> None:
    with pytest.raises(KernelError, match=r"overruns_global: .*'Pf'.*'Pi'"):
        planted("overruns_global", pointer(np.zeros(4, np.float32)), c_float(1))


def test_a_kernel_that_no_file_exports_is_named() -> None:
    with pytest.raises(KernelError, match=r"nothing: .*planted\.cu.*EXPORT\(nothing\)"):
        planted("nothing")


def test_more_shared_memory_than_the_device_has_is_refused() -> None:
    with pytest.raises(KernelError, match=r"200000 bytes.*\b166912\b"):
        planted("overruns_dynamic_shared", pointer(np.zeros(4, np.float32)), c_int(0), shared_bytes=200_000)


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0, 1, 1), (1, 1, 1), 0),
        ((1, 65_536, 1), (1, 1, 1), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((1, 1, 1), (1, 1, 1), -1),
    ],
)
def test_a_launch_of_impossible_sizes_cannot_be_made(grid: object, block: object, shared: int) -> None:
    with pytest.raises(ValueError, match=r"^k: "):
        Launch("k", grid, block, shared, ())  # type: ignore[arg-type]
