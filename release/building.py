"""From a commit's tree to the files of a release, and whether they work where there is nothing else."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from release.commands import run
from release.refusal import Refused

#: (the Python of an empty environment, the wheel): what puts the wheel and what it asks for there.
Install = Callable[[Path, Path], None]


def build(source: Path, folder: Path, moment_s: str) -> tuple[Path, Path]:
    """The source distribution of `source` and the wheel made of that alone, in `folder`.

    moment_s: seconds since 1970 that files in them have, so that the same commit makes the same files.
    """
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    same = {"SOURCE_DATE_EPOCH": moment_s}
    run([*hatch, "-t", "sdist"], source, same)
    (sdist,) = folder.glob("opsctl_slurm-*.tar.gz")
    shutil.unpack_archive(sdist, folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    run([*hatch, "-t", "wheel"], unpacked, same)
    shutil.rmtree(folder / "unpacked")
    (wheel,) = folder.glob("opsctl_slurm-*.whl")
    return sdist, wheel


def from_index(python: Path, wheel: Path) -> None:
    """The wheel and what it asks for, from the index that uv is set up for."""
    from uv import find_uv_bin

    run([find_uv_bin(), "pip", "install", "-q", "--python", python, wheel], wheel.parent)


def check(wheel: Path, source: Path, version: str, folder: Path, install: Install) -> None:
    """Raises Refused unless the wheel has all that it ships, and works alone where there is no checkout."""
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    for path in _shipped(source):
        if str(path) not in there:
            raise Refused(f"the wheel lacks {path}")
    run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    install(folder / "venv/bin/python", wheel)
    opsctl = folder / "venv/bin/opsctl"
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    said = run([opsctl, "--version"], folder, own).strip()
    if said.split()[-1] != version:
        raise Refused(f"the wheel says {said!r}, not {version}")
    run([opsctl, "init", "tr11-176B-ml"], folder, own)
    run([opsctl, "plan"], folder / "tr11-176B-ml", own)


def _shipped(source: Path) -> list[Path]:
    """Return where the wheel has what a commit's tree ships: the folders that go inside the package, and the
    packages.
    """
    shipped = [
        Path("opsctl/_shipped") / path.relative_to(source)
        for name in ("templates", "cron", "csrc")
        for path in (source / name).rglob("*")
        if path.is_file()
    ]
    inside = [
        path.relative_to(source)
        for package in ("opsctl", "trainer")
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    return sorted(shipped) + sorted(inside)


def sums(files: list[Path]) -> str:
    """Lines as `sha256sum --check` takes them."""
    return "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)
