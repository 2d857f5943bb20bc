"""Type the console sessions of docs/ on a real Slurm, and compare the output with the page.

`make examples` writes the output into the pages instead. Read the difference before you commit it.
"""

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
from tests.sessions import Session, names_on_pages

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: The state in which a page's session begins, from its first line: `<!-- on: a run in training -->`.
_BEGINS_ON = re.compile(r"^<!-- on: (.*) -->$", re.MULTILINE)


def pages(begins_on: str) -> list[str]:
    """Return the pages with a session that begins in that state."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        state = _BEGINS_ON.search(text)
        if "```console" in text and (state[1] if state else "nothing") == begins_on:
            found.append(str(page.relative_to(DOCS)))
    return found


def environment(own: dict[str, str]) -> dict[str, str]:
    """Return a user's environment, with this opsctl first on the PATH and without Slurm's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OPSCTL"))}
    return kept | own | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OPSCTL_ANSWERS_AGE": "0"}


def type_page(session: Session, page: str, config: pytest.Config) -> None:
    """Type the commands of a page. With --write-golden, write their output into the page."""
    path = DOCS / page
    writes = config.getoption("--write-golden")
    text = session.run(path.read_text(), writes)
    if writes:
        path.write_text(text)


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages("nothing"))
def test_a_page_that_begins_with_nothing_prints_what_it_shows(
    page: str, tmp_path: Path, slurm: object, pytestconfig: pytest.Config
) -> None:
    own = environment({"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)})
    (tmp_path / "here").mkdir()
    try:
        type_page(Session(tmp_path / "here", own, names_on_pages(tmp_path / "here", own)), page, pytestconfig)
    finally:
        down = [sys.executable, "-m", "opsctl", "local-cluster", "down", "--name", "mine"]
        subprocess.run(down, env=own, capture_output=True, timeout=90)


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    """Yield a run named tr1 on two nodes that saves every 10 iterations, and has saved twice."""
    with open_folder() as folder:
        (folder / "tr1").mkdir()
        training = Training(Opsctl(local_cluster, folder / "tr1"))
        script = environment_script(folder / "tr1", "renice -n 5 $$")
        training.write(environment=script, name='"tr1"', time="1:00:00", ranks=4)
        training.submit("1-3%1")
        training.wait_for_iteration(25)
        yield training


def session(training: Training) -> Session:
    """Return a shell in the run's folder."""
    slurm = {"SLURM_CONF": training.opsctl.cluster.environment()["SLURM_CONF"]}
    own = environment(training.opsctl.environment()) | slurm  # what happens meanwhile is done with Slurm's own commands
    return Session(training.opsctl.folder, own, names_on_pages(training.opsctl.folder, own))


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages("a run in training"))
def test_a_page_of_a_task_prints_what_it_shows(page: str, training: Training, pytestconfig: pytest.Config) -> None:
    type_page(session(training), page, pytestconfig)


@pytest.mark.parametrize(
    "shown",
    [["status.md"], pytest.param(pages("a run in training, which goes on"), marks=pytest.mark.nightly)],
    ids=len,
)
def test_pages_about_a_training_print_what_they_show(
    training: Training, shown: list[str], pytestconfig: pytest.Config
) -> None:
    assert shown
    for page in shown:  # one training for all pages: a training for each would take minutes
        type_page(session(training), page, pytestconfig)
