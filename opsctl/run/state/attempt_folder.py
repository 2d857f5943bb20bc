"""The files that one attempt's ranks left in its folder, read tolerantly, because a crash may have cut them.

The functions take the run's output folder as `root`, then the attempt's.
"""

from __future__ import annotations

from pathlib import Path

from opsctl.core.files.state_files import read_state
from trainer.formats.attempt.attempt_records import (
    CLOCK_FILES,
    EXIT_REPORT,
    FAILURE_FILES,
    LEAVING_NOTE,
    RANKS_FILES,
    SAVED_NOTE,
    ExitReport,
    Failure,
    LeavingNote,
    NodeClock,
    RankPlace,
    SavedNote,
)
from trainer.formats.attempt.environment import ENVIRONMENT_FILE, Environment


def rank_map(root: Path, folder: Path) -> tuple[RankPlace, ...]:
    """Return the places of the ranks of all nodes, in order of rank."""
    places = [place for path in folder.glob(RANKS_FILES) for place in read_state(root, path, list[RankPlace]) or ()]
    return tuple(sorted(places, key=lambda place: place.rank))


def node_clocks(root: Path, folder: Path) -> list[tuple[NodeClock, float]]:
    """Return each node's clock at its launcher's start, and the file server's then, in seconds since the epoch."""
    found = []
    for path in sorted(folder.glob(CLOCK_FILES)):
        said = read_state(root, path, NodeClock)
        if said is not None:
            found.append((said, path.stat().st_mtime))
    return found


def noted_failures(root: Path, folder: Path) -> tuple[Failure, ...]:
    """Each node's first rank to fail."""
    noted = (read_state(root, path, Failure) for path in sorted(folder.glob(FAILURE_FILES)))
    return tuple(failure for failure in noted if failure is not None)


def leaving_note(root: Path, folder: Path) -> LeavingNote:
    """Why the trainer is about to leave, as it says before it saves; empty until then."""
    return read_state(root, folder / LEAVING_NOTE, LeavingNote) or LeavingNote()


def saved_note(root: Path, folder: Path) -> SavedNote | None:
    """Return the result of the last save request; None until the trainer has written it."""
    return read_state(root, folder / SAVED_NOTE, SavedNote)


def exit_report(root: Path, folder: Path) -> ExitReport:
    """Why the trainer left and after which iteration; empty until it has said so."""
    return read_state(root, folder / EXIT_REPORT, ExitReport) or ExitReport()


def started_with(root: Path, folder: Path) -> Environment | None:
    """Return packages, commits, modules and kernels as the first node saw them; None if they were not written."""
    return read_state(root, folder / ENVIRONMENT_FILE, Environment)


def set_aside(folder: Path) -> Path | None:
    """Rename what an earlier job of the same id left, so that it is not taken for this one's; returns its new place."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    for number in range(1, 1_000_000):
        place = folder.with_name(f"{folder.name}.{number}")
        if not place.exists():
            folder.rename(place)
            return place
    return None
