"""The training job checks the scheduler, as that checks the training: one that died is reported and started again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.jobs.runner.watch_thread import WatchThread
from opsctl.jobs.scheduler.chain import is_dead, start
from opsctl.jobs.scheduler.context import Cron
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import cron_table, jobs_table
from opsctl.run.logs.pulse import alert_line
from opsctl.run.state import alerts
from opsctl.run.state.alerts import Noted
from opsctl.run.state.register import cron_folder, cron_folder_option
from opsctl.run.state.scheduler import CronChain, CronPaths, Heartbeat, heartbeat, read_chain
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import format_duration

#: The key of the check that finds the same.
KEY = "cron"
#: Between two looks: a tenth of the period, within these, seconds.
LEAST_S, MOST_S = 2.0, 60.0


@dataclass
class Death:
    """The messages and restarts about one death of the scheduler's chain. Only decides; changes nothing."""

    is_told: bool = False
    tried_at: float | None = None  # monotonic, of the last restart

    def news(self, chain: CronChain | None, beat: Heartbeat | None) -> list[str]:
        """Return the lines about a change since the last check; `is_told` is then whether the chain is dead."""
        was_dead, self.is_told = self.is_told, is_dead(chain, beat)
        if self.is_told and not was_dead and chain is not None:
            age = f"for {format_duration(beat.age_s)}" if beat else "yet"
            return [alert_line(f"the cron has not ticked {age}: it is carried by {chain.carrier()}")]
        if was_dead and not self.is_told:
            self.tried_at = None
            return [f"opsctl: the cron {'is stopped' if chain is None or chain.is_stopped else 'ticks again'}"]
        return []

    def may_restart(self, chain: CronChain, account: str, at: float) -> bool:
        """Return whether to start it again now: once in two periods, and only who carries it."""
        if chain.carried_by != account or (self.tried_at is not None and at - self.tried_at < 2 * chain.period_s):
            return False
        self.tried_at = at
        return True


class CronWatch(WatchThread):
    """Checks the scheduler of the job's owner."""

    end_wait_s = 2.0

    def __init__(self, paths: RunPaths, cluster: Cluster, least_s: float = LEAST_S) -> None:
        super().__init__("cron")
        self.paths, self.cluster, self.least_s = paths, cluster, least_s
        self.death = Death()
        self._noted = False
        self._period_s = 60.0

    def check(self) -> float:
        """Check once, and start a scheduler again that has died."""
        try:
            self._period_s = self._checked()
            self.report_trouble("")
        except (OpsctlError, OSError) as error:
            self.report_trouble(f"opsctl: the cron cannot be seen: {error}")
        except Exception as error:  # whatever it is, the training goes on
            self.report_trouble(f"opsctl: the check of the cron failed: {error!r}")
        return min(MOST_S, max(self.least_s, self._period_s / 10))

    def _checked(self) -> float:
        cron = CronPaths(cron_folder())
        try:
            chain, beat = read_chain(cron), heartbeat(cron)
        except FileNotFoundError:
            chain, beat = None, None
        for line in self.death.news(chain, beat):
            self.report(line)
        self._alert(self.death.is_told, chain)
        if self.death.is_told and chain is not None and self.death.may_restart(chain, account_name(), time.monotonic()):
            self._restart(cron)
        return float(chain.period_s) if chain is not None else MOST_S * 10

    def _alert(self, is_over: bool, chain: CronChain | None) -> None:
        """Leave an alert for a host that can send it: nodes often have no internet."""
        if is_over == self._noted:
            return
        if is_over and chain is not None:
            text = f"the cron carried by {chain.carrier()} has not ticked for two periods (seen by the training job)"
            option = cron_folder_option()
            todo = f"opsctl cron status{option}; opsctl cron start{option}"
            alerts.note(self.paths, [Noted(KEY, "critical", text, todo)], now())
        else:
            alerts.note_recovered(self.paths, [KEY], now())
        self._noted = is_over

    def _restart(self, paths: CronPaths) -> None:
        client, partition = client_for(self.cluster), jobs_table().internet_partition
        cron = Cron(paths, cron_table(), self.cluster, client, dict(os.environ), partition)
        try:
            done = start(cron, None, None, False, time.time)
        except (OpsctlError, OSError) as error:
            self.report(f"opsctl: the cron could not be started again: {error}")
            return
        ids = ", ".join(map(str, done.queued)) or "none"
        self.report(f"opsctl: started the cron again, {done.chain.carrier()}; ticks queued now: {ids}")
