"""`opsctl checkpoints backup` and `restore`, `opsctl backup` and `restore`, from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import known_runs, remember_run
from opsctl.run.state.revisions import publish
from tests.printed_json import printed
from tests.tiny_run import ready
from tests.unit.cli.called import opsctl
from tests.unit.jobs.control.checkpoint_runs import latest, there
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import a_run, contents, edit_manifest, whole_there

disk = backed_up_runs.disk


@pytest.fixture
def folder(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose published file says where it is backed up."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = a_run(tmp_path / "run", 10, 20, 30)
    table = f'[backup]\nto = ["{disk}"]\nfull_every = 20\nweights_every = 10\n\n[expect]'
    run_file = found / "run.toml"
    run_file.write_text(run_file.read_text().replace("[expect]", table))
    publish(ready(load_run_file(run_file)))
    monkeypatch.chdir(found)
    return found


def answer(capsys: pytest.CaptureFixture[str], command: str, *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert opsctl(*command.split(), *words, "--json") == code
    return printed(command, capsys.readouterr().out)


def test_a_dry_run_says_what_and_why_and_changes_nothing(
    folder: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (done,) = answer(capsys, "checkpoints backup", "--dry-run")
    assert [(one["iteration"], one["what"]) for one in done["due"]] == [(10, "weights"), (20, "full"), (30, "weights")]
    assert list(disk.iterdir()) == [] and not (folder / "output" / ".opsctl" / "backups.jsonl").exists()


def test_to_a_place_that_is_named_without_a_schedule_nothing_is_due_and_why_is_said(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(a_run(tmp_path / "run", 10, 20))
    assert opsctl("checkpoints", "backup", "--to", str(disk)) == 0
    said = capsys.readouterr().err
    assert re.search(r"\bfull_every = 10,000\b.*\bweights_every\b.*--step", said)
    assert list(disk.iterdir()) == []


def test_from_backup_to_prune_to_another_place(folder: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (done,) = answer(capsys, "checkpoints backup")
    assert {one["iteration"] for one in done["sent"]} == {10, 20, 30} and done["problems"] == []
    listed = answer(capsys, "checkpoints list")
    assert [[(one["to"], one["what"]) for one in step["backups"]] for step in listed] == [
        [(str(disk), "weights")],
        [(str(disk), "full")],
        [(str(disk), "weights")],
    ]
    assert opsctl("checkpoints", "list") == 0
    *rows, place = capsys.readouterr().out.splitlines()
    assert [row.split()[4] for row in rows] == ["BACKUP", "weights", "full", "weights"] and place == f"[1] {disk}"
    assert answer(capsys, "backup")[0]["sent"][0]["what"] == "rest"
    assert len(answer(capsys, "backup list")) == 4
    assert opsctl("backup", "list") == 0 and "30 without optimizer states" in capsys.readouterr().out
    verified = answer(capsys, "backup verify", "--sample", "50%")
    assert verified[0]["backups"] == 3 and 0 < verified[0]["files"] < 18 and verified[0]["lost"] == []
    saved = contents(folder / "output" / "checkpoints" / "global_step20")
    os.chdir(folder.parent)
    remember_run("tiny", folder / "run.toml")
    answer(capsys, "restore", "--from", str(disk), "--to", "beside", "--as", "copy")
    assert known_runs()["tiny"] == str(folder / "run.toml")  # the copy does not take the original's place
    shutil.rmtree(folder)
    back = answer(capsys, "restore", "--from", str(disk), "--to", "again", "--as", "same")
    again = folder.parent / "again"
    assert back["checkpoint"] == 20 and there(again) == [20] and latest(again) == "global_step20"
    assert contents(again / "output" / "checkpoints" / "global_step20") == saved
    restored = answer(
        capsys, "checkpoints restore", "--run", "again", "--from", str(disk), "--step", "10", "--weights-only"
    )
    assert restored["without_optimizer"] and not restored["latest"] and there(again) == [10, 20]


def test_what_is_lost_there_is_said_and_exits_1_until_it_is_sent_again(
    folder: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("checkpoints", "backup") == 0
    (disk / "checkpoints" / "global_step20" / "layer_01-model_00-model_states.pt").unlink()
    (lost,) = answer(capsys, "backup verify", code=1)[0]["lost"]
    assert (lost["iteration"], lost["what"]) == (20, "full") and lost["lost"]
    assert "lost" in [step["backups"][0]["lost"] and "lost" for step in answer(capsys, "checkpoints list")]
    assert opsctl("checkpoints", "backup") == 0 and opsctl("backup", "verify") == 0


def test_all_runs_are_those_of_ours_with_a_published_backup_and_one_that_fails_stops_none(
    folder: Path, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from opsctl.run.config.locate import remember_run

    a_run(tmp_path / "without", 20)
    broken = a_run(tmp_path / "broken", 20)
    text = (broken / "run.toml").read_text().replace('"tiny"', '"broken"')
    (broken / "run.toml").write_text(text.replace("[expect]", '[backup]\nto = ["/nowhere/at/all"]\n\n[expect]'))
    publish(ready(load_run_file(broken / "run.toml")))
    for name, where in (("a-broken", broken), ("b-without", tmp_path / "without"), ("tiny", folder)):
        remember_run(name, where / "run.toml")
    done = answer(capsys, "checkpoints backup", "--all-runs", code=1)
    assert [one["run"] for one in done] == ["tiny"] and "checkpoints/global_step20" in whole_there(disk)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("checkpoints", "backup", "--to", "nope://x"), "nope://"),
        (("checkpoints", "backup", "--to", "/nowhere/at/all"), "/nowhere/at/all"),
        (("checkpoints", "backup", "--all-runs", "--to", "/x"), "--all-runs"),
        (("checkpoints", "backup", "--limit", "fast"), "fast"),
        (("checkpoints", "restore", "--from", "DISK", "--step", "7"), "global_step7"),
        (("backup", "verify", "--sample", "some"), "some"),
        (("restore", "--from", "DISK", "--to", "x"), "DISK"),
    ],
)
def test_what_cannot_be_is_one_line(
    folder: Path, disk: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl(*(str(disk) if word == "DISK" else word for word in words)) in (1, 2)
    heard = capsys.readouterr().err
    assert said.replace("DISK", str(disk)) in heard and heard.count("\n") == 1


def test_a_pinned_one_goes_whole_whatever_its_number(folder: Path, disk: Path) -> None:
    edit_manifest(folder / "output" / "checkpoints" / "global_step10", pinned=True)
    assert opsctl("checkpoints", "backup") == 0
    assert "checkpoints/global_step10" in whole_there(disk)
    assert json.loads((disk / "checkpoints" / "global_step10" / "manifest.json").read_text())["pinned"] is True


@pytest.mark.parametrize(
    "words",
    [
        "checkpoints backup --to",
        "backup --to",
        "backup verify --to",
        "checkpoints restore --step 20 --from",
        "restore --to /nowhere --from",
    ],
)
def test_a_secret_in_a_url_is_in_no_answer_and_in_no_jobs_words(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    for more in ((), ("--job",)):
        assert opsctl(*words.split(), "s3://AKIAKEY:SECRETWORD@bucket/p", *more) == 2
    said = capsys.readouterr()
    assert "SECRETWORD" not in said.out + said.err and "password" in said.err
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and b"SECRETWORD" in one.read_bytes()]


def test_one_that_was_asked_for_and_is_not_here_is_no_success(folder: Path) -> None:
    assert opsctl("checkpoints", "backup", "--step", "77") == 1


def test_a_place_that_is_down_keeps_no_other_back(folder: Path, disk: Path) -> None:
    run_file = folder / "run.toml"
    run_file.write_text(run_file.read_text().replace(f'["{disk}"]', f'["{disk}/unmounted", "{disk}"]'))
    publish(ready(load_run_file(run_file)))
    assert opsctl("checkpoints", "backup") == 1 and len(whole_there(disk)) == 3
    assert opsctl("backup") == 1 and list(disk.glob("rest/1.json"))
    shutil.rmtree(disk / "checkpoints")
    assert opsctl("backup", "verify") == 1
    assert opsctl("checkpoints", "backup") == 1 and "checkpoints/global_step20" in whole_there(disk)


def test_data_sets_go_where_they_are_shared_are_verified_and_come_back(
    folder: Path, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = disk / "data sets"
    shared.mkdir()
    run_file = folder / "run.toml"
    table = f'data = true\ndata_to = ["{shared}"]\nfull_every'
    run_file.write_text(run_file.read_text().replace("full_every", table, 1))
    publish(ready(load_run_file(run_file)))
    rest, data = answer(capsys, "backup")
    assert (rest["to"], data["to"], data["problems"]) == (str(disk), str(shared), [])
    assert [(one["what"], one["files"]) for one in data["sent"]] == [("data", 2)]
    assert [one["sent"] for one in answer(capsys, "backup")][1:] == [[]], "nothing is new"
    listed = answer(capsys, "backup list")
    assert {(one["what"], one["to"]) for one in listed} == {("rest", str(disk)), ("data", str(shared))}
    assert opsctl("backup", "list") == 0 and re.search(
        r"^data sets +\S+ .* there +\S", capsys.readouterr().out, re.MULTILINE
    )
    assert [one["lost"] for one in answer(capsys, "backup verify", "--sample", "50%")] == [[], []]

    was = {end: (folder / f"data{end}").read_bytes() for end in (".bin", ".idx")}
    for end in was:
        (folder / f"data{end}").unlink()
    done = answer(capsys, "restore", "--data", "--from", str(shared))
    assert (done["run"], done["changes"], done["sets"][0]["files"]) == ("tiny", [], 2)
    assert {end: (folder / f"data{end}").read_bytes() for end in was} == was
    done = answer(capsys, "restore", "--data", "--from", str(shared), "--into", str(tmp_path / "new"))
    (one,) = done["sets"]
    assert done["changes"] == [f"[data] data_path: {folder / 'data'} is {one['path']} now"]
    assert Path(f"{one['path']}.bin").read_bytes() == was[".bin"]
    (far,) = shared.glob("data/data-*/data.bin")
    far.write_bytes(b"\xff" + was[".bin"][1:])
    (lost,) = [line for one in answer(capsys, "backup verify", code=1) for line in one["lost"]]
    assert (lost["what"], lost["to"]) == ("data", str(shared))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--data", "--to", "x"), "--data"),
        ((), "'--to'"),
        (("--to", "x", "--into", "y"), "--into"),
        (("--data", "--run", "nobody"), "--run"),
    ],
)
def test_restores_that_cannot_be_meant_are_refused(
    folder: Path, disk: Path, words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("restore", "--from", str(disk), *words) in (1, 2)
    assert why in capsys.readouterr().err


def test_a_verification_with_problems_does_not_end_with_all_is_well(
    folder: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "checkpoints backup")
    assert opsctl("backup", "verify") == 0
    well = capsys.readouterr().err.splitlines()[-1].rpartition(": ")[2]
    for path in (folder / "output" / ".opsctl" / "backups.jsonl", disk / "checkpoints/global_step20/manifest.json"):
        path.unlink()
    assert opsctl("backup", "verify") == 1
    assert well not in capsys.readouterr().err.splitlines()[-1]
