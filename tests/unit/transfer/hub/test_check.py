"""`opsctl hub check` and `status`: what a person hears, and what is put right."""

from __future__ import annotations

import json

import pytest

from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, read_hub, record
from tests.hub_server import TOKEN, Account, Fault
from tests.unit.cli.called import opsctl
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]
CURVES = "tensorboard/events.out.tfevents.1.node"
LOG = "logs/main_log.txt"


@pytest.fixture
def here(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """In the run's folder."""
    monkeypatch.chdir(desk.folder / "run")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(desk.folder / name))
    return desk


def test_check_says_who_where_and_how_much_and_sends_nothing(here: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("hub", "check") == 0
    said = capsys.readouterr().out
    assert "token: ann (write)\n" in said and "report, checkpoints\n" in said
    assert "2 files, 5.14 kB" in said
    assert {one.method for one in here.hub.requests} == {"GET"} and here.hub.repos == {}


def test_locks_and_what_is_half_written_are_not_to_be_sent(here: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    logs = here.folder / "run" / "output" / "logs"
    for name in ("files.lock", ".a.json.node1.77.ab12cd34.tmp", ".nfs00001"):
        (logs / name).write_text("{}")
    assert opsctl("hub", "check") == 0
    assert "2 files, 5.14 kB" in capsys.readouterr().out


def test_check_finds_a_token_that_may_not_write_and_none_at_all(
    here: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here.hub.make_repo(REPO)
    here.hub.accounts[TOKEN] = Account(role="read")
    assert opsctl("hub", "check", "--json") == 1
    (problem,) = json.loads(capsys.readouterr().out)["checked"]["problems"]
    assert problem.startswith("lab/run: ann ")
    (here.folder / "home" / "token").unlink()
    assert opsctl("hub", "check") == 1
    assert "opsctl hub login" in capsys.readouterr().err


def test_a_run_without_the_table_is_told_so(here: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = here.folder / "run" / "run.toml"
    run_file.write_text(run_file.read_text().partition("[hub]")[0])
    assert opsctl("hub", "sync") == 2
    assert '[hub] with repo = "OWNER/NAME"' in capsys.readouterr().err
    assert opsctl("hub", "sync", "--all-runs") == 0
    assert here.hub.requests == []


def test_status_finds_what_is_missing_different_or_lost_and_repairs_it(
    here: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    here.checkpoint(10, {"mp_rank_00_model_states.pt": b"weights" * 900})
    assert opsctl("hub", "sync") == 0 and opsctl("hub", "status") == 0
    weights = "checkpoints/global_step10/mp_rank_00_model_states.pt"
    here.hub.commit(REPO, {LOG: b"somebody's", weights: None})
    here.hub.lose(REPO, CURVES)
    capsys.readouterr()
    assert opsctl("hub", "status", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)["hub"]["revisions"]
    assert (found["missing"], found["differing"], found["lost"]) == ([weights], [LOG], [CURVES])
    assert opsctl("hub", "status", "--repair") == 0
    there = here.downloaded()
    assert there[LOG] == b"first line\nsecond line\n" and there[weights] == b"weights" * 900
    assert there[CURVES] == (here.paths.output / CURVES).read_bytes()


@pytest.mark.parametrize(("how", "ledger"), [("folder", "kept"), ("branch", "lost")])
def test_a_lost_file_of_a_checkpoint_is_found_and_repaired_however_it_lies_there(
    here: Desk, capsys: pytest.CaptureFixture[str], how: str, ledger: str
) -> None:
    run_file = here.folder / "run" / "run.toml"
    run_file.write_text(run_file.read_text().replace('"folder"', f'"{how}"'))
    here.checkpoint(10, {"mp_rank_00_model_states.pt": b"weights" * 900, "another.pt": b"of one save"})
    assert opsctl("hub", "sync") == 0
    here.checkpoint(10, {"mp_rank_00_model_states.pt": b"weights" * 900})
    assert opsctl("hub", "sync") == 0
    if ledger == "lost":
        here.paths.hub_ledger.unlink()
        assert opsctl("hub", "sync") == 0
    assert opsctl("hub", "status") == 0
    below, revision = ("checkpoints/global_step10/", "main") if how == "folder" else ("", "global_step10")
    here.hub.lose(REPO, f"{below}mp_rank_00_model_states.pt", revision)
    capsys.readouterr()
    assert opsctl("hub", "status") == 1
    assert f"1 lost: {below}mp_rank_00_model_states.pt" in capsys.readouterr().out
    assert opsctl("hub", "status", "--repair") == 0
    assert here.downloaded(revision)[f"{below}mp_rank_00_model_states.pt"] == b"weights" * 900


def test_a_repository_that_only_the_ledger_names_is_not_asked(here: Desk) -> None:
    assert opsctl("hub", "sync") == 0
    line = BackedUp(to="lab/former", what=What.FILE, name="logs/x", of="0" * 64, verified_at=now())
    record(here.paths, [line], here.paths.hub_ledger)
    here.fresh()
    assert opsctl("hub", "status") == 0
    assert here.hub.requests and not any("former" in one.path for one in here.hub.requests)


def test_a_dry_run_asks_nobody(here: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("hub", "sync", "--dry-run") == 0
    assert capsys.readouterr().out == "tiny: would send: 2 files, 5.14 kB\n"
    assert here.hub.requests == [] and read_hub(here.paths) == []


def test_what_is_left_is_said_and_is_an_error(here: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    here.hub.faults = [Fault("preupload", status=429, headers={"Retry-After": "3000"})]
    assert opsctl("hub", "sync", "logs") == 1
    told = capsys.readouterr()
    assert told.out == "tiny: 1 not sent\n" and "1 files to lab/run: " in told.err


def test_status_waits_as_long_as_a_sync_may_take_and_no_longer(here: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = here.folder / "run" / "run.toml"
    run_file.write_text(run_file.read_text() + 'give_up_after = "0:20"\n')
    assert opsctl("hub", "sync", "logs") == 0
    here.hub.faults = [Fault("tree", status=503, headers={"Retry-After": "25"}), Fault("paths", status=503)]
    assert opsctl("hub", "status") == 1
    assert "503" in capsys.readouterr().err
