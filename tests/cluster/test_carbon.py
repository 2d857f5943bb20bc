"""Energy of a real training on a real Slurm: a tracker on each node, its total at every end, each counted once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training
from tests.printed_json import printed
from trainer.formats.attempt.carbon import Reading, read

MEASURED = '\nCODECARBON_FORCE_RAM_POWER = "1000"\nCODECARBON_FORCE_CPU_POWER = "0"\n\n[carbon]\nmeasure = true\n'


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write()
        run_file = folder / "run.toml"
        run_file.write_text(run_file.read_text() + MEASURED + "intensity_g_per_kwh = 100.0\n")
        yield training


def totals(training: Training) -> list[Reading]:
    return [read(file.name, file.read_text())[0][0] for file in sorted(training.paths.codecarbon.glob("*.csv"))]


@pytest.mark.nightly
def test_each_node_of_each_attempt_has_its_last_total_and_the_report_adds_them_once(training: Training) -> None:
    first = training.submit("1-1")
    training.wait_for_iteration(1)
    wait_until(lambda: len(totals(training)) == 2, START_S, "a total of each node")
    training.paths.kill_switch.touch()
    training.wait_until_left(first)
    assert [one.beside is not None and one.beside.is_final for one in totals(training)] == [True, True]

    # And where all of the job is killed at once, what was written before.
    training.opsctl.ok("kill-switch", "deactivate")
    second = training.submit("1-1")
    wait_until(lambda: len(totals(training)) == 4, START_S, "a total of each node again")
    training.opsctl.cluster.run("scancel", "--full", "--signal=KILL", f"{second}_1")
    training.wait_until_left(second)

    told = printed("carbon report", training.opsctl.ok("carbon", "report", "--json"))
    assert (told["trackers"], told["nodes"], told["attempts"]) == (4, 2, 2)
    jobs = {one.beside.job for one in totals(training) if one.beside is not None}
    assert jobs == {f"{first}_1", f"{second}_1"}
    assert told["kwh"] == pytest.approx(sum(one.ram_kwh for one in totals(training)))
    assert told["kg"] == pytest.approx(told["kwh"] / 10)
    assert told["known_node_hours"] >= told["measured_node_hours"] > 0
    assert "carbon" in training.opsctl("status").out
