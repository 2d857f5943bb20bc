"""The clock that ticks go by: this host's, or the file server's where the host's cannot be right."""

from __future__ import annotations

from collections.abc import Callable

from opsctl.core.files.heartbeats import file_servers_now_ns
from opsctl.core.files.trusted import opened_folder
from opsctl.run.state.scheduler import CronPaths

#: Two clocks this far apart, in periods, and at least in seconds: one of them is wrong, and several hosts share the
#: file server's. Up to there a tick merges or waits, which claims once made put right.
_APART_PERIODS, _APART_S = 2, 600.0


def trusted_clock(
    paths: CronPaths, period_s: int, host_s: Callable[[], float], server_s: Callable[[], float | None] | None = None
) -> Callable[[], float]:
    """Seconds since the epoch by `host_s`, put right by the file server's clock where it is far from that.

    A single node that is a year ahead would else claim a year's due times and take all nearer ticks out of the queue.
    """
    at, said = host_s(), server_s() if server_s else _file_server_s(paths)
    apart_s = 0.0 if said is None else said - at
    if abs(apart_s) <= max(_APART_S, _APART_PERIODS * period_s):
        return host_s
    return lambda: host_s() + apart_s


def _file_server_s(paths: CronPaths) -> float | None:
    """The file server's time; None where no file may be made."""
    try:
        with opened_folder(paths.folder, paths.state) as (folder, _):
            said_ns = file_servers_now_ns(folder, paths.heartbeat)
    except OSError:
        return None
    return None if said_ns is None else said_ns / 1e9
