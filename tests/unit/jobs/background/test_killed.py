"""Long commands that are made jobs while processes die, or two at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.background.submission import settle, start
from opsctl.jobs.tracked_job import ON_ITS_WAY
from opsctl.slurm.cluster import Cluster
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.background.sent import a_command, a_place
from tests.unit.jobs.background.slurm_in_a_file import SlurmInAFile


def test_wherever_a_submission_dies_slurms_job_is_on_record_and_none_is_asked_for_twice(tmp_path: Path) -> None:
    kinds: list[tuple[int, int]] = []
    for _ in killed_at_every_step(lambda: _started(tmp_path / str(len(kinds)))):
        folder = tmp_path / str(len(kinds))
        place, slurm = a_place(folder), SlurmInAFile(folder / "slurm")
        known = place.all()
        kinds.append((len(slurm.scripts), len(known)))
        assert len(slurm.scripts) <= len(known)
        if slurm.scripts:
            (seen,) = settle(place, _client_of(slurm)(known[0].cluster), known)
            assert (seen.state, seen.command.last.job_id) == ("pending", 101)
            with pytest.raises(OpsctlError, match="job 101"):
                start(place, slurm, a_command(folder))
        elif known:  # no one can know whether Slurm was asked: after a minute the queue's word is enough
            place.write(known[0].with_last(asked_at=known[0].asked_at - ON_ITS_WAY - timedelta(seconds=1)))
            assert start(place, slurm, a_command(folder)).last.job_id == 101
        else:
            assert start(place, slurm, a_command(folder)).last.job_id == 101
    assert set(kinds) == {(0, 0), (0, 1), (1, 1)}


def test_of_two_at_once_one_is_sent(tmp_path: Path) -> None:
    children = []
    read, write = os.pipe()
    for _ in range(2):
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)  # until both are there
            code = 1
            try:
                _started(tmp_path)
                code = 0
            except OpsctlError as error:
                code = 7 if "under way" in str(error) else 8
            finally:
                os._exit(code)
        children.append(child)
    os.close(read)
    os.close(write)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == [0, 7]
    assert len(SlurmInAFile(tmp_path / "slurm").scripts) == len(a_place(tmp_path).all()) == 1


@pytest.mark.parametrize(
    "word", ["a\nb\n#SBATCH --gres=gpu:8", "\"q' $HOME `x` %j", "-x", "--", "\udcff", "y" * 100_000]
)
def test_no_word_gets_into_the_script_and_each_comes_back_as_it_was(tmp_path: Path, word: str) -> None:
    place, slurm = a_place(tmp_path), SlurmInAFile(tmp_path / "slurm")
    command = start(place, slurm, a_command(tmp_path, "data", "prepare", word))
    found = place.read(command.name)
    assert found is not None and found.words == ("data", "prepare", word)
    assert "gres" not in slurm.scripts[0] and len(slurm.scripts[0]) < 2000


def _started(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    start(a_place(folder), SlurmInAFile(folder / "slurm"), a_command(folder))


def _client_of(slurm: SlurmInAFile) -> Callable[[Cluster], SlurmInAFile]:
    return lambda _: slurm
