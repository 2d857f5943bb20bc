"""Quota programs that are known by name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from opsctl.monitoring.gather import quota
from opsctl.monitoring.gather.quota import KINDS, Whose, quotas
from opsctl.monitoring.snapshot import Space
from opsctl.run.config.schema import QUOTA_KINDS
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

OUTPUTS = Path(__file__).parent / "quota_outputs"
KIB, TIB = 2**10, 2**40


def read(kind: str, file: str) -> list[Space]:
    return KINDS[kind].read((OUTPUTS / file).read_text(), "q", NOW)


def numbers(spaces: list[Space]) -> list[tuple[object, ...]]:
    return [(one.name, one.used_bytes, one.limit_bytes, one.used_inodes, one.limit_inodes) for one in spaces]


def test_every_name_that_a_profile_may_say_is_a_program() -> None:
    assert tuple(KINDS) == QUOTA_KINDS


def test_a_wrapped_line_of_lustre_above_its_limit_is_read() -> None:
    (one,) = read("lustre", "lustre-user.txt")
    where = "q on /lustre/scratch/projects/of/a/long/name"
    assert numbers([one]) == [(where, 1048576 * KIB, 1000000 * KIB, 12, 5000)]
    assert missing(one.note, "bytes", "5d23h59m") == [] and one.share is not None and one.share > 1


def test_units_bracketed_numbers_and_an_expired_grace_period_are_read() -> None:
    (one,) = read("lustre", "lustre-project.txt")
    assert numbers([one]) == [("q on /scratch", int(12.5 * TIB), 20 * TIB, 4096, 3000)]
    assert missing(one.note, "inodes", "expired") == []


def test_no_limit_is_none() -> None:
    (one,) = read("lustre", "lustre-none.txt")
    assert numbers([one]) == [("q on /scratch", 0, None, 0, None)] and one.share is None


def test_rows_of_gpfs_are_read() -> None:
    first, second = read("gpfs", "gpfs-user.txt")
    assert numbers([first, second]) == [
        ("q on gpfsssd/scratch:fast", 1024 * KIB, 2048 * KIB, 7, 100),
        ("q on gpfswork", 3072 * KIB, 2048 * KIB, 9, None),
    ]
    assert first.note == "" and missing(second.note, "bytes", "6 days") == []


def test_rows_of_linux_quota_are_read_with_the_end_of_the_grace_period() -> None:
    home, scratch = read("quota", "quota-user.txt")
    assert numbers([home]) == [("q on /home", 2048 * KIB, 1024 * KIB, 40, None)]
    assert missing(home.note, "bytes", "2026-01-01 00:00 UTC") == []
    assert numbers([scratch]) == [("q on /scratch/long/name", 100 * KIB, None, 2, None)]
    assert read("quota", "quota-none.txt") == []


def test_idris_tells_shares() -> None:
    (one,) = read("idrquota", "idrquota-work.txt")
    assert (one.name, one.share, one.inode_percent) == ("q on WORK", 0.75, 70.0)


@pytest.mark.parametrize("kind", QUOTA_KINDS)
def test_other_texts_are_no_quota(kind: str) -> None:
    for text in ("", "Permission denied.", "\x1b[31m", "a " * 9, "1 2 3 4 5 6 7 8 9 10", ":" * 40):
        assert KINDS[kind].read(text, "q", NOW) == []


@pytest.mark.parametrize(
    ("kind", "what", "words"),
    [
        ("lustre", "project", ["lfs", "quota", "-p", "x", "/"]),
        ("gpfs", "group", ["mmlsquota", "-Y", "-g", "x"]),
        ("idrquota", "project", ["idrquota", "-w", "-p", "x"]),
    ],
)
def test_each_is_asked_for_whose_quota_is_meant(
    kind: str, what: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "mount_point_of", lambda _: "/")
    commands = KINDS[kind].commands(Whose(what, "x"), [Path("/a"), Path("/b")])
    assert commands[0] == words and len(commands) == (2 if kind == "idrquota" else 1)


def test_the_profile_names_the_kind_and_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stand-in for Lustre's program, which is not to be had here: it answers as the manual shows.
    profile = tmp_path / "config" / "opsctl" / "profile.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text('[watch]\nquota = "lustre"\nquota_of = ["user:ann", "group:six", "project:1001"]\n')
    (tmp_path / "lfs").write_text(
        f'#!/bin/sh\ncd {shlex.quote(str(OUTPUTS))}\ncase "$2" in\n-u) cat lustre-user.txt; exit 1;;\n'
        "-p) cat lustre-project.txt;;\n*) echo 'cannot find group' >&2; exit 2;;\nesac\n"
    )
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = quotas([Path("/a"), Path("/b")], NOW) or []
    assert [(bool(one.limit_bytes), one.problem) for one in found] == [
        (True, ""),
        (False, "cannot find group"),
        (True, ""),
    ]
    ann, six, project = (one.name for one in found)
    assert missing(ann, "user ann", "/lustre/scratch/projects/of/a/long/name") == []
    assert missing(six, "group six") == missing(project, "project 1001", "/scratch") == []
    monkeypatch.setenv("PATH", "/nowhere")
    assert {one.problem.split(":")[-1] for one in quotas([Path("/a")], NOW) or []} == {" No such file or directory"}
    for wrong in ('quota = "zfs"', 'quota_of = ["-u root"]', 'quota_of = ["everybody"]'):
        profile.write_text(f"[watch]\n{wrong}\n")
        with pytest.raises(Exception, match="allowed"):
            quotas([], NOW)
