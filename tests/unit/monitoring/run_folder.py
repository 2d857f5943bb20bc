"""A run's folder in which every check finds something, and a stand-in for the Slurm that has its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from opsctl.core.errors import SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.config.load import load_run_file
from opsctl.run.state.chains import Chain, append_chain
from opsctl.run.state.identity import make_run_id
from opsctl.run.state.kill_switch import trigger
from opsctl.run.state.lease import take
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job
from tests.tiny_run import ready, write_run
from tests.unit.monitoring.jobs import RUNNING


class StandIn:
    """Answers with these jobs, or not at all, and may hide others'; its nodes are drained. Counts its questions."""

    def __init__(self, jobs: Iterable[Job] | None, hides: bool = False) -> None:
        self._jobs, self._hides = jobs, hides
        self.questions = 0

    def jobs(self, users: Any = None, job_ids: Any = None) -> list[Job]:
        self.questions += 1
        if self._jobs is None:
            raise SlurmUnreachable("Slurm does not answer (squeue: no answer within 8 s)")
        return list(self._jobs)

    def nodes(self, folded: str | None = None) -> list[Node]:
        self.questions += 1
        return [Node(folded or "node1", "draining", "bad GPU 3")]

    def hides_others_jobs(self) -> bool:
        self.questions += 1
        return self._hides


def slurm(jobs: Iterable[Job] | None) -> SlurmClient:
    """A Slurm with these jobs; None: one that does not answer."""
    return cast(SlurmClient, StandIn(jobs))


def troubled_run(folder: Path, damaged: bool = False) -> tuple[RunView, Job]:
    """A run with every trouble that a check finds, and its job.

    Another one writes it.

    damaged: its newest revision is so too, and nothing can be compared with the run file.
    """
    run = load_run_file(write_run(folder))
    revision = publish(ready(run))
    if damaged:
        (revision.folder / "run.json").unlink()
    run_id, paths = make_run_id(run.paths), run.paths
    write_run(folder, lr="2e-3")
    begun = now() - timedelta(hours=9)
    append_chain(paths, Chain(chain=10, token="t", submitted_at=begun, user="ana", array="1-3%1", output="/moved/from"))
    for number in (1, 2):
        at = begun + timedelta(hours=number)
        opened = Attempt(number=number, id=f"id-{number}", job_id=10 + number, opened_at=at)
        append_opened(paths, opened)
        append_closed(paths, structs.replace(opened, reason="failed", closed_at=at + timedelta(minutes=1)))
    take(paths, "elsewhere", 99, "ben", lambda _: None)
    _write_log(paths.main_log, begun)
    trigger(paths, "bad data")
    (paths.checkpoints / "global_step5").mkdir(parents=True)
    job = structs.replace(
        RUNNING, array_job_id=10, started_at=begun, submitted_at=begun, comment=f"opsctl run={run_id} submit=t"
    )
    return view(str(folder / "run.toml")), job


def _write_log(log: Path, at: datetime) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f" iteration {n}/ 500 | consumed samples: {8 * n} | elapsed time per iteration (s): 2.0 | lm loss: 5.0 |\n"
        for n in range(1, 8)
    ]
    log.write_text("".join(lines))
    os.utime(log, (at.timestamp(), at.timestamp()))
