"""Where measured times of kernels lie: beside what was built, a file for each measurement, by device and versions.

`CACHE/times-KEY-SHAPES.json`: KEY is of the device, torch, its CUDA and the kernels' sources, so that what was measured
of others is not found; SHAPES is of what was computed, so that a model of another size keeps its own. A file is never
needed: one that is damaged, newer or another user's is passed over with a word.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from trainer.core.files import make_folder, read_plain, write_atomically
from trainer.formats.attempt.kernels import SCHEMA_VERSION, FamilyTimes, KernelTimes
from trainer.formats.json_text import json_file_text
from trainer.kernels.native.artifacts import Artifact, cuda_artifact, library_artifact, own_levels
from trainer.kernels.native.cache import cache_folders
from trainer.kernels.native.trust import why_untrusted

_LARGEST = 1 << 20


@dataclass(frozen=True)
class KeptTimes:
    """What was measured on this kind of device, the newest of each family and size; `notes`: what was passed over."""

    device: str = ""
    families: tuple[FamilyTimes, ...] = ()
    notes: tuple[str, ...] = ()


#: Nothing was measured, or nothing is to be chosen by it.
NOTHING_MEASURED = KeptTimes()


def device_name(device: torch.device) -> str:
    """The GPU's or the CPU's, as their makers call them."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "CPU"
    found = re.search(r"^model name\s*:\s*(.+)$", described, re.MULTILINE)
    return " ".join(found[1].split()) if found else "CPU"


def kept_times(device: torch.device) -> KeptTimes:
    """All that was measured for `device` with these versions and sources. Never raises."""
    try:
        name, beginning = device_name(device), f"times-{_key(device)}-"
        files = [(cache, file) for cache in cache_folders() for file in sorted(cache.glob(f"{beginning}*.json"))]
    except (OSError, RuntimeError) as error:
        return KeptTimes(notes=(f"measured times cannot be looked for: {error}",))
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
    """Write them for trainings on such a device, in the place of an earlier measurement of the same sizes.

    Raises OSError, and CacheError where there is no folder for them.
    """
    cache = cache_folders()[0]
    make_folder(cache)
    sizes = sorted((one.family, one.kind, one.precision, one.shape) for one in times.families)
    target = cache / f"times-{_key(device)}-{hashlib.sha256(repr(sizes).encode()).hexdigest()[:12]}.json"
    write_atomically(target, json_file_text(msgspec.to_builtins(times)))
    return target


def _key(device: torch.device) -> str:
    """Raises OSError for sources that cannot be read."""
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
    """What is in it, or why it is not taken."""
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
