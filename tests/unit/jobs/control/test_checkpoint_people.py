"""Test who may prune and roll back a run that a group shares, with real Unix users."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.prune import Done, prune
from opsctl.jobs.control.rollback import RolledBack, rollback, undo
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import open_output
from opsctl.run.state.run_view import RunView
from tests.unit.jobs.control.checkpoint_runs import asks_nobody, care_run, latest, save, seen, there
from tests.unit.jobs.control.test_rollback import no_curves
from tests.users import as_user


class Shared:
    """A group's run of `owner`, with four checkpoints of its training; `member` is in the group, `stranger` is not."""

    def __init__(self, folder: Path, unix_user: Callable[..., str]) -> None:
        group = f"occ{os.getpid()}"
        self.owner, self.member = unix_user("owner", groups_of=[group]), unix_user("member", groups_of=[group])
        self.stranger, self.folder = unix_user("stranger"), folder
        os.chown(folder, pwd.getpwnam(self.owner).pw_uid, -1)

        def begin() -> None:
            os.umask(0o002)
            os.environ["XDG_CONFIG_HOME"] = str(folder)  # root's is closed
            output = folder / "output"
            output.mkdir()
            open_output(RunPaths(output), group)
            care_run(folder, group=group)
            for iteration in (10, 20, 30, 40):
                save(folder, iteration)

        as_user(self.owner, begin)
        self.run: RunView = seen(folder)

    def prune(self, user: str) -> Done:
        return as_user(user, lambda: prune(self.run, lambda _line: None, asks_nobody))

    def back(self, user: str) -> RolledBack:
        return as_user(user, lambda: rollback(self.run.paths, "tiny", 20, "", no_curves))


@pytest.fixture
def shared(unix_user: Callable[..., str]) -> Iterator[Shared]:
    with TemporaryDirectory(dir="/tmp") as folder:
        above = Path(folder)
        above.chmod(0o755)
        (above / "run").mkdir()
        yield Shared(above / "run", unix_user)


def test_a_member_goes_back_and_the_owner_undoes_it(shared: Shared) -> None:
    assert shared.back(shared.member).checkpoints == (30, 40)
    assert latest(shared.folder) == "global_step20"
    as_user(shared.owner, lambda: undo(shared.run.paths, "tiny", None, no_curves))
    assert there(shared.folder) == [10, 20, 30, 40] and latest(shared.folder) == "global_step40"


def test_a_member_prunes_what_the_owners_job_has_saved(shared: Shared) -> None:
    assert shared.prune(shared.member).removed == (10, 20)
    assert there(shared.folder) == [30, 40]


def test_who_is_outside_can_do_neither(shared: Shared) -> None:
    for change in (shared.prune, shared.back):
        with pytest.raises((OpsctlError, PermissionError)):
            change(shared.stranger)
    assert there(shared.folder) == [10, 20, 30, 40] and latest(shared.folder) == "global_step40"


def test_what_somebody_outside_has_put_there_is_left_alone(shared: Shared) -> None:
    planted = shared.folder / "output" / "checkpoints" / "global_step10"
    os.chown(planted, pwd.getpwnam(shared.stranger).pw_uid, -1)
    assert shared.prune(shared.owner).removed == (20,)
    assert planted.is_dir()
