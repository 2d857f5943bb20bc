"""The ledger as a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opsctl.core.output import printable, table_lines
from opsctl.core.timestamps import iso
from opsctl.run.checkpoints.backups import BackedUp, What, shown_place
from opsctl.transfer.backups.remote_layout import Form

_HEAD = ("WHAT", "GB", "SENT", "PROVEN", "STATE", "TO")


def backup_table(lines: Sequence[BackedUp], named: Collection[str] | None = None) -> list[str]:
    """Lines of a table, by destination and iteration. named: what [backup] to names; None where nobody can tell."""
    in_order = sorted(lines, key=lambda line: (line.to, line.iteration, line.what))
    # data sets may have places of their own
    rows = [_HEAD, *(_row(line, named is None or line.to in named or line.what is What.DATA) for line in in_order)]
    return table_lines(rows)


def _row(line: BackedUp, is_named: bool) -> tuple[str, ...]:
    what = f"{line.iteration} {line.what.words}" if line.what.is_checkpoint else line.what.words
    what += ", in one tar" * (line.form == Form.TAR)
    return (
        what,
        f"{line.bytes / 1e9:.3g}",
        iso(line.sent_at, "minutes") or "?",
        iso(line.verified_at, "minutes") or "never",
        printable(f"LOST: {line.lost}" if line.lost else "there"),
        printable(shown_place(line.to)) + ("" if is_named else ", not in [backup] to"),
    )
