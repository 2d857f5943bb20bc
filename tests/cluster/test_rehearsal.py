"""A rehearsal that really trains on a real Slurm."""

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


def test_a_rehearsal_trains_to_its_end(local_cluster: RunningCluster, folder: Path) -> None:
    parent, twin = folder / "large", folder / "small"
    parent.mkdir()
    write_run(parent, nodes=8)
    (parent / "environment.sh").write_text(f'export PATH={Path(sys.executable).parent}:"$PATH"\n')
    run_file = parent / "run.toml"
    text = run_file.read_text().replace("[slurm]", 'environment = "environment.sh"\n\n[slurm]', 1)
    run_file.write_text(text.replace("global_batch_size = 8", "global_batch_size = 16"))  # 16 replicas
    made = Opsctl(local_cluster, folder)("init", "small", "--from", str(parent), "--rehearsal")
    assert made.code == 0 and "nodes = 2" in made.err, made.err
    Opsctl(local_cluster, twin).ok("submit", "--begin", "now")
    wait_until((twin / "output/checkpoints/global_step20/manifest.json").is_file, 240, "the rehearsal to finish")
