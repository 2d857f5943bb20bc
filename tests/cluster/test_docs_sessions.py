"""Test what pages of docs/ show in a terminal: typed on a real Slurm, line by line, and compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.cluster.trainings import Training, environment_script
from tests.sessions import Session

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: What a page stands on, as its first line says: `<!-- on: a run in training -->`.
_STANDS_ON = re.compile(r"^<!-- on: (.*) -->$", re.MULTILINE)


def pages(stands_on: str) -> list[str]:
    """The pages with a session that begins there."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        said = _STANDS_ON.search(text)
        if "```console" in text and (said[1] if said else "nothing") == stands_on:
            found.append(str(page.relative_to(DOCS)))
    return found


def environment(own: dict[str, str]) -> dict[str, str]:
    """A person's, with this opsctl first on the PATH and nothing of a Slurm."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OPSCTL"))}
    return kept | own | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OPSCTL_ANSWERS_AGE": "0"}


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages("nothing"))
def test_a_page_that_begins_with_nothing_comes_out_as_shown(page: str, tmp_path: Path, slurm: object) -> None:
    own = environment({"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)})
    (tmp_path / "here").mkdir()
    try:
        Session(tmp_path / "here", own).run((DOCS / page).read_text())
    finally:
        down = [sys.executable, "-m", "opsctl", "local-cluster", "down", "--name", "mine"]
        subprocess.run(down, env=own, capture_output=True, timeout=90)


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    """A run named tr1 on two nodes that saves every 10 iterations, and has saved twice."""
    with open_folder() as folder:
        (folder / "tr1").mkdir()
        training = Training(Opsctl(local_cluster, folder / "tr1"))
        script = environment_script(folder / "tr1", "renice -n 5 $$")
        training.write(environment=script, name='"tr1"', time="1:00:00", ranks=4)
        training.submit("1-3%1")
        training.wait_for_iteration(25)
        yield training


def session(training: Training) -> Session:
    """A shell in the run's folder."""
    slurm = {"SLURM_CONF": training.opsctl.cluster.environment()["SLURM_CONF"]}
    own = environment(training.opsctl.environment()) | slurm  # what happens meanwhile is done with Slurm's own commands
    return Session(training.opsctl.folder, own)


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages("a run in training"))
def test_a_page_of_a_task_comes_out_as_shown(page: str, training: Training) -> None:
    session(training).run((DOCS / page).read_text())


@pytest.mark.parametrize(
    "shown",
    [["status.md"], pytest.param(pages("a run in training, which goes on"), marks=pytest.mark.nightly)],
    ids=len,
)
def test_pages_beside_a_training_come_out_as_shown(training: Training, shown: list[str]) -> None:
    assert shown
    for page in shown:  # one training for all of them: a start of each its own would take minutes
        session(training).run((DOCS / page).read_text())
