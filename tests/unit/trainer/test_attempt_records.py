"""What a launcher writes down of its node's ranks."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from trainer.attempt_records import Node, record_failure
from trainer.first_failure import Death


def test_what_somebody_put_among_the_ranks_words_neither_hides_the_failure_nor_keeps_the_launcher(
    tmp_path: Path,
) -> None:
    node = Node(1, 2, 0, "localhost", 1, tmp_path, "x01", "main", 30)
    for name in ("0", "two"):
        (tmp_path / "x01" / "planted" / "attempt_0" / name).mkdir(parents=True)
        os.mkfifo(tmp_path / "x01" / "planted" / "attempt_0" / name / "error.json")
    assert record_failure(node, [Death(0, datetime.now().astimezone(), 3, None)], None, None) == 3
    written = json.loads((tmp_path / "failure-0.json").read_text())
    assert (written["rank"], written["exit_code"]) == (0, 3)
