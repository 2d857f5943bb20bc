"""A training that measures its energy: one tracker on the node, and its last total whichever way the training ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool, RanksFailed
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.formats.attempt.carbon import Reading, read
from trainer.formats.distribution import requirement

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def measured_training(options: dict[str, Any], disturb: dict[str, Any] | None, environment: dict[str, str]) -> Seen:
    """In a rank: train with memory that takes 1 kW and a CPU that takes nothing."""
    os.environ.update({"CODECARBON_FORCE_RAM_POWER": "1000", "CODECARBON_FORCE_CPU_POWER": "0", **environment})
    seen = run_training(options, disturb)
    for name in environment:
        del os.environ[name]
    return seen


def train(
    pool: Pool, corpus: str, folder: Path, disturb: dict[str, Any] | None = None, **environment: str
) -> list[Seen]:
    options = {
        "data_path": [corpus],
        "train_iters": 4,
        "save": str(folder / "checkpoints"),
        "load": str(folder / "checkpoints"),
        "kill_switch_path": str(folder / "kill-switch"),
        "codecarbon_dir": str(folder / "codecarbon"),
        "carbon_intensity_g_per_kwh": 100.0,
    }
    seen: list[Seen] = pool.run(2, measured_training, options, disturb, environment)
    return seen


def files(folder: Path, attempts: int = 1) -> list[Reading]:
    """Return the trackers' files of so many attempts, when each has its last total."""
    until = time.monotonic() + 120
    while True:
        found = []
        for file in sorted((folder / "codecarbon").glob("[!.]*")):
            readings, problems = read(file.name, file.read_text())
            assert problems == []
            found += readings
        if sum(one.beside is not None and one.beside.is_final for one in found) >= attempts or time.monotonic() > until:
            return found
        time.sleep(0.1)


def test_two_ranks_of_a_node_write_one_file_and_every_attempt_one_of_its_own(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """The kill switch, then SIGTERM: both leave the last total, at exit 0."""
    disturb: dict[str, Any] = {"after_step": 2, "touch": str(tmp_path / "kill-switch")}
    first = train(pool, corpus, tmp_path, disturb, SLURM_JOB_ID="70", SLURMD_NODENAME="x1")
    assert [rank.status for rank in first] == [0, 0]
    (reading,) = files(tmp_path)
    assert reading.beside is not None and reading.beside.is_final
    assert (reading.beside.host, reading.beside.job) == ("x1", "70")
    assert reading.ram_kwh == pytest.approx(reading.beside.host_share * reading.duration_s / 3600, rel=0.2)
    assert reading.emissions_kg == pytest.approx(reading.kwh * 0.1)
    said = [line for line in (first[0].output + first[1].output).splitlines() if "codecarbon" in line]
    assert len(said) == 1 and "codecarbon_dir" in said[0]

    (tmp_path / "kill-switch").unlink()
    signals = {"after_step": 2, "signal": int(signal.SIGTERM)}
    assert [rank.status for rank in train(pool, corpus, tmp_path, signals, SLURM_JOB_ID="71")] == [0, 0]
    both = files(tmp_path, attempts=2)
    assert sorted(one.beside.job for one in both if one.beside and one.beside.is_final) == ["70", "71"]
    assert reading in both


def test_a_rank_that_is_killed_leaves_the_last_total_of_its_node(pool: Pool, corpus: str, tmp_path: Path) -> None:
    with pytest.raises(RanksFailed):
        train(pool, corpus, tmp_path, {"after_step": 2, "kill_rank": 0})
    assert any(one.beside and one.beside.is_final for one in files(tmp_path))


def test_without_codecarbon_it_is_refused_by_name(pool: Pool, corpus: str, tmp_path: Path) -> None:
    seen = pool.run(2, without_codecarbon, {"data_path": [corpus], "codecarbon_dir": str(tmp_path), "train_iters": 1})
    assert [rank.status for rank in seen] == [1, 1]
    assert "--codecarbon-dir" in seen[0].errors + seen[0].output
    assert f"-m pip install {requirement('carbon')}" in seen[0].errors + seen[0].output
    assert list(tmp_path.iterdir()) == []


def without_codecarbon(options: dict[str, Any]) -> Seen:
    """In a rank, where only one of them misses it."""
    import importlib.util

    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "codecarbon" and os.environ["RANK"] == "1" else found(name, package)

    importlib.util.find_spec = find
    try:
        return run_training(options)
    finally:
        importlib.util.find_spec = found
