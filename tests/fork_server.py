"""A process without threads that forks the tests' child processes: a fork of a process with threads may crash."""

from __future__ import annotations

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["tests.unit.monitoring.alerts.preloaded", "tests.unit.transfer.backups.test_killed_over_s3"]
)
