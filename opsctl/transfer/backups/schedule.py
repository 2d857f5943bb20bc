"""The backup policy of a run."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import Every, plain_url
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.run_view import RunView
from opsctl.transfer.sending.plan import Rules


@dataclass(frozen=True)
class Policy:
    """The table that counts, and its warnings."""

    table: BackupTable
    warnings: tuple[str, ...] = ()

    @property
    def data_to(self) -> tuple[str, ...]:
        """Return where data sets go."""
        return self.table.data_to or self.table.to

    @property
    def places(self) -> tuple[str, ...]:
        """Return every place that gets something of the run, once."""
        return tuple(dict.fromkeys((*self.table.to, *(self.data_to if self.table.data else ()))))


def policy_of(run: RunView, to: str | None = None, limit: str | None = None) -> Policy:
    """Return what is published; before that what the run file has.

    to: this place in place of the table's. Raises OpsctlError where no place is named.
    """
    written = run.loaded.file.backup if run.loaded else None
    table, warnings = written, ()  # type: BackupTable | None, tuple[str, ...]
    if run.revision is not None:
        table = run.revision.file.backup
        is_other = run.loaded is not None and written != table
        warnings = ("[backup] of the run file differs from the published one; to publish it: opsctl revise",) * is_other
    if table is None and to is None:
        hint = f" ({warnings[0]})" if warnings else ""
        raise OpsctlError(
            f"{run.table.name} has no [backup], which names the destinations: write one, or give --to URL{hint}"
        )
    table = table or BackupTable()
    table = msgspec.structs.replace(
        table,
        to=(plain_url(to),) if to else tuple(plain_url(one) for one in table.to),
        data_to=() if to else tuple(plain_url(one) for one in table.data_to),
        limit=limit or table.limit,
    )
    if not table.to:
        raise OpsctlError(f"[backup] of {run.table.name} names no place: write to = [...], or give --to URL")
    return Policy(table, warnings)


def rules_of(table: BackupTable) -> Rules:
    """Return the rules for checkpoints."""
    return Rules(Every(table.full_every, table.weights_every), table.pinned, table.spikes)


def never_whole(table: BackupTable, run: RunView) -> str:
    """Return a warning if [retention] waits for complete backups that [backup] never makes; else an empty text."""
    file = run.revision.file if run.revision else run.loaded.file if run.loaded else None
    until = file.retention.until_backed_up if file and file.retention else 0
    if not until or (table.full_every and until % table.full_every == 0):
        return ""
    return (
        f"[retention] until_backed_up = {until} keeps whole checkpoints that [backup] full_every = {table.full_every} "
        "never sends: let the first be a multiple of the second"
    )


def has_backup(run: RunView) -> bool:
    """Return True for a run whose published run file has a [backup]."""
    return run.revision is not None and run.revision.file.backup is not None


def endpoint_of(run: RunView, url: str) -> str | None:
    """Return the endpoint that the run's [backup] gives for a destination that it names; None without."""
    try:
        table = policy_of(run).table
    except OpsctlError:
        return None
    return table.endpoint if plain_url(url) in table.to else None
