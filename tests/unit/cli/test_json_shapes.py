"""Test what `--json` prints: every command has its shape, and every shape is described."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click
import msgspec
import pytest

from docs.reference import description_of, name_of
from opsctl.cli import COMMANDS, HIDDEN, root
from opsctl.cli.json_schema import all_printed, may_be_missing, name_in_table
from opsctl.cli.json_schema import shapes as shapes_in
from opsctl.core.output import json_text
from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import publish
from tests.printed_json import printed
from tests.tiny_run import ready, write_run
from tests.unit.cli.called import go_into
from tests.unit.cli.called import opsctl as call

SHAPES = shapes_in(one.shape for one in all_printed())


def commands_with_json(command: click.Command, words: str = "") -> Iterator[str]:
    """The words of every command from `command` on that has `--json`."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in {*command.list_commands(context), *(HIDDEN if command is root else ())}:
            found = command.get_command(context, name)
            assert found is not None
            yield from commands_with_json(found, f"{words} {name}".strip())
    if any("--json" in option.opts for option in command.params):
        yield name_in_table(words)


def test_every_command_with_json_has_its_shape_and_no_other_has_one() -> None:
    assert set(commands_with_json(root)) == {one.command for one in all_printed()}
    assert {one.command.split()[0] for one in all_printed()} <= set(COMMANDS)


def test_every_shape_and_key_is_described_in_a_sentence() -> None:
    wrong = []
    for struct in SHAPES:
        sentences = [(struct.__doc__ or "").strip(), *map(description_of, msgspec.structs.fields(struct))]
        wrong += [(name_of(struct), text) for text in sentences if not text.endswith(".") or text[0].islower()]
    assert wrong == []


def test_what_may_be_missing_is_none_by_default() -> None:
    fields = [(struct, field) for struct in SHAPES for field in msgspec.structs.fields(struct)]
    missing = [(name_of(struct), field) for struct, field in fields if may_be_missing(struct, field)]
    assert [(name, field.name) for name, field in missing if field.default is not None] == []


def test_no_two_shapes_share_a_name() -> None:
    names = [name_of(struct) for struct in SHAPES]
    assert sorted(set(names)) == sorted(names)


class TestWhatIsPrinted:
    def test_times_have_their_zone_and_bytes_that_are_no_text_survive(self) -> None:
        moment = datetime(2026, 11, 21, 12, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=1)))
        value = json.loads(json_text("key", {"at": moment, "path": "a\udcff"}))["key"]
        assert datetime.fromisoformat(value["at"]) == moment
        assert value["path"] == "a\udcff"

    def test_nothing_stays_an_empty_list(self) -> None:
        assert json.loads(json_text("key", [])) == {"schema_version": 1, "key": []}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, where no Slurm is to be found."""
    write_run(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return go_into(tmp_path, monkeypatch)


def test_revise_prints_its_shape_with_what_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(ready(load_run_file(folder / "run.toml")))
    write_run(folder, lr="5e-4")
    assert call("revise", "--dry-run", "--json") == 0
    dry = printed("revise", capsys.readouterr().out)
    assert dry["changed"] == {"trainer.lr": {"from": 1e-3, "to": 5e-4}}
    assert (dry["revision"], dry["replaced"], dry["dry_run"]) == (None, {}, True)
    assert call("revise", "--json") == 0
    done = printed("revise", capsys.readouterr().out)
    assert done["revision"].startswith("0002-") and done["dry_run"] is False


def test_render_prints_its_shapes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("render", "--json") == 0
    assert printed("render", capsys.readouterr().out)["batch.sh"].startswith("#!/bin/bash\n")


def test_local_clusters_print_their_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("local-cluster", "status", "--json") == 0
    assert printed("local-cluster status", capsys.readouterr().out) == []
    damaged = folder / "state" / "opsctl" / "clusters" / "mine"
    damaged.mkdir(parents=True)
    (damaged / "cluster.json").write_text("{")
    assert call("local-cluster", "status", "--json") == 0
    (found,) = printed("local-cluster status", capsys.readouterr().out)
    assert (found["name"], found["state"], found["daemons_missing"]) == ("mine", "damaged", [])
