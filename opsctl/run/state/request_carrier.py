"""Taking requests, one process of several, and putting on record what came of them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from opsctl.core.files.state_files import append_state, make_folder
from opsctl.core.files.trusted import Keepers, create_file, open_within, opened_folder
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.requests import Asked, Audited, Outcome, audited, changed_at, judged, taken, taken_folder, told_of
from trainer.formats.file_lock import is_locked, lock_within


class Carrier:
    """One process that takes requests and answers them, under a mark that shows that it lives. One thread uses it."""

    def __init__(self, paths: RunPaths, by: str) -> None:
        """by: who that is, for the record."""
        self._paths, self.by = paths, by
        self.mark = secrets.token_hex(8)
        self._lock: int | None = None
        self._unwritten: dict[str, Audited] = {}

    def take(self, request_id: str) -> Asked | None:
        """Have this request from now on, as it is now; None where somebody else was quicker. Raises OSError."""
        place = taken_folder(self._paths)
        make_folder(self._paths.output, place)
        name = f"{request_id}.{self.mark}.json"
        with (
            opened_folder(self._paths.output, self._paths.requests) as (waits, _),
            opened_folder(self._paths.output, place) as (folder, keepers),
        ):
            self._show_life(folder, place)
            try:
                before = os.stat(f"{request_id}.json", dir_fd=waits, follow_symlinks=False)
                os.rename(f"{request_id}.json", name, src_dir_fd=waits, dst_dir_fd=folder)
            except FileNotFoundError:
                return None
            found = judged(folder, keepers, place / name, request_id, self.mark)
        # A rename counts as a change: when it was asked is what was seen before.
        return found and replace(found, at=changed_at(before))

    def answer(self, asked: Asked, outcome: Outcome, words: str) -> Audited:
        """Put on record what came of a request that this process, or a dead one, had taken.

        Where the disk takes no line, `write_rest` tries again.
        """
        answer = {"by": self.by, "at": now().replace(microsecond=0), "outcome": str(outcome), "words": words}
        line = msgspec.structs.replace(told_of(asked), **answer)
        self._unwritten[f"{asked.id}.{asked.taken_by}.json"] = line
        self.write_rest()
        return line

    def write_rest(self) -> str:
        """Write the answers that could not be written; why that still fails, empty when all is on record."""
        for name, line in list(self._unwritten.items()):
            try:
                append_state(self._paths.output, self._paths.audit, line)
            except OSError as error:
                return f"{error.filename or self._paths.audit}: {error.strerror}"
            del self._unwritten[name]
            with (
                contextlib.suppress(OSError),
                opened_folder(self._paths.output, taken_folder(self._paths)) as (folder, _),
            ):
                _remove(folder, name)
        return ""

    def left_by_the_dead(self) -> list[Asked]:
        """What processes that live no more had taken and not answered. Raises OSError.

        Where files have no locks nobody can tell, and there are none.
        """
        found = [one for one in taken(self._paths) if one.taken_by != self.mark]
        if not found:
            return []
        answered = {line.id for line in audited(self._paths)}
        with opened_folder(self._paths.output, taken_folder(self._paths)) as (folder, keepers):
            dead = {one.taken_by for one in found if not self._lives(folder, keepers, one.taken_by)}
            for one in found:
                if one.taken_by in dead and one.id in answered:
                    _remove(folder, f"{one.id}.{one.taken_by}.json")
        return [one for one in found if one.taken_by in dead and one.id not in answered]

    def close(self) -> None:
        """No more requests are taken."""
        if self._lock is not None:
            with (
                contextlib.suppress(OSError),
                opened_folder(self._paths.output, taken_folder(self._paths)) as (folder, _),
            ):
                os.unlink(_sign_of_life(self.mark), dir_fd=folder)
            os.close(self._lock)
            self._lock = None

    def _show_life(self, folder: int, place: Path) -> None:
        if self._lock is None:
            self._lock = create_file(folder, place / _sign_of_life(self.mark))
            lock_within(self._lock, 0)

    def _lives(self, folder: int, keepers: Keepers, mark: str) -> bool:
        place = taken_folder(self._paths)
        try:
            fd = open_within(folder, keepers, place / _sign_of_life(mark))
        except FileNotFoundError:
            return False
        try:
            return is_locked(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def carrying(paths: RunPaths, by: str) -> Iterator[Carrier]:
    """A carrier inside the block."""
    carrier = Carrier(paths, by)
    try:
        yield carrier
    finally:
        carrier.close()


def _sign_of_life(mark: str) -> str:
    return f".{mark}.alive"


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=folder)
