"""Measure how fast a node multiplies matrices, and check the products.

The factors hold whole numbers from -100 to 100, so that every sum is below 2**24 and a product in fp32 is exact in any
order of addition: every machine must find the same. It is checked with whole-number arithmetic by Freivalds' check
(Freivalds 1977): C x against A (B x), n**2 work for n**3, which finds any single wrong element. The sum of a product of
normal numbers, which is not exact, is compared between nodes too: it uses all bits.
"""

from __future__ import annotations

from typing import Any

from trainer.formats.attempt.node_samples import Effort
from trainer.launcher.probing.parts import Tell, seconds_of

_SEED = 20_220_311
_SIZE = 1024
_CHECKED = 4
_GPU_SIZES = {"fp32": 4096, "bf16": 8192}
_LARGEST = 100
_MULTIPLIERS = 1 << 20


def measure(tell: Tell, effort: Effort) -> None:
    """GFLOP/s of the node's cores in fp32, how many of the products were wrong, the sum of one of normal numbers."""
    import numpy

    left, right = whole_numbers(_SIZE)
    a, b = left.astype(numpy.float32), right.astype(numpy.float32)
    found = numpy.empty((_SIZE, _SIZE), dtype=numpy.float32)

    def multiply() -> None:
        numpy.matmul(a, b, out=found)

    seconds = seconds_of(multiply, effort.window_s)
    wrong = 0
    for _ in range(_CHECKED):
        multiply()
        wrong += wrong_rows(left, right, found) > 0
    tell("fp32_gflops", 2 * _SIZE**3 / seconds / 1e9)
    tell("tried", _CHECKED)
    tell("wrong", wrong)
    chance = numpy.random.default_rng(_SEED)
    normal = chance.standard_normal((2, _SIZE, _SIZE), dtype=numpy.float32)
    tell("sum", float(numpy.abs(numpy.matmul(normal[0], normal[1]), dtype=numpy.float64).sum()))


def whole_numbers(size: int) -> Any:
    """Two [size, size] matrices of whole numbers in int64, the same everywhere."""
    import numpy

    return numpy.random.default_rng(_SEED).integers(-_LARGEST, _LARGEST + 1, (2, size, size))


def wrong_rows(left: Any, right: Any, product: Any) -> int:
    """In how many rows `product` is not left @ right. left, right: int64; product: of any type, [n, n]."""
    import numpy

    multipliers = numpy.random.default_rng().integers(1, _MULTIPLIERS, left.shape[0])
    rounded = numpy.rint(numpy.nan_to_num(product.astype(numpy.float64), posinf=0, neginf=0)).astype(numpy.int64)
    broken = ~numpy.isfinite(product).all(axis=1)
    return int(numpy.count_nonzero((rounded @ multipliers != left @ (right @ multipliers)) | broken))


def measure_gpus(tell: Tell, effort: Effort) -> None:
    """Measure each GPU that this process sees, in fp32 and bf16 (TFLOP/s), and the speed of its memory."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    for number in range(torch.cuda.device_count()):
        _measure_gpu(tell, effort, number)


def _measure_gpu(tell: Tell, effort: Effort, number: int) -> None:
    import torch

    device = torch.device("cuda", number)
    tell("name", torch.cuda.get_device_name(device), of=number)
    wrong = 0
    for kind, size in _GPU_SIZES.items():
        left, right = whole_numbers(size)
        a, b = (torch.from_numpy(one).to(device, torch.float32) for one in (left, right))
        exact = a @ b
        if kind == "fp32":
            wrong += wrong_rows(left, right, exact.cpu().numpy()) > 0
        else:
            exact, a, b = exact.bfloat16(), a.bfloat16(), b.bfloat16()
        found = torch.empty_like(exact)
        seconds = _seconds_on(device, lambda a=a, b=b, found=found: torch.matmul(a, b, out=found), effort)
        wrong += not torch.equal(found, exact)
        tell(f"{kind}_tflops", 2 * size**3 / seconds / 1e12, of=number)
    tell("tried", 1 + len(_GPU_SIZES), of=number)
    tell("wrong", wrong, of=number)
    source = torch.ones(1 << 28, device=device)
    target = torch.empty_like(source)
    seconds = _seconds_on(device, lambda: target.copy_(source), effort)
    tell("copy_gbs", 2 * source.nbytes / seconds / 1e9, of=number)


def _seconds_on(device: Any, work: Any, effort: Effort) -> float:
    import torch

    def whole() -> None:
        work()
        torch.cuda.synchronize(device)

    return seconds_of(whole, effort.window_s)
