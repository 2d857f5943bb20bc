"""Every byte of checkpoints against their manifests: `python -m trainer.interchange.verification`.

Prints a line of JSON for each folder: {"folder", "files", "bytes", "problems"}, with a sentence for every file that is
missing, short or not what was written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainer.data.progress import Progress
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_line
from trainer.formats.manifest import Manifest, SavedFile, checksum, fault_of, read_manifest
from trainer.interchange.workers import default_workers, each


class File(NamedTuple):
    """A file of a checkpoint, with what its manifest says of it."""

    folder: Path
    name: str
    saved: SavedFile


def problem_of(file: File) -> str | None:
    """What is wrong with it, in a clause with its name; None when every byte is as it was written."""
    path = file.folder / file.name
    try:
        size = path.stat().st_size
        if size != file.saved.bytes:
            return f"{file.name} has {size} bytes instead of {file.saved.bytes}"
        found = checksum(path)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    return None if found == file.saved.xxh64 else f"{file.name} has checksum {found} instead of {file.saved.xxh64}"


def verify(folders: Sequence[Path], workers: int) -> dict[Path, list[str]]:
    """What is wrong with each, files in the order of their names; empty for one that is whole."""
    problems: dict[Path, list[str]] = {folder: [] for folder in folders}
    files: list[File] = []
    for folder in folders:
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            problems[folder].append(str(error))
            continue
        # What is another checkpoint's manifest is wrong though every file is as it says.
        if (fault := fault_of(folder)) and "is that of" in fault:
            problems[folder].append(fault)
        files += _files(folder, manifest)
    done_bytes = 0
    with Progress("verifying", sum(file.saved.bytes for file in files)) as progress:

        def done(index: int) -> None:
            nonlocal done_bytes
            done_bytes += files[index].saved.bytes
            progress.reached(done_bytes)

        for file, problem in zip(files, each(files, problem_of, workers, done), strict=True):
            problems[file.folder] += [problem] if problem else []
    return problems


def _files(folder: Path, manifest: Manifest) -> list[File]:
    return [File(folder, name, saved) for name, saved in sorted(manifest.files.items())]


def main(arguments: Sequence[str]) -> int:
    """Look at every folder that is named; 0 however much is wrong with them."""
    parser = argparse.ArgumentParser(prog="trainer.interchange.verification")
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    for folder, problems in verify(given.folders, max(1, given.workers)).items():
        try:
            saved = read_manifest(folder).files
        except CheckpointError:
            saved = {}
        size = sum(file.bytes for file in saved.values())
        print(json_line({"folder": str(folder), "files": len(saved), "bytes": size, "problems": problems}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
