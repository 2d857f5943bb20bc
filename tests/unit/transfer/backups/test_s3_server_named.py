"""Restores from an S3 server that is not Amazon's, where no run file and no profile names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.revisions import publish
from opsctl.transfer.backups.run_files import back_up_rest
from tests.s3_server import Proxy
from tests.tiny_run import ready
from tests.unit.cli.called import go_into, opsctl
from tests.unit.jobs.control.checkpoint_runs import latest, there
from tests.unit.transfer.backups.backed_up_runs import a_run, back_up_now, destination

VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@pytest.fixture
def url(tmp_path: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run's backups on the server; afterwards no variable names it."""
    url = f"s3://{bucket}/tiny"
    run = a_run(tmp_path / "run", 20, to=url)
    assert back_up_now(run, url).problems == []
    with destination(run, url) as place:
        back_up_rest(place, BackupTable(), run / "run.toml")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "bare").mkdir()
    go_into(tmp_path / "bare", monkeypatch)
    return url


@pytest.mark.parametrize(
    "named_by", ["--endpoint", VARIABLES[1], pytest.param(VARIABLES[0], marks=pytest.mark.nightly)]
)
def test_a_bare_machine_restores_a_run_and_a_checkpoint(
    url: str, named_by: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named_by in VARIABLES:
        monkeypatch.setenv(named_by, proxy.endpoint)
    option = () if named_by in VARIABLES else (named_by, proxy.endpoint)
    assert opsctl("restore", "--from", url, "--to", "again", "--as", "copy", *option) == 0
    again = tmp_path / "bare" / "again"
    assert there(again) == [20] and latest(again) == "global_step20"
    assert opsctl("checkpoints", "restore", "--from", url, "--step", "20", "--into", "alone", *option) == 0
    assert (tmp_path / "bare" / "alone" / "global_step20" / "manifest.json").is_file()


def test_a_restore_into_a_run_asks_the_server_that_its_backup_table_names(
    url: str, proxy: Proxy, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_file = run / "run.toml"
    run_file.write_text(run_file.read_text().replace("[backup]\n", f'[backup]\nendpoint = "{proxy.endpoint}"\n'))
    publish(ready(load_run_file(run_file)))
    shutil.rmtree(run / "output" / "checkpoints" / "global_step20")
    assert opsctl("checkpoints", "restore", str(run_file), "--from", f"{url}/", "--step", "20") == 0
    assert there(run) == [20]


def test_an_address_with_a_secret_is_refused(url: str) -> None:
    words = ("--from", url, "--to", "again", "--endpoint", "http://ada:geheim@127.0.0.1:9")
    assert opsctl("restore", *words) == 2
