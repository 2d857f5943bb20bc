"""`hub-sync-logs` as ticks start it on a real Slurm: a clean environment, and a token where a job can have it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.run.config.locate import remember_run
from opsctl.run.config.paths import RunPaths
from tests.cluster.conftest import wait_until
from tests.cluster.test_cron import PERIOD_S, Desk, desk
from tests.hub_server import TOKEN, Hub, hub_server
from tests.tiny_run import write_run

__all__ = ["desk"]
LOG = "logs/main_log.txt"
JOB = "hourly/hub-sync-logs"


@pytest.fixture
def hub(desk: Desk) -> Iterator[Hub]:
    with hub_server(desk.base / "hub") as served:
        yield served


def synced_run(desk: Desk) -> RunPaths:
    """A run with a log, a [hub], and its token in a file beside it; known to the account."""
    run_file = write_run(desk.base / "run")
    token = run_file.with_name("token")
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    with run_file.open("a") as file:
        file.write('\n[hub]\nrepo = "lab/run"\ntoken = "file:token"\n')
    run_file.chmod(0o600)
    paths = RunPaths(run_file.parent / "output")
    paths.logs.mkdir(parents=True)
    paths.main_log.write_bytes(b"first line\nsecond line\n")
    remember_run("tiny", run_file, desk.environment("root"))
    return paths


def only_the_sync(desk: Desk, hub: Hub) -> None:
    """The shipped job and no other; it is told where the hub is as a site tells it, in the job's own file."""
    job = desk.folder / "cron.hourly" / "hub-sync-logs.slurm"
    shipped = job.read_text()
    desk.clear_jobs()
    where = "".join(f"export {name}={value}\n" for name, value in (("HF_ENDPOINT", hub.endpoint), ("NO_PROXY", "'*'")))
    job.write_text(shipped.replace("exec opsctl", f"{where}exec opsctl"))


def ended(desk: Desk, state: str) -> int:
    """So many runs of it ended like that."""
    lines = [line for line in desk.lines("job-runs.jsonl") if line["event"] == "ended" and line["job"] == JOB]
    return [line["state"] for line in lines].count(state)


def test_a_tick_sends_the_logs_bytes_and_a_sync_that_fails_is_a_finding(
    desk: Desk, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = synced_run(desk)
    for name in ("HF_TOKEN", "HF_HOME"):
        monkeypatch.setenv(name, "only this shell has it")
    desk.ok("start", "--tick", f"{PERIOD_S}s", "--via", "slurm")
    only_the_sync(desk, hub)
    wait_until(lambda: ended(desk, "done") > 0, 60, "a sync that a tick has started")
    assert hub.content("lab/run", LOG) == paths.main_log.read_bytes()
    assert {one.headers["authorization"] for one in hub.requests if one.bears_token} == {f"Bearer {TOKEN}"}
    hub.accounts.clear()
    paths.main_log.write_bytes(b"another line\n" * 3)
    wait_until(lambda: ended(desk, "failed") >= 2, 60, "two syncs that are refused")
    words = [sys.executable, "-m", "opsctl", "watch", "cron-jobs", "--run", str(desk.base / "run" / "run.toml")]
    told = subprocess.run(words, env=desk.environment("root"), capture_output=True, text=True, timeout=60)
    assert told.returncode == 1 and f"cron job {JOB} has failed" in told.stdout, told.stdout + told.stderr
    everything = b"".join(path.read_bytes() for path in Path(desk.folder).rglob("*") if path.is_file())
    assert TOKEN.encode() not in everything
