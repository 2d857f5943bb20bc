"""Environment scripts that commands about a run start, or refuse to start, as the Unix users that run them."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.environments.inspection import check, target_of
from tests.tiny_run import write_run
from tests.users import as_user

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
GROUP = f"env{os.getpid()}"
STRANGER = "nobody"


@dataclass
class Shared:
    """A run of ann that her group shares; its script leaves a mark and fails."""

    folder: Path
    ann: str
    ben: str

    @property
    def script(self) -> Path:
        return self.folder / "env.sh"

    def write(self, more: str = "") -> None:
        path = write_run(self.folder)
        path.write_text(
            path.read_text().replace("[run]\n", f'[run]\nenvironment = "env.sh"\ngroup = "{GROUP}"\n{more}\n')
        )
        self.script.write_text(f"touch {self.folder}/started-by-$USER\nexit 3\n")
        for one in (path, self.script):
            os.chown(one, pwd.getpwnam(self.ann).pw_uid, grp.getgrnam(GROUP).gr_gid)
            one.chmod(0o660)

    def started_by(self, user: str, do: Callable[[], tuple[str, ...]]) -> tuple[bool, str]:
        """Return True if the command of `user` started the script, and its one message."""

        def done() -> tuple[str, ...]:
            os.environ.update(USER=user, HOME=str(self.folder))
            return do()

        mark = self.folder / f"started-by-{user}"
        (line,) = as_user(user, done)
        was_started = mark.exists()
        mark.unlink(missing_ok=True)
        return was_started, line

    def checking(self, trust: bool = False) -> tuple[str, ...]:
        checked = check(target_of(load_run_file(self.folder / "run.toml"), trust), None, ())
        return tuple(f"{one.text} [{one.todo}]" for one in checked.problems)


@pytest.fixture
def shared(unix_user: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    ann, ben = unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP])
    with TemporaryDirectory(dir="/tmp") as folder:
        run = Shared(Path(folder), ann, ben)
        run.write()
        (run.folder / "output").mkdir()
        for one in (run.folder, *run.folder.rglob("*")):
            os.chown(one, pwd.getpwnam(ann).pw_uid, grp.getgrnam(GROUP).gr_gid)
            one.chmod(0o2770 if one.is_dir() else 0o660)
        yield run


def test_a_check_starts_what_the_group_can_change_for_the_owner_and_for_others_only_with_trust(shared: Shared) -> None:
    was_started, line = shared.started_by(shared.ann, shared.checking)  # her jobs run what her group can change
    assert was_started and "exit code 3" in line
    was_started, line = shared.started_by(shared.ben, shared.checking)
    assert not was_started
    assert line.endswith(f"{shared.script} belongs to {shared.ann} [opsctl env check --trust]")
    was_started, line = shared.started_by(shared.ben, lambda: shared.checking(trust=True))
    assert was_started and "exit code 3" in line


def everybodys(shared: Shared) -> None:
    shared.script.chmod(0o666)


def a_strangers(shared: Shared) -> None:
    os.chown(shared.script, pwd.getpwnam(STRANGER).pw_uid, -1)


def a_link_in_a_strangers_folder(shared: Shared) -> None:
    shared.script.rename(shared.folder / "real.sh")
    (shared.folder / "open").mkdir()
    (shared.folder / "open").chmod(0o777)
    (shared.folder / "open" / "env.sh").symlink_to(shared.folder / "real.sh")
    shared.script.symlink_to("open/env.sh")


def only_the_owner_publishes(shared: Shared) -> None:
    shared.write(more='publish = "owner"')


@pytest.mark.parametrize(
    "change",
    [everybodys, a_strangers, a_link_in_a_strangers_folder, only_the_owner_publishes],
    ids=lambda one: one.__name__,
)
def test_what_others_than_those_who_share_the_run_can_change_nobody_starts(
    shared: Shared, change: Callable[[Shared], None]
) -> None:
    change(shared)
    for user in (shared.ann, shared.ben):
        was_started, line = shared.started_by(user, shared.checking)
        assert not was_started and "exit code" not in line, line


def test_variables_of_a_run_file_that_somebody_else_wrote_reach_no_python(shared: Shared) -> None:
    """PYTHONPATH alone has Python run a sitecustomize."""
    path = shared.folder / "run.toml"
    path.write_text(path.read_text().replace('environment = "env.sh"\n', "") + 'PYTHONPATH = "/x"\n')
    assert f"{path} belongs to {shared.ann}" in shared.started_by(shared.ben, shared.checking)[1]
