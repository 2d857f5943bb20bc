"""What the ranks of one attempt left in its folder, read tolerantly: a crash may have cut any of it short."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from opsctl.core.files.trusted import open_file
from opsctl.run.state.attempt_folder import exit_report, noted_failures, rank_map, started_with
from trainer.formats.attempt.attempt_records import STOP_REQUEST, Failure, RankPlace
from trainer.formats.attempt.environment import digest_of
from trainer.formats.logs.training_line import iterations_in

#: How much of a node's output is searched for its last iteration.
_TAIL_BYTES = 64 * 1024
#: What torch's launcher calls a rank's own words, and more folders than the ranks of any attempt leave.
_ERROR_FILE, _MOST_FOLDERS = "error.json", 20_000


@dataclass(frozen=True)
class Evidence:
    """The rank map, every failure a launcher noted, the elastic error files, and why the trainer says it left."""

    ranks: tuple[RankPlace, ...] = ()
    failures: tuple[Failure, ...] = ()
    error_files: tuple[str, ...] = ()
    exit_reason: str | None = None  # an Ending, or a word that only another release knows
    exit_iteration: int | None = None
    stop_requested: bool = False  # by the job, or by a person
    logged_iteration: int | None = None  # the last one in the nodes' output
    environment: str = ""  # digest of what it was started with


def read_evidence(root: Path, folder: Path) -> Evidence:
    """Everything in an attempt's folder under the run's, `root`; empty when there is none."""
    report = exit_report(root, folder)
    failures = noted_failures(root, folder)
    environment = started_with(root, folder)
    return Evidence(
        ranks=rank_map(root, folder),
        failures=failures,
        error_files=_error_files(folder, failures),
        exit_reason=report.reason or None,
        exit_iteration=report.iteration,
        stop_requested=os.path.lexists(folder / STOP_REQUEST),
        logged_iteration=_last_logged_iteration(root, folder),
        environment="" if environment is None else digest_of(environment),
    )


def _last_logged_iteration(root: Path, folder: Path) -> int | None:
    """The highest iteration among the last lines of the nodes' output: only the node of the last rank prints them."""
    found = [
        iteration
        for path in (folder.glob("*.out") if folder.is_dir() else [])
        for iteration in iterations_in(_end_of(root, path))
    ]
    return max(found, default=None)


def _end_of(root: Path, path: Path) -> bytes:
    try:
        with os.fdopen(open_file(root, path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    except OSError:
        return b""


def _error_files(folder: Path, failures: tuple[Failure, ...]) -> tuple[str, ...]:
    """Elastic error files kept under NODE/ here: those that failures name, and any other a rank left."""
    named = [item.error_file for item in failures if item.error_file]
    walked = islice(os.walk(folder), _MOST_FOLDERS)  # into no links: somebody could lead one to all of a file system
    found = sorted(f"{at}/{_ERROR_FILE}" for at, _, files in walked if at != str(folder) and _ERROR_FILE in files)
    return tuple(dict.fromkeys([*named, *found]))
