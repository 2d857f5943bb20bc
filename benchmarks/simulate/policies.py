"""Ways to run a training: which of the product's decisions are made, and how often a person looks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.simulate import figures
from opsctl.run.config.schema import WatchTable


@dataclass(frozen=True)
class Way:
    """One of them. What is False is not decided by the product."""

    name: str
    refill: bool = False
    brake: bool = False
    exclusion: bool = False
    save_interval: bool = False  # by what the report on where the time went says is best
    probe: bool = False
    hang_watch: bool = False
    slow_nodes: bool = False
    restarts: bool = False  # in the same job, on the same nodes
    memory_s: float = math.inf  # between snapshots in host memory, which a restart in the job resumes from
    is_copied: bool = False  # each node has the next one's snapshot too
    fewer_nodes: bool = False  # in the same job, where no spare one is left
    spare_share: float = 0.0  # further nodes of each job, of those that are trained on
    slower_node_percent: float = WatchTable().slower_node_percent
    alerts: bool = False  # a person is told, and comes
    looks_every_s: float = math.inf  # a person who looks by himself
    seeks: bool = False  # and who looks for bad and slow nodes
    watchdog_s: float = math.inf  # torch's own: a collective that takes longer ends the step
    youngs_interval: bool = False  # between saves, by the failures that are to be expected

    def spare(self, nodes: int) -> int:
        """Further nodes of a job that trains on so many."""
        return math.ceil(self.spare_share * nodes)


OURS = Way(
    "ours",
    refill=True,
    brake=True,
    exclusion=True,
    save_interval=True,
    probe=True,
    hang_watch=True,
    slow_nodes=True,
    restarts=True,
    spare_share=0.02,
    alerts=True,
)
PLAIN = Way("plain chains", looks_every_s=DAY_S)
EIGHT_HOURS = Way("a person every 8 h", looks_every_s=8 * HOUR_S, seeks=True)
#: Both with what a training has today without the product: a watchdog, and an interval by a formula.
PLAIN_TODAY, EIGHT_HOURS_TODAY = (
    replace(one, name=f"{one.name}, today", watchdog_s=figures.WATCHDOG_S.value, youngs_interval=True)
    for one in (PLAIN, EIGHT_HOURS)
)
#: Ours with a snapshot in host memory about once a minute.
WITH_MEMORY = (
    replace(OURS, name="ours, in memory", memory_s=60.0),
    replace(OURS, name="ours, in memory and on a partner", memory_s=60.0, is_copied=True),
)
#: What is compared.
WAYS = (OURS, PLAIN, PLAIN_TODAY, EIGHT_HOURS, EIGHT_HOURS_TODAY)
#: Each way that lacks one decision: what that is worth.
WITHOUT = (
    *(
        replace(OURS, name=f"ours without {one.name.replace('_', ' ')}", **{one.name: False})
        for one in fields(Way)
        if one.default is False and one.name not in ("alerts", "seeks", "youngs_interval", "is_copied", "fewer_nodes")
    ),
    replace(OURS, name="ours without spare nodes", spare_share=0.0),
    replace(OURS, name="ours without spare nodes, on fewer", spare_share=0.0, fewer_nodes=True),
)
