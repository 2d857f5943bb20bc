"""What of a run is to be copied where: the published [backup], or what the command says."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import plain_url
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.run_view import RunView


@dataclass(frozen=True)
class Policy:
    """The table that counts, and what is to be said of it."""

    table: BackupTable
    warnings: tuple[str, ...] = ()

    @property
    def data_to(self) -> tuple[str, ...]:
        """Where data sets go."""
        return self.table.data_to or self.table.to

    @property
    def places(self) -> tuple[str, ...]:
        """Everywhere where something of the run goes, each once."""
        return tuple(dict.fromkeys((*self.table.to, *(self.data_to if self.table.data else ()))))


def policy_of(run: RunView, to: str | None = None, limit: str | None = None) -> Policy:
    """What is published counts, as for everything that a cron does; before that the run file.

    to: this place in place of the table's. Raises OpsctlError where nothing says where to.
    """
    written = run.loaded.file.backup if run.loaded else None
    table, warnings = written, ()  # type: BackupTable | None, tuple[str, ...]
    if run.revision is not None:
        table = run.revision.file.backup
        is_other = run.loaded is not None and written != table
        warnings = ("the run file's [backup] is not what is published: opsctl revise publishes it",) * is_other
    if table is None and to is None:
        hint = f" ({warnings[0]})" if warnings else ""
        raise OpsctlError(f"{run.table.name} has no [backup], which says where to: write one, or give --to URL{hint}")
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
