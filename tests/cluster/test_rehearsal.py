"""A rehearsal that really trains on a real Slurm, and what its run is told of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.tiny_run import write_run


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        folder.chmod(0o755)
        yield folder


def test_a_finished_rehearsal_is_on_its_runs_record_and_a_later_change_is_told(
    local_cluster: RunningCluster, folder: Path
) -> None:
    parent, twin = folder / "large", folder / "small"
    parent.mkdir()
    write_run(parent, nodes=8)
    script = f'export PATH={Path(sys.executable).parent}:"$PATH"\n'
    (parent / "environment.sh").write_text(script)
    run_file = parent / "run.toml"
    text = run_file.read_text().replace("[slurm]", 'environment = "environment.sh"\n\n[slurm]', 1)
    run_file.write_text(text.replace("global_batch_size = 8", "global_batch_size = 16"))  # 16 replicas
    large = Opsctl(local_cluster, parent)
    assert "rehearsed" in large("submit", "--dry-run").err
    made = Opsctl(local_cluster, folder)("init", "small", "--from", str(parent), "--rehearsal")
    assert made.code == 0 and "nodes = 2" in made.err, made.err
    small = Opsctl(local_cluster, twin)
    small.ok("submit", "--begin", "now")
    record = large.state / "rehearsals.jsonl"
    wait_until(record.exists, 240, "the rehearsal to finish")
    assert (twin / "output" / "checkpoints" / "global_step20" / "manifest.json").is_file()
    assert "rehearsed" not in large("submit", "--dry-run").err
    assert "rehearsed" not in small("submit", "--dry-run").err
    (parent / "environment.sh").write_text(f"{script}module load another\n")
    assert "rehearsed" in large("submit", "--dry-run").err
