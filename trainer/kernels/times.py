"""Times of each implementation of an operation: measuring them, storing them, and choosing by them."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from trainer.core.files import make_folder, read_plain, write_atomically
from trainer.formats.attempt.kernels import SCHEMA_VERSION, FamilyTimes, KernelTimes
from trainer.formats.json_text import json_file_text
from trainer.kernels.native.artifacts import Artifact, cuda_artifact, library_artifact, own_levels
from trainer.kernels.native.cache import cache_folders, why_untrusted

_LARGEST = 1 << 20


@dataclass(frozen=True)
class KeptTimes:
    """The measurements on this kind of device, the newest of each family and size; `notes`: what was skipped."""

    device: str = ""
    families: tuple[FamilyTimes, ...] = ()
    notes: tuple[str, ...] = ()


#: No measurements, or none that count.
NOTHING_MEASURED = KeptTimes()


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or CPU, as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "CPU"
    found = re.search(r"^model name\s*:\s*(.+)$", described, re.MULTILINE)
    return " ".join(found[1].split()) if found else "CPU"


def kept_times(device: torch.device) -> KeptTimes:
    """Return all measurements of `device` with these versions and sources. Never raises."""
    try:
        name, beginning = device_name(device), f"times-{_key(device)}-"
        files = [(cache, file) for cache in cache_folders() for file in sorted(cache.glob(f"{beginning}*.json"))]
    except (OSError, RuntimeError) as error:
        return KeptTimes(notes=(f"measured times cannot be read: {error}",))
    found: dict[tuple[str, str, str, int], FamilyTimes] = {}
    notes = []
    for cache, file in files:
        read = _read(cache, file)
        if isinstance(read, str):
            notes.append(f"{file} is not read: {read}: opsctl kernels measure writes another")
            continue
        for one in read.families:
            place = one.family, one.kind, one.precision, one.columns
            if place not in found or found[place].measured_at < one.measured_at:
                found[place] = one
    return KeptTimes(name, tuple(found.values()), tuple(notes))


def keep(times: KernelTimes, device: torch.device) -> Path:
    """Write the times for trainings on such a device. Replaces an earlier measurement of the same sizes.

    Raises OSError, and CacheError if there is no folder for them.
    """
    cache = cache_folders()[0]
    make_folder(cache)
    sizes = sorted((one.family, one.kind, one.precision, one.shape) for one in times.families)
    target = cache / f"times-{_key(device)}-{hashlib.sha256(repr(sizes).encode()).hexdigest()[:12]}.json"
    write_atomically(target, json_file_text(msgspec.to_builtins(times)))
    return target


def _key(device: torch.device) -> str:
    """Return the key of the measurements. Raises OSError for sources that cannot be read."""
    sources = _artifact(device)
    what = (device_name(device), str(torch.__version__), torch.version.cuda, sources.key if sources else "")
    return hashlib.sha256(repr(what).encode()).hexdigest()[:24]


def _artifact(device: torch.device) -> Artifact | None:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return cuda_artifact(f"sm_{major}{minor}")
    levels = own_levels()
    return library_artifact("operations", levels[0]) if levels else None


def _read(cache: Path, file: Path) -> KernelTimes | str:
    """Return the contents, or why they are not used."""
    try:
        if untrusted := why_untrusted(cache, file):
            return untrusted
        data = read_plain(file, _LARGEST)
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            return f"it is of version {version}, and this reads up to {SCHEMA_VERSION}"
        return msgspec.json.decode(data, type=KernelTimes)
    except OSError as error:
        return error.strerror or str(error)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return f"damaged ({' '.join(str(error).split())})"


class _Version(msgspec.Struct):
    schema_version: int


#: Up to this ratio, a slower implementation is still used.
NOISE = 1.03
#: Longest distance to a measured width, in doublings: small and large sizes differ.
FARTHEST = 1.0
#: Measured and never used: torch compiles it at the first use of a shape, and trainings compile nothing.
COMPILED = "torch.compile"


@dataclass(frozen=True)
class Decision:
    """The chosen implementation. why: set if chosen for its time. beside: a faster one that cannot be used."""

    way: str
    why: str | None = None
    beside: str | None = None


def times_for(
    measured: Iterable[FamilyTimes], family: str, kind: str, precision: str, columns: int
) -> FamilyTimes | None:
    """Return the measurement of the nearest size; None if none near it was made of the family in that precision."""

    def apart(one: FamilyTimes) -> float:
        return abs(math.log2(one.columns / columns))

    alike = [one for one in measured if (one.family, one.kind, one.precision) == (family, kind, precision)]
    return min((one for one in alike if apart(one) <= FARTHEST), key=apart, default=None)


def decided(ways: Sequence[str], times: FamilyTimes | None, device: str) -> Decision:
    """Choose among `ways`, of which the first is preferred. A way without a time is not compared."""
    first = ways[0]
    if times is None or first not in times.seconds:
        return Decision(first)
    seconds = {way: times.seconds[way] for way in ways if way in times.seconds}
    best = min(seconds, key=lambda way: seconds[way])
    taken = best if seconds[first] > NOISE * seconds[best] else first
    where = f"on {device}, measured {times.measured_at[:10]}"
    why = None if taken == first else f"{seconds[first] / seconds[best]:.2f}x as fast as {first} {where}"
    compiled = times.seconds.get(COMPILED, math.inf)
    beside = None
    if seconds[taken] > NOISE * compiled:
        ratio = seconds[taken] / compiled
        beside = f"{COMPILED}: {ratio:.2f}x as fast {where}, but it compiles in the training"
    return Decision(taken, why, beside)


#: Buffers in turn have this many times the cache's size, so that each is read from memory.
_TIMES_THE_CACHE = 4
_WARM_UP, _TIMES, _ROUNDS = 10, 50, 3
_COPIED_BYTES = 1 << 30
#: Cycles of the GPU's clock in which the slowest implementation has started all its kernels.
_CYCLES_TO_START_ONE = 500_000
Buffers = Sequence[Tensor | None]


@dataclass(frozen=True)
class Turns:
    """The repetitions, before the timing and during it."""

    warm_up: int = _WARM_UP
    times: int = _TIMES
    copied_bytes: int = _COPIED_BYTES


def median_s(work: Callable[..., Any], sets: Sequence[Buffers], turns: Turns, device: torch.device) -> float:
    """Return the median seconds of `work(*buffers)` on `device`, each time on the next of `sets`."""
    for turn in range(turns.warm_up):
        work(*sets[turn % len(sets)])
    timed = _timed_on_gpu if device.type == "cuda" else _timed_on_cpu
    return statistics.median(timed(work, sets, turns.times))


def in_turns(
    ways: Mapping[str, Callable[..., Any]], sets: Sequence[Buffers], device: torch.device, budget_s: float
) -> dict[str, float]:
    """Return the seconds of each way's `work(*buffers)`: the least median of several turns, against other load.

    budget_s: approximate seconds of one turn, without its first calls, which may compile.
    """
    turns = {name: _fitting(work, sets, device, budget_s) for name, work in ways.items()}
    found: dict[str, float] = dict.fromkeys(ways, math.inf)
    for _ in range(_ROUNDS):
        for name, work in ways.items():
            found[name] = min(found[name], median_s(work, sets, turns[name], device))
    return found


def _fitting(work: Callable[..., Any], sets: Sequence[Buffers], device: torch.device, budget_s: float) -> Turns:
    """Return as many repetitions as fit into the budget, at least three."""
    once_s = median_s(work, sets, Turns(2, 3), device)
    times = min(_TIMES, max(3, int(budget_s / max(once_s, 1e-7))))
    return Turns(min(_WARM_UP, times), times)


def buffer_sets(make: Callable[[], Buffers], cache_bytes: int) -> list[Buffers]:
    """Return enough sets, at least two, for none to be in the cache when its turn comes."""
    first = make()
    size = sum(one.numel() * one.element_size() for one in first if one is not None)
    return [first, *(make() for _ in range(max(1, math.ceil(_TIMES_THE_CACHE * cache_bytes / size))))]


def copy_rate(device: torch.device, cache_bytes: int, turns: Turns) -> float:
    """Return the bytes a second that a copy in memory reads and writes, both counted."""
    count = turns.copied_bytes // 4

    def make() -> Buffers:
        return torch.rand(count, device=device), torch.empty(count, device=device)

    sets = buffer_sets(make, cache_bytes)
    return 2 * 4 * count / median_s(lambda source, target: target.copy_(source), sets, turns, device)


def cache_bytes(device: torch.device) -> int:
    """Return the bytes of the GPU's second-level cache; a megabyte on a CPU."""
    if device.type != "cuda":
        return 1 << 20
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _timed_on_gpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    # The GPU waits until all work is queued, so that Python's speed is not measured.
    torch.cuda._sleep(times * _CYCLES_TO_START_ONE)
    for turn, (begin, end) in enumerate(events):
        begin.record()
        work(*sets[turn % len(sets)])
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in events]


def _timed_on_cpu(work: Callable[..., Any], sets: Sequence[Buffers], times: int) -> list[float]:
    seconds = []
    for turn in range(times):
        begin = time.perf_counter()
        work(*sets[turn % len(sets)])
        seconds.append(time.perf_counter() - begin)
    return seconds
