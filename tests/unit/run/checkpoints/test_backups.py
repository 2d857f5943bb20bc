"""The ledger of backups: the last line about a copy counts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, read_backups, record, where_full
from opsctl.run.config.paths import RunPaths


def test_a_copy_that_was_lost_no_longer_counts_and_counts_again_when_it_is_sent_again(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    sent = BackedUp(to="/copies", what=What.FULL, iteration=10, of="a1", verified_at=now())
    lost = msgspec.structs.replace(sent, lost="missing")
    counted = []
    for line in (sent, lost, sent):
        record(paths, [line])
        counted.append(where_full(read_backups(paths), 10, "a1"))
    assert counted == [["/copies"], [], ["/copies"]]
