"""What of a run was rehearsed: a line for each rehearsal that came to its end, with what it had in common with it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import RunFileError
from opsctl.core.files.state_files import append_state, read_lines
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.rehearsal import NODES, digest_of_unscaled
from opsctl.run.config.schema import RunFile
from opsctl.run.config.toml_file import toml_bytes
from opsctl.run.state.group_folder import open_output
from opsctl.run.state.run_view import glance
from trainer.formats.json_text import Moment

#: Runs on no more nodes are small: twice their twin is nothing that a twin need be made for.
_SMALL_NODES = 2 * NODES


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `rehearsals.jsonl`."""

    digest: str  # of all that is not scaled
    at: Moment
    by: str  # user@host
    rehearsal: str  # its output folder
    revision: str  # its own
    environment: str = ""  # digest of what its attempt was started with


def record_rehearsal(file: RunFile, output: Path, revision: str, environment: str) -> None:
    """Put it on the record of the run that `file`, expanded, rehearses. Raises OSError, OpsctlError."""
    assert file.run.rehearses is not None
    seen = glance(file.run.rehearses)
    parent = seen.paths
    # A run is rehearsed before it is submitted; whose it is makes its folder, as the first submit would.
    if not parent.output.exists() and Path(file.run.rehearses).stat().st_uid == os.geteuid():
        open_output(parent, seen.table.group)
    line = Rehearsed(
        digest=_digest(file),
        at=now(),
        by=account_and_host(),
        rehearsal=str(output),
        revision=revision,
        environment=environment,
    )
    append_state(parent.output, parent.rehearsals, line)


def rehearsed_as_now(file: RunFile, paths: RunPaths) -> Rehearsed | None:
    """The newest rehearsal of what the expanded `file` says now. Raises OSError."""
    digest = _digest(file)
    same = [one for one in read_lines(paths.output, paths.rehearsals, Rehearsed) if one.digest == digest]
    return max(same, key=lambda one: one.at, default=None)


def never_rehearsed(file: RunFile, paths: RunPaths) -> tuple[str, ...]:
    """At most one line: that what the expanded `file` says now was never rehearsed; of a small run nothing is said."""
    if file.run.rehearses is not None or file.slurm.nodes <= _SMALL_NODES:
        return ()
    try:
        known = read_lines(paths.output, paths.rehearsals, Rehearsed)
        if any(one.digest == _digest(file) for one in known):
            return ()
    except OSError as error:
        return (f"whether this was rehearsed cannot be told: {error.strerror}",)
    if not known:
        return ("this run was never rehearsed: opsctl init NAME --from RUN --rehearsal makes its two-node twin",)
    last = max(known, key=lambda one: one.at)
    return (f"this was never rehearsed as it is now; {last.rehearsal} was, at {last.at:%Y-%m-%d %H:%M}, and differs",)


def _digest(file: RunFile) -> str:
    """With the environment script as it is now; one that cannot be read is like none."""
    script = ""
    if file.run.environment is not None:
        with contextlib.suppress(RunFileError):
            script = toml_bytes(Path(file.run.environment)).decode(errors="replace")
    return digest_of_unscaled(file, script)
