"""Revisions of several Unix users in a run that its owner shares with a group."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import open_output
from opsctl.run.state.revisions import Revision, digest_of, newest, newest_for_task, newest_whole, publish
from tests.facts import missing
from tests.tiny_run import ready, write_run
from tests.users import as_user, made_users


class Shared:
    """A run of `owner`, shared with a group that `member` is in and `stranger` is not."""

    def __init__(self, folder: Path, owner: str, member: str, stranger: str, group: str) -> None:
        self.owner, self.member, self.stranger, self.group, self.folder = owner, member, stranger, group, folder
        os.chown(folder, uid(self.owner), -1)

    def run(self, lr: str = "1e-3", rule: str = "group") -> ExpandedRun:
        """The run as some user's run file has it."""
        path = write_run(self.folder, lr=lr)
        table = f'group = "{self.group}"\npublish = "{rule}"\n'
        path.write_text(path.read_text().replace("[run]\n", "[run]\n" + table))
        run = ready(load_run_file(path, {}))
        with contextlib.suppress(OSError):
            run.paths.output.rmdir()  # the first to publish makes it, and is the run's owner
        return run

    def publish(self, user: str, lr: str = "1e-3", rule: str = "group") -> str:
        """The name of what `user` publishes."""
        run = self.run(lr, rule)

        def do() -> str:
            open_output(run.paths, self.group)
            return publish(run).name

        return as_user(user, do)


@pytest.fixture(scope="module")
def names() -> Iterator[tuple[str, str, str, str]]:
    group = f"ocg{os.getpid()}"
    with made_users() as make:
        yield make("pubann", groups_of=[group]), make("pubben", groups_of=[group]), make("pubeve"), group


@pytest.fixture
def shared(names: tuple[str, str, str, str]) -> Iterator[Shared]:
    with TemporaryDirectory(dir="/tmp") as folder:
        above = Path(folder)
        above.chmod(0o755)
        (above / "run").mkdir()
        yield Shared(above / "run", *names)


def test_a_members_revision_is_taken_and_named_after_whose_it_is(shared: Shared) -> None:
    first = shared.publish(shared.owner)
    second = shared.publish(shared.member, lr="2e-3")
    paths = shared.run().paths
    found = as_user(shared.owner, lambda: newest_for_task(paths, only_owners=False))
    assert found[0] is not None and (found[0].name, found[0].damage, found[1]) == (second, "", ())
    assert found[0].created_by.startswith(f"{shared.member}@")
    assert {first, second} == {path.name for path in paths.revisions.iterdir()}


def test_no_member_can_change_rename_or_remove_what_another_published(shared: Shared) -> None:
    first = shared.publish(shared.owner)
    folder = shared.run().paths.revisions / first

    def tries() -> list[str]:
        refused = []
        for attempt in (
            lambda: (folder / "step.sh").write_text("id"),
            lambda: (folder / "step.sh").unlink(),
            lambda: (folder / "more").touch(),
            lambda: folder.rename(folder.with_name("0009-" + first[-12:])),
        ):
            try:
                attempt()
            except PermissionError:
                refused.append("refused")
        return refused

    assert as_user(shared.member, tries) == ["refused"] * 4


def test_a_strangers_revision_is_damaged_for_everybody_who_shares_the_run(shared: Shared) -> None:
    shared.publish(shared.owner)
    run = shared.run(lr="3e-3")
    first = newest(run.paths)
    assert first is not None
    planted = plant(run, first)
    os.chown(planted, uid(shared.stranger), -1)
    found = as_user(shared.owner, lambda: newest_for_task(run.paths, only_owners=False))[0]
    assert found is not None and found.name == planted.name
    assert f"belongs to {shared.stranger}" in found.damage
    assert shared.publish(shared.owner, lr="4e-3").startswith("0003-")


def test_only_revisions_of_the_owner_count_if_publish_is_owner(shared: Shared) -> None:
    first = shared.publish(shared.owner, rule="owner")
    paths = shared.run(rule="owner").paths
    for rule in ("owner", "group"):  # also with a run file that says otherwise
        with pytest.raises(OpsctlError, match=f"only {shared.owner} .*tiny"):
            shared.publish(shared.member, lr="2e-3", rule=rule)
    assert shared.publish(shared.member, rule="owner") == first  # nothing new: any member may submit what is published
    other = plant(shared.run(), as_user(shared.owner, lambda: existing(paths)))
    for path in (other, *other.iterdir()):
        os.chown(path, uid(shared.member), -1)
    found, passed_over = as_user(shared.owner, lambda: newest_for_task(paths, only_owners=True))
    assert found is not None and (found.name, found.damage) == (first, "")
    assert [(one.name, one.created_by) for one in passed_over] == [(other.name, shared.member)]
    own, _ = as_user(shared.member, lambda: newest_for_task(paths, only_owners=True))
    assert own is not None and own.name == other.name  # a member's own task


def test_a_revision_that_members_could_have_changed_is_damaged(shared: Shared) -> None:
    first = shared.publish(shared.owner, rule="owner")
    paths = shared.run(rule="owner").paths
    (paths.revisions / first / "step.sh").chmod(0o660)
    found, _ = as_user(shared.owner, lambda: newest_for_task(paths, only_owners=True))
    assert found is not None and missing(found.damage, first, "owner") == []
    assert shared.publish(shared.owner, rule="owner").startswith("0002-")


def test_a_revision_of_several_accounts_is_damaged(shared: Shared) -> None:
    first = shared.publish(shared.owner)
    paths = shared.run().paths
    os.chown(paths.revisions / first / "step.sh", uid(shared.member), -1)
    found = as_user(shared.owner, lambda: newest(paths))
    assert found is not None and "step.sh" in found.damage


def test_a_run_that_is_opened_to_a_group_later_keeps_its_revisions_from_being_changed(shared: Shared) -> None:
    run = shared.run()

    def do() -> str:
        open_output(run.paths, None)
        revision = publish(run)
        open_output(run.paths, shared.group)
        return revision.name

    folder = run.paths.revisions / as_user(shared.owner, do)
    assert f"{folder.parent.stat().st_mode & 0o7777:o} {folder.stat().st_mode & 0o7777:o}" == "3770 2750"
    assert {f"{path.stat().st_mode & 0o7777:o}" for path in folder.iterdir()} == {"440"}
    found = as_user(shared.member, lambda: newest(run.paths))
    assert found is not None and not found.damage and not found.is_open


def existing(paths: RunPaths) -> Revision:
    """The newest that can be read."""
    found = newest_whole(paths)
    assert found is not None
    return found


def plant(run: ExpandedRun, like: Revision) -> Path:
    """A whole revision in the run's folder, as a user makes one by hand."""
    number = like.number + 1
    about = json.loads((like.folder / "revision.json").read_text()) | {"number": number, "created_by": "root@nowhere"}
    folder = like.folder.with_name(f"{number:04d}-{digest_of(like.texts)[:12]}")
    folder.mkdir()
    for name, text in {**like.texts, "revision.json": json.dumps(about)}.items():
        (folder / name).write_text(text)
    return folder


def uid(user: str) -> int:
    return pwd.getpwnam(user).pw_uid
