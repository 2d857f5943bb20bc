"""The kill switch for several Unix users: its owner, members of the group, and a stranger."""

from __future__ import annotations

import grp
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import kill_switch
from tests.users import as_user, made_users

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")


@dataclass(frozen=True)
class People:
    """An owner and a member of one group, a stranger, and a run in a folder where each of them can write."""

    owner: str
    member: str
    stranger: str
    group: str
    paths: RunPaths


@pytest.fixture(scope="module")
def names() -> Iterator[tuple[str, str, str, str]]:
    group = f"ocks{os.getpid()}"
    with made_users() as make:
        yield make("ksann", groups_of=[group]), make("ksben", groups_of=[group]), make("kseve"), group


@pytest.fixture
def people(names: tuple[str, str, str, str]) -> Iterator[People]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield People(*names, RunPaths(Path(folder) / "out"))


def test_a_member_stops_the_owners_run_and_each_can_deactivate_it(people: People) -> None:
    paths = people.paths
    as_user(people.owner, lambda: kill_switch.arm(paths, people.group))
    assert as_user(people.member, lambda: kill_switch.trigger(paths, "it diverges")).changed
    state = as_user(people.owner, lambda: kill_switch.state(paths))
    assert (state.by, state.why) == (people.member, "it diverges")
    assert as_user(people.owner, lambda: kill_switch.deactivate(paths)).changed
    as_user(people.owner, lambda: kill_switch.trigger(paths, "mine"))
    assert as_user(people.member, lambda: kill_switch.deactivate(paths)).changed


def test_what_arming_makes_before_the_first_submit_is_the_groups(people: People) -> None:
    paths = people.paths
    as_user(people.owner, lambda: kill_switch.arm(paths, people.group))
    for path in (paths.output, paths.state, paths.kill_switch_reserve):
        found = path.stat()
        assert grp.getgrgid(found.st_gid).gr_name == people.group
        assert found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_IRWXO
    assert as_user(people.member, lambda: kill_switch.arm(paths, people.group)).state.is_armed


def test_a_user_outside_the_group_is_refused_with_its_name(people: People) -> None:
    paths = people.paths
    as_user(people.owner, lambda: kill_switch.arm(paths, people.group))
    told = f"{people.stranger} .*group {people.group}"
    for do in (
        lambda: kill_switch.state(paths),
        lambda: kill_switch.trigger(paths),
        lambda: kill_switch.deactivate(paths),
    ):
        with pytest.raises(OpsctlError, match=told):
            as_user(people.stranger, do)
    with pytest.raises(OpsctlError, match=told):
        as_user(people.stranger, lambda: kill_switch.arm(paths, people.group))


def test_without_a_group_only_the_owner_can_trigger_and_errors_name_the_owner(people: People) -> None:
    paths = people.paths
    as_user(people.owner, lambda: kill_switch.arm(paths))
    assert stat.S_IMODE(paths.output.stat().st_mode) == 0o700
    assert f"only {people.owner}" in as_user(people.owner, lambda: kill_switch.state(paths)).readiness()
    with pytest.raises(OpsctlError, match=rf"only {people.owner} .*group.*\[run\]"):
        as_user(people.member, lambda: kill_switch.trigger(paths))
    assert as_user(people.owner, lambda: kill_switch.trigger(paths)).changed


def test_nothing_outside_the_output_folder_is_opened_or_removed(people: People) -> None:
    paths, home = people.paths, people.paths.output.parent / "home"

    def lay_a_trap() -> None:
        kill_switch.arm(paths, people.group)
        (paths.state / "kill-switch.json").write_text(f'{{"path": "{home}/switch"}}')

    def have_a_home() -> None:
        home.mkdir(mode=0o755)
        (home / "switch").write_text("hers")

    as_user(people.member, lay_a_trap)
    as_user(people.owner, have_a_home)
    as_user(people.owner, lambda: kill_switch.arm(paths, people.group))
    as_user(people.owner, lambda: kill_switch.deactivate(paths))
    assert (home / "switch").read_text() == "hers" and stat.S_IMODE(home.stat().st_mode) == 0o755


def test_a_switch_that_cannot_be_read_is_an_error(people: People) -> None:
    paths = RunPaths(people.paths.output / "deeper" / "out")
    as_user(people.owner, lambda: kill_switch.arm(paths))
    people.paths.output.chmod(0o700)
    with pytest.raises(OpsctlError, match=f"kill switch.*{people.owner}"):
        as_user(people.stranger, lambda: kill_switch.state(paths))


def test_a_link_of_another_user_in_place_of_the_output_folder_opens_nothing(people: People) -> None:
    shared, home = people.paths.output.with_name("shared"), people.paths.output.with_name("home")
    as_user(people.owner, lambda: home.mkdir(0o700))
    shared.mkdir()
    os.chown(shared, -1, grp.getgrnam(people.group).gr_gid)
    shared.chmod(0o2770)
    as_user(people.member, lambda: (shared / "out").symlink_to(home))
    with pytest.raises(OpsctlError, match=f"link.*{people.member}"):
        as_user(people.owner, lambda: kill_switch.arm(RunPaths(shared / "out"), people.group))
    assert stat.S_IMODE(home.stat().st_mode) == 0o700 and not list(home.iterdir())
    (shared / "out").unlink()
    as_user(people.owner, lambda: (shared / "out").symlink_to(home))  # one's own is one's own word
    as_user(people.owner, lambda: kill_switch.arm(RunPaths(shared / "out"), people.group))
    assert stat.S_IMODE(home.stat().st_mode) == 0o2770
