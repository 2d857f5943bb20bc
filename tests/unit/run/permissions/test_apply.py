"""Opening the caller's own files, as real Unix users on a real file system."""

from __future__ import annotations

import grp
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from opsctl.core.dirwalk.sequential import BEGINNING, Folder, Stretch
from opsctl.core.errors import OpsctlError
from opsctl.core.files.sealed import keep_apart, write_sealed
from opsctl.core.files.state_files import append_state, locked, write_state
from opsctl.run.config.paths import RunPaths
from opsctl.run.permissions.apply import Opening
from opsctl.run.permissions.report import PrintedPerms, check_folder, check_run_file, refuse_private_run, report_lines
from opsctl.run.permissions.rule import Lack
from opsctl.run.state.group_folder import open_output
from tests.users import as_user, made_users

GROUP = f"ocperms{os.getpid()}"


@dataclass(frozen=True)
class Shared:
    """A folder of two members of a group, with typical mistakes."""

    folder: Path
    ann: str
    ben: str
    gid: int

    def as_ann(self, do: Callable[[], object]) -> object:
        return as_user(self.ann, do)

    def looked(self, user: str, fixes: bool = False, only_counts: bool = False) -> PrintedPerms:
        opening = Opening(self.gid, fixes, only_counts)
        return as_user(user, lambda: check_folder(self.folder, GROUP, opening, lambda _: None))

    def wrong(self) -> set[str]:
        """Return the entries that the group cannot use, according to find."""
        asked = f"( -type d ( ! -perm -2070 -o ! -group {GROUP} ) -o -type f ( ! -perm -060 -o ! -group {GROUP} ) )"
        words = ["find", str(self.folder), *asked.split()]
        return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")) - {""}


def grown(folder: Path) -> None:
    os.umask(0o022)
    (folder / "sub" / "deeper").mkdir(parents=True)
    for name in ("a.bin", "sub/b.bin", "sub/deeper/c.bin"):
        (folder / name).write_text(name)
    (folder / "program.sh").write_text("#!/bin/sh\n")
    (folder / "program.sh").chmod(0o700)
    (folder / "to-root").symlink_to("/root")


@pytest.fixture(scope="module")
def members() -> Iterator[tuple[str, str]]:
    """Create the two members once: tests change only their homes."""
    with made_users() as make:
        yield make("ann", [GROUP]), make("ben", [GROUP])


@pytest.fixture
def shared(members: tuple[str, str]) -> Iterator[Shared]:
    ann, ben = members
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        folder = Path(outer) / "shared"
        folder.mkdir()
        gid = grp.getgrnam(GROUP).gr_gid
        os.chown(folder, -1, gid)
        folder.chmod(0o2770)
        for user in (ann, ben):
            own = folder / f"of {user}"
            own.mkdir()
            os.chown(own, *(as_user(user, lambda: (os.getuid(), os.getgid()))))
            as_user(user, lambda own=own: grown(own))  # type: ignore[misc]
        yield Shared(folder, ann, ben, gid)


def test_check_says_what_find_says_and_changes_nothing(shared: Shared) -> None:
    before = shared.wrong()
    found = shared.looked(shared.ann)
    assert found.wrong == len(before) == 16 - 2 and {one.owner for one in found.owners} == {shared.ann, shared.ben}
    assert shared.wrong() == before


def test_fix_mends_ones_own_in_one_walk_and_says_what_the_other_has_to_type(shared: Shared) -> None:
    found = shared.looked(shared.ann, fixes=True)
    assert {path for path in shared.wrong() if f"of {shared.ann}" in path} == set()
    (others,) = [one for one in found.owners if one.command]
    assert others.owner == shared.ben and others.wrong == len(shared.wrong())
    assert others.command == f"opsctl perms fix --group {GROUP} -- {shared.folder}"
    assert any(shared.ben in line and line.endswith(f": {others.command}") for line in report_lines(found))
    shared.looked(shared.ben, fixes=True)
    assert shared.wrong() == set()
    again = shared.looked(shared.ben, fixes=True)
    assert (again.wrong, again.owners) == (0, [])
    program = shared.folder / f"of {shared.ben}" / "program.sh"
    assert stat.S_IMODE(program.stat().st_mode) == 0o770
    assert stat.S_IMODE((program.parent / "a.bin").stat().st_mode) == 0o664


def test_a_dry_run_says_the_same_and_changes_nothing(shared: Shared) -> None:
    before = shared.wrong()
    would = shared.looked(shared.ann, fixes=True, only_counts=True)
    assert shared.wrong() == before
    did = shared.looked(shared.ann, fixes=True)
    assert would.owners == did.owners


def test_a_chgrp_that_clears_the_setgid_bit_leaves_none_without_it(shared: Shared) -> None:
    folder = shared.folder / f"of {shared.ann}" / "sub"
    folder.chmod(0o2777)
    program = folder / "setgid"
    program.touch()
    os.chown(program, folder.stat().st_uid, folder.stat().st_gid)
    shared.looked(shared.ann, fixes=True)
    seen = folder.stat()
    assert (seen.st_gid, stat.S_IMODE(seen.st_mode)) == (shared.gid, 0o2775)


def test_no_link_is_followed_and_a_file_with_a_second_name_stays(shared: Shared) -> None:
    own = shared.folder / f"of {shared.ann}"
    home = Path(f"/home/{shared.ann}")
    secret = home / "secret"

    def plant() -> None:
        secret.write_text("x")
        secret.chmod(0o600)
        (own / "link").symlink_to(secret)
        (own / "sub" / "home").symlink_to(home)

    shared.as_ann(plant)
    second = own / "second"
    (own / "a.bin").chmod(0o600)
    second.hardlink_to(own / "a.bin")
    found = shared.looked(shared.ann, fixes=True)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and secret.stat().st_gid != shared.gid
    assert stat.S_IMODE(second.stat().st_mode) == 0o600
    assert any("hard link" in trouble.why_not for owner in found.owners for trouble in owner.troubles)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_that_takes_a_files_place_meanwhile_opens_nothing(
    shared: Shared, link: Callable[[Path, Path], None]
) -> None:
    own = shared.folder / f"of {shared.ann}"
    secret = shared.folder.parent / "secret"
    secret.touch(mode=0o600)
    shutil.chown(secret, shared.ann)

    class Swapping(Opening):
        def _dealt_with(self, folder: Folder, name: str, seen: os.stat_result, found: Lack):  # type: ignore[no-untyped-def]
            if name == "b.bin":  # it has been checked
                (own / "sub" / "b.bin").unlink()
                link(own / "sub" / "b.bin", secret)
            return super()._dealt_with(folder, name, seen, found)

    def swap() -> int:
        opening = Swapping(shared.gid, fixes=True)
        Stretch(shared.folder, opening).go(list(BEGINNING), 10**9, float("inf"))
        return sum(bool(trouble.why) for trouble in opening.take().troubles)

    assert as_user(shared.ann, swap) == 1
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and secret.stat().st_gid != shared.gid


def test_runs_that_are_not_the_groups_are_left_alone(shared: Shared) -> None:
    run = shared.folder / "private run"

    def private() -> None:
        open_output(RunPaths(run), None)
        (run / "notes").write_text("x")
        (run / "checkpoints").mkdir()

    def kept() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_gid, path.stat().st_mode) for path in (run, *run.rglob("*"))}

    shared.as_ann(private)
    before = kept()
    found = shared.looked(shared.ann, fixes=True)
    assert found.other_runs == ["private run"]
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    # No entry in it is opened or checked, not even by root, who has access to everything.
    assert found.entries == shared.looked("root", fixes=True).entries == 1 + 16 + 1
    assert kept() == before and len(before) == 4
    with pytest.raises(OpsctlError):
        refuse_private_run(run / "checkpoints")


def test_what_a_run_keeps_to_its_makers_stays_so(shared: Shared) -> None:
    paths = RunPaths(shared.folder / "run")

    def write() -> None:
        open_output(paths, GROUP)
        keep_apart(paths.output, paths.revisions, closed=True)
        write_sealed(paths.output, paths.revisions / "0001-ab", {"run.json": "{}"})
        keep_apart(paths.output, paths.requests, closed=False)
        write_state(paths.output, paths.requests / "a.json", {}, mode=0o640)
        append_state(paths.output, paths.attempts, {})
        with locked(paths.output, paths.lock, 0, "hold it"):
            pass

    def modes() -> dict[str, int]:
        return {str(path): path.stat().st_mode for path in [paths.output, *paths.output.rglob("*")]}

    shared.as_ann(write)
    before = modes()
    found = shared.looked(shared.ann, fixes=True)
    assert {owner.owner for owner in found.owners if owner.wrong} == {shared.ben}
    assert modes() == before and len(before) == 9
    for path in paths.output.rglob("*"):  # even after a user closed all of it, revisions stay their publisher's
        path.chmod(0o700 if path.is_dir() else 0o600)
    shared.looked(shared.ann, fixes=True)
    (revision,) = paths.revisions.iterdir()
    assert revision.stat().st_mode & 0o022 == 0 and (revision / "run.json").stat().st_mode & 0o077 == 0o040
    assert (paths.requests / "a.json").stat().st_mode & 0o077 == 0o040


@pytest.mark.parametrize("named", [".opsctl", ".opsctl/revisions", ".opsctl/revisions/0001-ab", "link"])
def test_what_a_run_keeps_to_its_makers_stays_so_whichever_of_its_folders_is_named(shared: Shared, named: str) -> None:
    paths = RunPaths(shared.folder / "run")

    def fix() -> None:
        open_output(paths, GROUP)
        keep_apart(paths.output, paths.revisions, closed=True)
        write_sealed(paths.output, paths.revisions / "0001-ab", {"run.json": "{}"})
        (paths.output / "link").symlink_to(paths.revisions)
        (paths.revisions / "0001-ab" / "run.json").chmod(0o600)
        check_folder(paths.output / named, GROUP, Opening(shared.gid, fixes=True), lambda _: None)

    shared.as_ann(fix)
    assert paths.revisions.stat().st_mode & 0o777 == 0o750
    (revision,) = paths.revisions.iterdir()
    assert revision.stat().st_mode & 0o777 == 0o750
    assert (revision / "run.json").stat().st_mode & 0o777 == 0o640


def test_a_program_that_runs_as_its_owner_is_opened_to_nobody(shared: Shared) -> None:
    program = shared.folder / "program"

    def make() -> None:
        program.write_text("x")
        program.chmod(0o4700)

    shared.as_ann(make)
    found = shared.looked(shared.ann, fixes=True)
    assert stat.S_IMODE(program.stat().st_mode) == 0o4700
    assert any("setuid" in trouble.why_not for owner in found.owners for trouble in owner.troubles)


def test_what_could_not_be_looked_into_is_not_told_to_be_well(shared: Shared) -> None:
    outer = shared.folder / "outer"
    outer.mkdir()
    inner = outer / "inner"
    inner.mkdir()
    for folder in (outer, inner):
        os.chown(folder, -1, shared.gid)
    inner.chmod(0o2770)
    outer.chmod(0o2775)
    shared.folder.chmod(0o2775)  # users outside of the group may read only the outer folder
    found = as_user("nobody", lambda: check_folder(outer, GROUP, Opening(shared.gid), lambda _: None))
    _, second = report_lines(found)
    assert (found.wrong, found.unread) == (0, 1) and second.strip().startswith("1 ") and "inner" in second


def test_a_run_file_becomes_the_groups_to_read_and_not_to_write(shared: Shared) -> None:
    file = shared.folder / f"of {shared.ann}" / "run.toml"

    def do() -> list[int]:
        file.write_text("")
        file.chmod(0o600)
        opening = Opening(shared.gid, fixes=True)
        return [check_run_file(file, GROUP, opening).wrong]

    assert shared.as_ann(do) == [0]
    assert (file.stat().st_gid, stat.S_IMODE(file.stat().st_mode)) == (shared.gid, 0o640)
