"""Two people of one group who back up one run, as the Unix users that they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opsctl.run.checkpoints.backups import BackedUp, read_backups
from opsctl.run.state.identity import make_run_id
from opsctl.transfer.backups.verify import verify
from tests.unit.jobs.control.checkpoint_runs import care_run, save, seen
from tests.unit.transfer.backups.backed_up_runs import back_up_now, destination, whole_there
from tests.users import as_user

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
GROUP = f"bkp{os.getpid()}"


@pytest.fixture
def people(unix_user: Callable[..., str]) -> tuple[str, str]:
    return unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP])


@pytest.fixture
def place(people: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of both, as administrators make one for a group."""
    import grp

    with TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, -1, grp.getgrnam(GROUP).gr_gid)
        Path(folder).chmod(0o2770)
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        yield Path(folder)


def test_the_second_one_goes_on_from_what_the_first_has_on_record(place: Path, people: tuple[str, str]) -> None:
    ann, ben = people
    folder, to = place / "run", place / "far"

    def begin() -> None:
        os.umask(0o007)
        folder.mkdir()
        to.mkdir()
        care_run(folder, group=GROUP)
        make_run_id(seen(folder).paths)
        (folder / "output" / "checkpoints").mkdir(exist_ok=True)
        for iteration in (10, 20):
            save(folder, iteration)

    def sent() -> list[BackedUp]:
        os.umask(0o077)  # whatever one's own habits are
        done = back_up_now(folder, to)
        assert done.problems == []
        return done.lines

    def damaged() -> int:
        with destination(folder, to) as far:
            return len(verify(far, None, lambda _line: None).lost)

    as_user(ann, begin)
    assert [one.iteration for one in as_user(ann, sent)] == [20, 10]
    assert as_user(ben, sent) == []
    as_user(ann, lambda: save(folder, 40) and None)
    assert [(one.iteration, one.by.partition("@")[0]) for one in as_user(ben, sent)] == [(40, ben)]
    spoilt = to / "checkpoints" / "global_step20" / "layer_01-model_00-model_states.pt"
    spoilt.write_bytes(b"!" + spoilt.read_bytes()[1:])
    assert as_user(ben, damaged) == 1
    assert [one.iteration for one in as_user(ben, sent)] == [20]  # in ann's folder there
    assert as_user(ann, sent) == [] and as_user(ann, damaged) == 0
    as_user(ann, lambda: save(folder, 60) and None)
    assert [one.iteration for one in as_user(ann, sent)] == [60]
    assert len(whole_there(to)) == 4
    assert {one.by.partition("@")[0] for one in read_backups(seen(folder).paths)} == {
        ann,
        ben,
    }
