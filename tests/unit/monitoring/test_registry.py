"""The list of checks. A new check needs its name in it and one function."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli.watch import command
from opsctl.monitoring import checks, registry
from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.overview import Overview, findings
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.schema import ArrayTable, ExpectTable, WatchTable
from tests.tiny_run import write_run
from tests.unit.monitoring.jobs import NOW


def test_every_check_of_every_family_is_in_the_list_once() -> None:
    found = [
        one
        for family in pkgutil.iter_modules(checks.__path__)
        for one in vars(importlib.import_module(f"{checks.__name__}.{family.name}")).values()
        if isinstance(one, Detector)
    ]
    assert sorted(one.name for one in registry.DETECTORS) == sorted(one.name for one in found)


def test_each_check_and_each_family_is_a_command() -> None:
    answer = CliRunner().invoke(command, ["--help"])
    lines = answer.output.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == [
        "all",
        *registry.FAMILIES,
        *(registry.command_name(one.name) for one in registry.DETECTORS),
    ]
    assert CliRunner().invoke(command, ["checkpoint_age"]).exit_code == 2


def test_the_help_of_each_check_has_exit_codes_and_only_keys_that_exist() -> None:
    tables = {"watch": WatchTable, "expect": ExpectTable, "array": ArrayTable}
    for detector in registry.DETECTORS:
        assert any(f"{code}: " in detector.help for code in (1, 2)), detector.name
        for table, key in re.findall(r"`\[(\w+)\] (\w+)`", detector.help):
            assert key in tables[table].__struct_fields__, detector.name


def test_those_for_several_name_checks() -> None:
    names = {one.name for one in registry.DETECTORS}
    assert all(set(some) <= names for _, some in registry.FAMILIES.values())
    answer = CliRunner().invoke(command, ["progress", "--help"])
    assert answer.exit_code == 0 and "--json" in answer.output


@pytest.fixture
def lunch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that a user has just written, in the list."""

    def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
        return [Finding("lunch", Severity.CRITICAL, f"{settings.name}: it is {snapshot.now.hour} o'clock", "the cook")]

    detector = Detector("lunch", find, Part.KILL_SWITCH, "Is it time?")
    monkeypatch.setattr(registry, "DETECTORS", (*registry.DETECTORS, detector))


@pytest.mark.usefixtures("lunch")
def test_status_shows_what_a_new_check_finds() -> None:
    overview = Overview("demo", "the team", Path("/o"), Snapshot(NOW))
    assert [one.text for one in findings(overview)] == ["demo: it is 10 o'clock"]


@pytest.mark.usefixtures("lunch")
def test_a_new_check_is_a_command_with_its_help_its_line_and_its_code(tmp_path: Path) -> None:
    assert "lunch" in CliRunner().invoke(command, ["--help"]).output
    assert "Is it time?" in CliRunner().invoke(command, ["lunch", "--help"]).output
    write_run(tmp_path)
    answer = CliRunner().invoke(command, ["lunch", str(tmp_path / "run.toml"), "--no-log"])
    assert answer.exit_code == 2, answer.output
    assert "PULSE: ***ALERT: tiny: it is" in answer.output and "! Alert someone at the cook***" in answer.output
