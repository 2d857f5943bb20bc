"""One look at one run, with all that its screen shows; of many runs `reading` has less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opsctl.diagnosis.carbon.brief import energy_seen
from opsctl.jobs.evaluation.brief import evaluations_seen
from opsctl.monitoring.runner import gather, settings_of
from opsctl.run.state.run_view import RunView
from opsctl.slurm.client import SlurmReader
from opsctl.ui.status.health import Desk
from opsctl.ui.status.open_findings import OpenFinding
from opsctl.ui.status.overview import LOOKED_AT, Overview
from opsctl.ui.status.read_run import goodput_of, open_findings, read_desk


@dataclass(frozen=True)
class RunStatus:
    """One run as it was found in one look, with all that `status` shows of it."""

    run: RunView
    overview: Overview
    desk: Desk
    found: tuple[OpenFinding, ...]  # worst first


def look_at_run(run: RunView, slurm: SlurmReader) -> RunStatus:
    """One look at all that `status` shows. Raises OpsctlError or OSError for what one screen cannot do without."""
    snapshot = gather(run, slurm, LOOKED_AT)
    overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot, settings_of(run))
    desk = replace(
        read_desk(run.paths, snapshot.now),
        energy=energy_seen(run.paths, run.loaded.file.carbon if run.loaded is not None else None),
        evaluation=evaluations_seen(run.paths),
        goodput=goodput_of(snapshot),
    )
    return RunStatus(run, overview, desk, open_findings(run, overview, desk))
