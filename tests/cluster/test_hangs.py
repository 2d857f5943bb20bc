"""Ranks that stop or fall asleep under a real training, and the job that says which, ends the step, and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, environment_script

#: A rank that gets this signal sleeps for ever in a function of its own, as a user's code may.
FALLS_ASLEEP = """
import signal, time
def asleep_in_user_code(*_):
    while True:
        time.sleep(0.2)
signal.signal(signal.SIGRTMIN, asleep_in_user_code)
"""
SHOW = "import sys; from opsctl.run.state.run_view import view; from opsctl.cli.triage_stacks import show_stacks; " + (
    "sys.exit(show_stacks(view('.'), as_json=True))"
)


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(FALLS_ASLEEP)
        script = environment_script(folder, f"export PYTHONPATH={folder / 'site'}:$PYTHONPATH")
        training.write(environment=script, ranks=4)
        with (folder / "run.toml").open("a") as file:
            file.write('\n[watch]\nsilent_most = "0:12"\n')
        yield training


def test_a_rank_that_stops_and_one_asleep_in_user_code_are_named_and_the_step_is_ended(training: Training) -> None:
    training.submit("1-3%1")
    training.wait_for_iteration(12)
    first = training.first_attempt()
    stopped = training.rank(first["job_id"], 3)
    os.kill(stopped["pid"], signal.SIGSTOP)
    training.wait_for_log("END TIME:")
    (first,) = training.recorded()[:1]
    assert first["reason"] == "hang", first
    odd, *others = first["stacks"]
    assert (odd["ranks"], odd["nodes"], odd["is_odd"]) == ("3", [stopped["node"]], True)
    assert sum(group["count"] for group in others) == 3 and any(group["collective"] for group in others)
    verdict = first["verdict"]
    assert (verdict["cause"], verdict["node"], verdict["rank"]) == ("hang", stopped["node"], 3)
    # Where no one may look into another process it is its answer that is missed.
    said = rf"rank 3 on {stopped['node']} (is stopped in |did not answer \(stopped\))"
    (hangs,) = [line for line in training.log().splitlines() if "opsctl: the training hangs, nothing has moved" in line]
    assert re.search(said, hangs) and re.search(said, first["note"])

    before = len(training.iterations())
    training.wait_for_iteration(first["checkpoint_at_end"] + 2, after_lines=before)
    second = training.recorded()[1]
    asleep = training.rank(second["job_id"], 2)
    os.kill(asleep["pid"], signal.SIGRTMIN)

    def shown() -> dict[str, Any] | str | None:
        if training.log().count("END TIME:") > 1:
            return "the watch was quicker"  # on a busy machine
        answer = training.opsctl.cluster.run(
            "env", "-C", training.opsctl.folder, sys.executable, "-c", SHOW, check=False
        )
        found: dict[str, Any] = json.loads(answer.stdout)["stacks"] if answer.stdout else {"groups": []}
        odd = [group for group in found["groups"] if group["is_odd"] and group["frames"]]
        is_asleep = any(group["frames"][0].startswith("asleep_in_user_code (sitecustomize.py:") for group in odd)
        return found if answer.returncode == 1 and is_asleep else None

    stacks = wait_until(shown, START_S, "the odd rank to be shown")  # it goes to sleep when it comes back from C
    if isinstance(stacks, dict):
        assert (stacks["found"], stacks["groups"][0]["ranks"]) == (4, "2")
    training.wait_for_log("END TIME:", 2)
    second = training.recorded()[1]
    assert (second["reason"], second["verdict"]["node"], second["verdict"]["rank"]) == ("hang", asleep["node"], 2)
    said = rf"rank 2 on {asleep['node']} is in .*asleep_in_user_code"  # also where its signal met it in a collective
    odd = second["stacks"][0]
    assert (odd["ranks"], odd["is_odd"]) == ("2", True) and odd["frames"][0].startswith("asleep_in_user_code "), odd
    assert re.search(said, second["note"]), second["note"]
    assert second["verdict"]["summary"] and re.search(said, second["verdict"]["summary"]), second["verdict"]
    training.paths.kill_switch.touch()
