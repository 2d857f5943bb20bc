"""The energy records in a folder: files of ours and of codecarbon's own."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import file_problem
from opsctl.core.files.state_files import read_text
from opsctl.core.files.trusted import names_in, opened_folder
from trainer.formats.attempt.carbon import FILES, Reading, newest_totals, read

#: More than any training leaves: 1,000 nodes times 1,000 attempts.
MOST_FILES = 1_000_000


@dataclass(frozen=True)
class Found:
    """What there is, each tracker once."""

    files: int = 0
    readings: tuple[Reading, ...] = ()
    problems: tuple[str, ...] = ()  # what cannot be read, in a sentence each


def find(folders: list[Path], most: int = MOST_FILES) -> Found | None:
    """The trackers in these folders, which count nothing twice that is in two of them; None for more than `most` files.

    A folder that is not there has none. What cannot be read is a problem and hides nothing else.
    """
    readings: list[Reading] = []
    problems: list[str] = []
    files = 0
    for folder in folders:
        try:
            with opened_folder(folder, folder) as (fd, _):
                names = [name for name in names_in(fd, folder, MOST_FILES) if _is_record(name)]
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(file_problem(error, folder))
            continue
        files += len(names)
        if files > most:
            return None
        for name in names:
            try:
                text = read_text(folder, folder / name)
            except OSError as error:
                problems.append(file_problem(error, folder / name))
                continue
            there, wrong = read(str(folder / name), text or "")  # one that is taken away meanwhile has nothing
            readings += there
            problems += wrong
    return Found(files, tuple(newest_totals(readings)), tuple(problems))


def _is_record(name: str) -> bool:
    return not name.startswith(".") and any(fnmatch.fnmatch(name, pattern) for pattern in FILES)
