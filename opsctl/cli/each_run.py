"""The runs that a command with `--all-runs` acts for, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.run.state.run_view import RunView


def each_run(
    is_wanted: Callable[[RunView], bool], left: Callable[[str, Exception], None] | None = None
) -> Iterator[tuple[str, RunView]]:
    """(name, run) of every run that this account acts for without being told its name, and that `is_wanted`.

    One that is gone, broken or closed is for the checks of all runs to say: it is told to `left`, and stops no other.
    """
    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message
    from opsctl.run.state.register import all_runs, may_act_for, paths_of
    from opsctl.run.state.run_view import view_known

    for known in all_runs():
        try:
            paths = paths_of(known)
            seen = view_known(Path(known.run_file), paths.output)
            if not (may_act_for(known, paths) and is_wanted(seen)):
                continue
        except (OpsctlError, OSError) as error:
            message(f"{known.name}: left alone: {error}")
            if left is not None:
                left(known.name, error)
            continue
        yield known.name, seen
