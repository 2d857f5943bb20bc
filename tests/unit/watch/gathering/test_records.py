from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from opsctl.attempts.events import Attempt, append_closed, append_opened
from opsctl.moments import now
from opsctl.records.chains import REFILL, SUBMIT, Chain, append_chain
from opsctl.records.run_view import view
from opsctl.watch.runner import gather
from opsctl.watch.snapshot import Part
from tests.tiny_run import write_run
from tests.unit.watch.run_folder import slurm


def test_what_refill_submits_does_not_set_the_brakes_count_back(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    run.paths.state.mkdir(parents=True)
    begin = now() - timedelta(hours=9)

    def submitted(number: int, hour: int, how: str) -> None:
        at = begin + timedelta(hours=hour)
        append_chain(run.paths, Chain(chain=number, submitted_at=at, user="ann", array="1-3%1", how=how))

    def failed(number: int, hour: int) -> None:
        at = begin + timedelta(hours=hour)
        attempt = Attempt(number=number, id=str(number), job_id=number, opened_at=at, closed_at=at, reason="exit")
        append_opened(run.paths, attempt)
        append_closed(run.paths, attempt)

    submitted(20, 0, SUBMIT)
    failed(1, 1)
    failed(2, 2)
    submitted(21, 3, REFILL)
    failed(3, 4)
    assert gather(run, slurm([]), Part.ATTEMPTS).attempts_without_progress == 3
    submitted(22, 5, SUBMIT)
    assert gather(run, slurm([]), Part.ATTEMPTS).attempts_without_progress == 0
