"""Repeated snapshots of one run or of all for the live screen, and the thread that makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from typing import Protocol

from opsctl.core.timestamps import now
from opsctl.monitoring.all_runs import snapshot_all
from opsctl.monitoring.overview import status_of_run
from opsctl.monitoring.runner import in_words, settings_of
from opsctl.run.config.locate import locate_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.follow import main_source
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.register import all_runs
from opsctl.run.state.run_view import glance, view
from opsctl.slurm.cache import cached_client
from opsctl.ui.status.all_runs import LIST_PARTS, Row, all_lines, rows_of
from opsctl.ui.tui.panel import Shown, cut, panel_lines

#: Seconds between two looks at files; Slurm is asked far less often.
REFRESH_EVERY_S = 5.0
#: The log's newest lines that are kept for a tall screen.
_LOG_LINES = 200


class Watched(Protocol):
    """The subject of the live screen. `look` is called in a separate thread, the others in the screen's."""

    def look(self) -> None:
        """Take a snapshot; a failure is shown and does not end the screen."""

    def lines(self, width: int, height: int, colour: bool) -> list[str]:
        """Return the newest snapshot in at most `height` lines of at most `width` characters."""


class OneRun:
    """See Watched. Raises OpsctlError at once for a run that is not there."""

    def __init__(self, chosen: str | None, cluster: str | None) -> None:
        self._run_file = str(locate_run_file(chosen))  # once: a later change of $OPSCTL_RUN changes nothing
        found = glance(self._run_file)
        self._cluster, self._slurm_of = cluster, cache(partial(cached_client, is_live=True))
        self._shown = Shown(found.table.name)

    def look(self) -> None:
        """See Watched."""
        try:
            self._shown = self._looked()
        except Exception as error:  # whatever it is, who watches must be told and go on seeing the rest
            self._shown = replace(self._shown, problem=in_words(error))

    def lines(self, width: int, height: int, colour: bool) -> list[str]:
        """See Watched."""
        return panel_lines(self._shown, now(), width, height, colour)

    def _looked(self) -> Shown:
        run = view(self._run_file)
        status = status_of_run(run, self._slurm_of(choose_cluster(self._cluster, run.paths)))
        return Shown(
            run.table.name, status, settings_of(run).saves, _last_lines(run.paths), "", status.overview.seen.now
        )


class AllRuns:
    """See Watched."""

    def __init__(self, cluster: str | None) -> None:
        self._cluster, self._slurm_of = cluster, cache(partial(cached_client, is_live=True))
        self._rows: list[Row] | None = None
        self._looked_at: datetime | None = None
        self._problem = ""

    def look(self) -> None:
        """See Watched."""
        try:
            found = snapshot_all(
                all_runs(), lambda paths: choose_cluster(self._cluster, paths), self._slurm_of, LIST_PARTS
            )
            self._rows, self._looked_at, self._problem = rows_of(found), now(), ""
        except Exception as error:  # as of one run
            self._problem = in_words(error)

    def lines(self, width: int, height: int, colour: bool) -> list[str]:
        """See Watched."""
        found = [f"cannot look: {self._problem}"] if self._problem else []
        if self._rows is None:
            found += [] if found else ["looking ..."]
        else:
            found += all_lines(self._rows, self._looked_at or now(), width, colour)
        if len(found) > height > 0:
            left_out = len(found) - height + 1
            found = [*found[: height - 1], f"{left_out} more lines: a taller window shows them"]
        return [cut(line, width) for line in found[:height]]


def _last_lines(paths: RunPaths) -> tuple[str, ...]:
    try:
        return tuple(main_source(paths).last(_LOG_LINES))
    except Exception as error:  # there is none yet, or it is not to be believed
        return (in_words(error),)


class Refresher:
    """A thread that refreshes regularly and ends with the process: a file system that hangs does not block `q`."""

    def __init__(self, look: Callable[[], None], tell: Callable[[], None], every_s: float = REFRESH_EVERY_S) -> None:
        self._look, self._tell, self._every_s = look, tell, every_s
        self._wanted, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True, name="looker")

    def start(self) -> None:
        """Start with a snapshot now."""
        self._thread.start()

    def again(self) -> None:
        """Look as soon as may be."""
        self._wanted.set()

    def stop(self) -> None:
        """Begin no further look."""
        self._is_over = True
        self._wanted.set()

    def _run(self) -> None:
        while not self._is_over:
            self._look()
            if not self._is_over:
                self._tell()
            self._wanted.wait(self._every_s)
            self._wanted.clear()
