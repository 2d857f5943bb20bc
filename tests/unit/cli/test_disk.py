"""`opsctl disk` as people type it; its arithmetic is in tests/unit/monitoring/disk."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.unit.cli.called import go_into, opsctl
from tests.users import as_user

DAY_S = 86400.0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    (tmp_path / "f").mkdir()
    return go_into(tmp_path, monkeypatch)


def old(path: Path, days: float) -> Path:
    path.write_bytes(b"xyz")
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))
    return path


def test_disk_of_a_folder_says_who_uses_what(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "f" / "data").mkdir()
    (here / "f" / "data" / "x").write_bytes(b"x" * 100_000)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert opsctl("disk", "f") == 0
    assert re.match(rf"{re.escape(str(here / 'f'))}: 3 entries; ", capsys.readouterr().out)
    assert opsctl("disk", "use", "--json", "--by", "user", "f") == 0
    (disk,) = json.loads(capsys.readouterr().out)["disk"]
    assert (disk["is_all"], disk["entries"]) == (True, 3)
    assert {use["name"] for use in disk["folders"]} == {".", "data"}


def test_purge_lists_what_goes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old(here / "f" / "x", 28)
    old(here / "f" / "y", 1)
    assert opsctl("disk", "purge", "f") == 2
    assert re.search(r"--days\b.*\bpurge_days\b", capsys.readouterr().err)
    assert opsctl("disk", "purge", "--days", "30", "f") == 0
    assert "1 files, 3 bytes" in capsys.readouterr().out
    assert opsctl("disk", "purge", "--days", "30", "--within", "soon", "f") == 2


def test_what_goes_on_for_ever_is_no_traceback(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old(here / "f" / "x", 28)
    assert opsctl("disk", "purge", "--days", "30", "--within", "9999999-0", "f") == 0
    assert "1 files, 3 bytes" in capsys.readouterr().out
    assert opsctl("disk", "purge", "--days", "99999999999", "f") == 0
    assert "3 bytes" not in capsys.readouterr().out


def test_who_cannot_look_everywhere_is_told_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that no one has looked at are purged all the same."""
    if os.geteuid():
        pytest.skip("needs to become another user")
    closed = here / "f" / "closed"
    closed.mkdir(mode=0o700)
    old(closed / "x", 29)
    for above in (here, *here.parents[:-2]):
        above.chmod(above.stat().st_mode | 0o011)

    def asked(*words: str) -> tuple[int, str]:
        code = opsctl("disk", *words, str(here / "f"))
        return code, "".join(capsys.readouterr())

    code, said = as_user("nobody", lambda: asked("purge", "--days", "30"))
    assert code == 0 and re.search(r"\b1\b.* could not be ", said)
