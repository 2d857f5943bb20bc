"""Measure a sync without work, compared with Python that only loads the hub's client, which it must not need."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, record
from opsctl.run.config.paths import RunPaths

ROUNDS = 15
LIMIT_S = 0.5
#: Files that were sent: outputs of jobs and curves of a year's attempts.
FILES = 2_000

RUN_FILE = """
[run]
name = "bench"
[slurm]
nodes = 1
gpus_per_node = 2
time = "20:00"
[hub]
repo = "lab/bench"
"""


def main() -> dict[str, Any]:
    """Measure, print and return seconds of wall time."""
    with tempfile.TemporaryDirectory() as folder:
        run_file = _sent_run(Path(folder))
        # No one listens there: a request would fail, and the sync with it.
        own = {"HF_ENDPOINT": "http://127.0.0.1:9", "XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        words = [sys.executable, "-m", "opsctl", "hub", "sync", "--run", str(run_file)]
        loading = [sys.executable, "-c", "from huggingface_hub import HfApi"]
        rounds = [(_seconds(words, own), _seconds(loading, own)) for _ in range(ROUNDS)]
    sync_s, client_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"hub sync with nothing to do, {FILES} files sent: {sync_s:.3f} s (limit {LIMIT_S}), no request")
    print(f"  loading the client alone: {client_s:.3f} s")
    return {"hub_sync_nothing_s": sync_s, "client_load_s": client_s, "met": sync_s <= LIMIT_S}


def _sent_run(folder: Path) -> Path:
    """A run of which everything was sent, by its ledger."""
    run_file = folder / "run.toml"
    run_file.write_text(RUN_FILE)
    paths = RunPaths(folder / "output")
    paths.state.mkdir(parents=True)
    paths.job_outputs.mkdir(parents=True)
    lines = []
    for number in range(FILES):
        file = paths.job_outputs / f"{number}.out"
        file.write_bytes(b"line\n")
        mtime_ns = file.stat().st_mtime_ns
        path = str(file.relative_to(paths.output))
        of_file = {"name": path, "size": 5, "mtime_ns": mtime_ns, "bytes": 5, "verified_at": now()}
        lines.append(BackedUp(to="lab/bench", what=What.FILE, **of_file))  # type: ignore[arg-type]
    record(paths, lines, paths.hub_ledger)
    return run_file


def _seconds(words: list[str], own: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(words, env={**os.environ, **own}, capture_output=True, text=True, timeout=60, check=True)
    took_s = time.perf_counter() - began
    assert "hub" not in words or done.stdout == "bench: nothing new\n", done.stdout
    return took_s
