"""Test how a run file differs from what is published, file by file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.revise import files_difference
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import Revision, contents, newest, publish
from tests.tiny_run import ready, write_run


def run_in(folder: Path, lr: str = "1e-3") -> ExpandedRun:
    return ready(load_run_file(write_run(folder, lr=lr), {}))


@pytest.fixture
def published(tmp_path: Path) -> Revision:
    """The first revision of the run."""
    return publish(run_in(tmp_path))


def test_the_same_run_differs_in_nothing(published: Revision, tmp_path: Path) -> None:
    assert files_difference(published, contents(run_in(tmp_path))) == ""


def test_a_changed_value_shows_in_every_file_that_says_it(published: Revision, tmp_path: Path) -> None:
    text = files_difference(published, contents(run_in(tmp_path, lr="5e-4")))
    for name, before, after in (("run.json", "0.001,", "0.0005,"), ("trainer-arguments.json", '"0.001",', '"0.0005",')):
        assert f"--- {published.name}/{name}\n+++ run file/{name}\n" in text
        assert f"{before}\n" in text and f"{after}\n" in text
    assert "step.sh" not in text


def test_before_the_first_publishing_everything_is_new(tmp_path: Path) -> None:
    text = files_difference(None, contents(run_in(tmp_path)))
    assert text.count("--- /dev/null\n") == 4
    assert not [line for line in text.splitlines() if line.startswith("-") and line != "--- /dev/null"]


def test_a_file_that_an_older_release_did_not_publish_is_new(published: Revision, tmp_path: Path) -> None:
    older = {name: text for name, text in published.texts.items() if name != "engine.json"}
    text = files_difference(replace(published, texts=older), contents(run_in(tmp_path)))
    assert text.startswith(f"--- {published.name}/engine.json\n") and text.count("--- ") == 1


def test_a_damaged_revision_is_named_instead_of_everything_being_new(published: Revision, tmp_path: Path) -> None:
    (published.folder / "step.sh").unlink()
    (published.folder / "step.sh").mkdir()
    damaged = newest(run_in(tmp_path).paths)
    with pytest.raises(OpsctlError, match=rf"revision {published.name} in .* is damaged: .*step.sh.*a folder"):
        files_difference(damaged, contents(run_in(tmp_path)))
