from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.monitoring.gather import quota
from opsctl.monitoring.gather.quota import OWN_FORM, parsed, quotas
from opsctl.monitoring.snapshot import Space
from opsctl.run.state.run_view import view
from tests.tiny_run import write_run
from tests.unit.monitoring.jobs import NOW

NONE = Space("none", NOW)


def told(text: str, pattern: str = OWN_FORM) -> list[tuple[object, ...]]:
    spaces = parsed(text, pattern, "quota", NOW)
    return [(one.name, one.used_bytes, one.limit_bytes, one.used_inodes, one.limit_inodes) for one in spaces]


def test_a_line_for_each_quota_with_units_and_what_is_not_told() -> None:
    text = "Disk quotas for prj:\nwork 12.5G 2T 1,024 5000\nstore 1048576 -\nhome* 3K* 0 7 0\n"
    assert told(text) == [
        ("quota work", 12.5 * 2**30, 2 * 2**40, 1024, 5000),
        ("quota store", 1048576, None, None, None),
        ("quota home*", 3072, None, 7, None),
    ]


def test_a_site_that_only_tells_shares() -> None:
    (one,) = parsed(
        "Scratch: space 91.5% files 12%", r"space (?P<percent>\S+)% files (?P<inode_percent>\S+)%", "q", NOW
    )
    assert one.name == "q" and one.share == pytest.approx(0.915) and one.inode_share == pytest.approx(0.12)


def test_the_pattern_of_the_docs_reads_lustre() -> None:
    text = """Disk quotas for usr ann (uid 1000):
     Filesystem    used   quota   limit   grace   files   quota   limit   grace
       /scratch  1.172T*    1T    2T  6d23h55m  81422*  80000  100000      -
"""
    pattern = re.search(r"quota_pattern = '(.*)'", Path("docs/disk.md").read_text())
    assert pattern is not None
    assert told(text, pattern[1]) == [("quota /scratch", int(1.172 * 2**40), 2**40, 81422, 80000)]


@pytest.mark.parametrize("text", ["", "no such quota", "work none none", "\x1b[31m 5\n" * 3, "9" * 5])
def test_what_is_no_quota_is_none(text: str) -> None:
    assert told(text) == []


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile that names a program which says how it was called."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "opsctl").mkdir(parents=True)
    program = tmp_path / "quota"
    program.write_text('#!/bin/sh\necho "name with $1" >&2\nprintf "%s 5G 10G\\n" "$1"\n')
    program.chmod(0o755)
    path = tmp_path / "config" / "opsctl" / "profile.toml"
    path.write_text(f'[watch]\nquota_command = ["{program}", "{{folder}}"]\n')
    return path


def test_the_command_is_run_for_each_folder_without_a_shell(profile: Path) -> None:
    found = quotas([Path("/a"), Path("/b;touch x")], NOW)
    assert found is not None
    assert [(one.name, one.share) for one in found] == [
        ("quota /a", 0.5),
        ("quota of /b;touch x", None),  # its line is no quota's: the folder has a blank in it
    ]
    assert "quota" in found[1].problem and not (profile.parents[2] / "x").exists()


def test_a_quota_command_that_hangs_or_fails_is_a_problem(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout_s, body, fact in (
        (0.2, "exec sleep 60", "0.2 s"),
        (60.0, "echo oh no >&2; exit 3", "oh no"),
        (60.0, "", "quota"),
    ):
        monkeypatch.setattr(quota, "TIMEOUT_S", timeout_s)
        (profile.parents[2] / "quota").write_text(f"#!/bin/sh\n{body}\n")
        (one,) = quotas([Path("/a")], NOW) or [NONE]
        assert fact in one.problem and one.share is None


def test_a_command_of_a_profile_that_others_can_write_is_not_run(profile: Path) -> None:
    profile.chmod(0o666)
    (one,) = quotas([Path("/a")], NOW) or [NONE]
    assert one.share is None and str(profile) in one.problem


def test_without_one_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert quotas([Path("/a")], NOW) is None


def test_a_run_file_cannot_name_a_quota_command(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    path.write_text(path.read_text() + '\n[watch]\nquota_command = ["touch", "x"]\n')
    with pytest.raises(RunFileError, match=r"quota_command.*profile"):
        view(str(path))


def test_a_profile_with_an_invalid_pattern_is_refused(profile: Path) -> None:
    profile.write_text('[watch]\nquota_command = ["q"]\nquota_pattern = "("\n')
    with pytest.raises(RunFileError, match="quota_pattern"):
        quotas([], NOW)
    assert os.environ["XDG_CONFIG_HOME"]
