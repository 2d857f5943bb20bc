"""Verification of all bytes of checkpoints against their manifests: `python -m trainer.convert.verification`.

Prints a line of JSON for each folder: {"folder", "files", "bytes", "problems", "damage", "manifest_xxh64"}, with a
sentence for each file that is missing, truncated or changed.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainer.convert.workers import adding_up, default_workers, each
from trainer.core.files import read_plain
from trainer.data.program import Progress
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST,
    SavedFile,
    checksum,
    decode_manifest,
    iteration_of,
    tag_of,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_line

#: Errors of this account, this process or a server that does not answer. They do not concern a file's contents.
_NO_DAMAGE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN),
        *(errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET, errno.EREMOTEIO),
    }
)


class Problem(NamedTuple):
    """One problem of a checkpoint."""

    text: str  # a clause with the file's name
    is_damage: bool = True  # False: the file could not be read, and may be undamaged


@dataclass
class Checked:
    """The result of a check of one checkpoint. files: the entries of its manifest."""

    folder: Path
    manifest_xxh64: str | None = None  # None: the manifest cannot be read
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the line of the program's output."""
        return {
            "folder": str(self.folder),
            "files": len(self.files),
            "bytes": sum(file.bytes for file in self.files.values()),
            "problems": [one.text for one in self.problems],
            "damage": [one.text for one in self.problems if one.is_damage],
            "manifest_xxh64": self.manifest_xxh64,
        }


def verify(folders: Sequence[Path], workers: int) -> list[Checked]:
    """Read every file of the checkpoints, and compare it with the manifests."""
    found = [_begun(folder) for folder in folders]
    tasks = [(one, name) for one in found for name in sorted(one.files)]
    sizes = [one.files[name].bytes for one, name in tasks]
    with Progress("verifying", sum(sizes)) as progress:
        results = each(tasks, lambda task: _problem_of(*task), workers, adding_up(sizes, progress.reached))
    for (one, _), problem in zip(tasks, results, strict=True):
        one.problems += [problem] if problem else []
    return found


def _begun(folder: Path) -> Checked:
    """Return the files to read, and the problems of the manifest itself."""
    path, checked = folder / MANIFEST, Checked(folder)
    try:
        data = read_plain(path, LARGEST_MANIFEST_BYTES)
        manifest = decode_manifest(data, path)
    except FileNotFoundError:
        checked.problems.append(Problem(f"{path} is missing, so this checkpoint is unfinished"))
    except (CheckpointError, OSError) as error:
        text = f"{path} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        checked.problems.append(Problem(text))
    else:
        checked.manifest_xxh64, checked.files = digest_of(data), manifest.files
        # Another checkpoint's manifest is an error even if every file matches it.
        if manifest.iteration != iteration_of(folder.name):
            checked.problems.append(Problem(f"{path} is that of {tag_of(manifest.iteration)}"))
    return checked


def _problem_of(checked: Checked, name: str) -> Problem | None:
    """Return the problem of a file; None if every byte is correct."""
    path, saved = checked.folder / name, checked.files[name]
    try:
        size = path.stat().st_size
        if size != saved.bytes:
            return Problem(f"{name} has {size} bytes instead of {saved.bytes}")
        found = checksum(path)
    except FileNotFoundError:
        return Problem(f"{name} is missing")
    except OSError as error:
        return Problem(f"{name} cannot be read: {error.strerror}", error.errno not in _NO_DAMAGE)
    return None if found == saved.xxh64 else Problem(f"{name} has checksum {found} instead of {saved.xxh64}")


def main(arguments: Sequence[str]) -> int:
    """Check every folder in the arguments. Returns 0 also if checkpoints are damaged."""
    parser = argparse.ArgumentParser(prog="trainer.convert.verification")
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    for checked in verify(given.folders, max(1, given.workers)):
        print(json_line(checked.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
