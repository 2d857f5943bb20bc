"""Wheels of what is installed here, so that installers resolve what opsctl asks for without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def asked_of(wheel: Path) -> list[str]:
    """Return what a wheel asks for, without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    asked = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [one for one in asked if "extra ==" not in one]


def fill(folder: Path, requirements: Iterable[str]) -> None:
    """A wheel in `folder` for everything that `requirements` need, made from this Python's own packages."""
    folder.mkdir(parents=True, exist_ok=True)
    for found in _closure(requirements):
        _repack(found, folder)


def _closure(requirements: Iterable[str]) -> Iterator[Distribution]:
    todo = [one for one in map(Requirement, requirements) if one.marker is None or one.marker.evaluate({"extra": ""})]
    met: set[str] = set()
    while todo:
        wanted = todo.pop()
        extras = wanted.extras or {""}
        name = canonicalize_name(wanted.name)
        found = distribution(name)
        if name not in met:
            met.add(name)
            yield found
        needed = map(Requirement, found.requires or ())
        todo += [
            one
            for one in needed
            if canonicalize_name(one.name) not in met
            and (one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras))
        ]


def _repack(found: Distribution, folder: Path) -> None:
    """The distribution's files below site-packages as a wheel, stored as they are; its scripts are left out."""
    files = [one for one in found.files or () if ".." not in one.parts and "__pycache__" not in one.parts]
    (about,) = {one.parts[0] for one in files if one.parts[0].endswith(".dist-info")}
    tags = [line.split()[1] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    lines = []
    with zipfile.ZipFile(folder / f"{about.removesuffix('.dist-info')}-{tags[-1]}.whl", "w") as archive:
        for one in files:
            if str(one) == f"{about}/RECORD":
                continue
            content = Path(str(one.locate())).read_bytes()
            archive.writestr(zipfile.ZipInfo(str(one), (2020, 1, 1, 0, 0, 0)), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            lines.append(f"{one},sha256={digest},{len(content)}\n")
        archive.writestr(f"{about}/RECORD", "".join(lines) + f"{about}/RECORD,,\n")
