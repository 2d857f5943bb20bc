"""Test whose word decides what an evaluation starts as a user, with real Unix users who share a run."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.evaluation.settings import refuse_strangers_program, settings_of
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import open_output
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import view, view_known
from opsctl.ui.doctor.sources import lm_eval
from tests.tiny_run import ready, write_run
from tests.users import as_user

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
GROUP = f"evl{os.getpid()}"


class Shared:
    """A run of ann's that her group shares; each has a run file of their own for it."""

    def __init__(self, above: Path, unix_user: Callable[..., str]) -> None:
        self.ann, self.ben = unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP])
        self.above, self.paths = above, RunPaths(above / self.ann / "output")
        for user in (self.ann, self.ben):
            (above / user).mkdir()
            os.chown(above / user, pwd.getpwnam(user).pw_uid, -1)

    def run_file(self, user: str, rule: str = "group", more: str = "") -> Path:
        """`user`'s; its [env] has Python look into a folder of `user`'s that is there."""
        (self.above / user / "code").mkdir(exist_ok=True)
        path = write_run(self.above / user)
        text = path.read_text().replace("[run]\n", f'[run]\ngroup = "{GROUP}"\npublish = "{rule}"\n')
        text = text.replace('output = "output"', "")
        text = text.replace("[run]\n", f'[run]\noutput = "{self.paths.output}"\n')
        text += f'\n[evaluation]\ntasks = ["cats"]\n{more}\n'
        text = text.replace("[env]\n", f'[env]\nPYTHONPATH = "{self.above / user / "code"}"\n')
        path.write_text(text)
        for one in (path, self.above / user / "code"):
            os.chown(one, pwd.getpwnam(user).pw_uid, -1)
        return path

    def publish(self, user: str, rule: str = "group", more: str = "") -> None:
        run = ready(load_run_file(self.run_file(user, rule, more), {}))
        if user == self.ann and not self.paths.state.exists():
            self.paths.output.rmdir()

        def do() -> None:
            open_output(run.paths, GROUP)
            publish(run)

        as_user(user, do)

    def variables(self, user: str) -> str:
        """The folder of code that `user`'s settings name."""

        def do() -> str:
            found = settings_of(view(str(self.above / user / "run.toml")))
            assert found is not None
            return found.variables["PYTHONPATH"]

        return as_user(user, do)

    def code_that_runs(self, user: str, run_file: Path | None = None) -> str:
        """The folder of code that `user` would load; raises where that is refused."""

        def do() -> str:
            run = view(str(run_file or self.above / user / "run.toml"))
            found = settings_of(run)
            assert found is not None
            refuse_strangers_program(run, found)
            return found.variables["PYTHONPATH"]

        return as_user(user, do)

    def code_of(self, user: str) -> str:
        return str(self.above / user / "code")


@pytest.fixture
def shared(unix_user: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("HOME", folder)
        yield Shared(Path(folder), unix_user)


def test_nothing_of_what_another_published_runs_as_who_evaluates_with_an_own_run_file(shared: Shared) -> None:
    shared.publish(shared.ann)
    own = shared.run_file(shared.ben)
    assert shared.code_that_runs(shared.ben) == shared.code_of(shared.ben)
    assert shared.code_that_runs(shared.ann) == shared.code_of(shared.ann)
    with pytest.raises(OpsctlError, match=f"run.toml belongs to {shared.ann}"):
        shared.code_that_runs(shared.ben, shared.above / shared.ann / "run.toml")
    own.unlink()

    def of_the_folder() -> object:
        return settings_of(view_known(own, shared.paths.output))

    with pytest.raises(OpsctlError, match=rf"of {shared.ann}@.*; .*{shared.ann} "):
        as_user(shared.ben, of_the_folder)


def test_a_members_revision_counts_for_the_owner_by_the_owners_own_word_alone(shared: Shared) -> None:
    shared.publish(shared.ann)
    shared.publish(shared.ben)
    assert shared.variables(shared.ann) == shared.code_of(shared.ben)
    shared.publish(shared.ann, "owner")
    as_user(shared.ben, lambda: shared.paths.revisions.rename(shared.paths.state / "elsewhere"))
    shared.publish(shared.ben)  # who says that the group counts
    assert shared.variables(shared.ann) == shared.code_of(shared.ann)


def test_doctor_looks_where_an_evaluation_would(shared: Shared) -> None:
    shared.publish(shared.ann, more='python = "/published"')
    shared.run_file(shared.ann, more='python = "/written"')
    found = as_user(shared.ann, lambda: lm_eval(load_run_file(shared.above / shared.ann / "run.toml", {}), {}))
    assert found is not None and found.python == "/published"


@pytest.mark.parametrize("where", ["include", "include's file", "PYTHONPATH", "PYTHONPATH's file"])
def test_folders_with_code_that_others_can_change_are_not_loaded(shared: Shared, where: str) -> None:
    include = shared.above / shared.ann / "include"
    (include / "below").mkdir(parents=True)
    (include / "below" / "task.py").touch()
    shared.publish(shared.ann, more=f'include = ["{include}"]')
    code = Path(shared.code_of(shared.ann))
    (code / "sitecustomize.py").touch()
    assert shared.code_that_runs(shared.ann) == str(code)
    places = {"include": include, "include's file": include / "below" / "task.py", "PYTHONPATH": code}
    place = places.get(where, code / "sitecustomize.py")
    place.chmod(0o777)
    with pytest.raises(OpsctlError, match=f"{place} "):
        shared.code_that_runs(shared.ann)
    os.chown(place, pwd.getpwnam(shared.ann).pw_uid, -1)
    found = as_user(shared.ann, lambda: lm_eval(load_run_file(shared.above / shared.ann / "run.toml", {}), {}))
    assert found is not None and str(place) in found.others_can_change
