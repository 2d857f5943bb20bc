"""`opsctl on-call` where there is no Slurm."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.core.timestamps import now
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from tests.printed_json import printed
from tests.tiny_run import write_checkpoint
from tests.unit.cli.called import answer
from tests.unit.cli.test_status_all import several


def test_without_slurm_the_records_are_told_and_the_queue_is_not_known(tmp_path: Path) -> None:
    paths = several(tmp_path, "tr1")["tr1"]
    attempt = Attempt(number=1, id="a", job_id=12, user="ann", opened_at=now(), closed_at=now(), reason="signal")
    append_opened(paths, attempt)
    append_closed(paths, attempt)
    write_checkpoint(tmp_path / "tr1", 20, 160)
    found = answer(tmp_path / "tr1", "on-call")
    assert (found.returncode, found.stderr) == (0, "")
    for fact in (r"^tr1: ", r"attempt 1 \(12\).*\bann\b", r"attempt 1 \(12\).*\bsignal\b", "iteration 20", "squeue"):
        assert re.search(fact, found.stdout, re.MULTILINE), fact


def test_last_tells_only_what_came_after_the_last_time(tmp_path: Path) -> None:
    several(tmp_path, "tr1")
    words = ["on-call", "--run", "tr1", "--since", "last", "--json"]
    (first,) = printed("on-call", answer(tmp_path, *words).stdout)
    (second,) = printed("on-call", answer(tmp_path, *words).stdout)
    assert first["happened"] and not second["happened"] and second["since"] == first["at"]


def test_all_runs_are_told_one_after_the_other_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    several(tmp_path, "tr1", "tr2")
    (tmp_path / "tr2" / "run.toml").write_text("this is no toml")
    found = answer(tmp_path, "on-call", "--all-runs")
    assert found.returncode == 0 and "tr2/run.toml" in found.stdout
    assert [line[:4] for line in found.stdout.splitlines() if re.match(r"tr\d: ", line)] == ["tr1:", "tr2:"]
