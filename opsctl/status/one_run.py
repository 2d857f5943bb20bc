"""One look at one run, with all that its screen shows; of many runs `reading` has less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opsctl.carbon.glance import energy_seen
from opsctl.evaluation.glance import evaluations_seen
from opsctl.records.run_view import RunView
from opsctl.slurm.client import SlurmLooks
from opsctl.status.health import Desk
from opsctl.status.open_findings import OpenFinding
from opsctl.status.overview import LOOKED_AT, Overview
from opsctl.status.reading import goodput_of, open_findings, read_desk
from opsctl.watch.runner import gather, settings_of


@dataclass(frozen=True)
class RunStatus:
    """One run as it was found in one look, with all that `status` shows of it."""

    run: RunView
    overview: Overview
    desk: Desk
    found: tuple[OpenFinding, ...]  # worst first


def look_at_run(run: RunView, slurm: SlurmLooks) -> RunStatus:
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
