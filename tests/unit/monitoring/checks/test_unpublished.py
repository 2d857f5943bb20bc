"""A run file that is not what the tasks will read."""

from __future__ import annotations

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.records import unpublished
from opsctl.monitoring.snapshot import Published, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING


def found(published: Published | None) -> list[str]:
    """Return the texts about this revision."""
    snapshot = Snapshot(NOW, (RUNNING,), published=published)
    return [one.text for one in unpublished.find(snapshot, Settings("demo", "the team"))]


def test_an_edited_run_file_is_found_with_the_command_to_type() -> None:
    (text,) = found(Published("0001-abc", NOW, "ana@login", ("trainer.lr",)))
    assert missing(text, "run file") == []


def test_an_edit_that_cannot_be_published_is_found_with_its_reason() -> None:
    (text,) = found(Published("0001-abc", NOW, "ana@login", problem="run.toml: no table [slurm]"))
    assert missing(text, "run.toml: no table [slurm]") == []


def test_what_is_published_is_nothing_to_say_and_neither_is_a_run_without_any() -> None:
    assert found(Published("0001-abc", NOW, "ana@login")) == found(None) == []
