"""Test whose programs a cron folder runs, and as whom: real Unix accounts, a folder of a group's, files of
everybody's.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.jobs.scheduler.context import Cron, job_files
from opsctl.jobs.scheduler.job_runs import start_job
from opsctl.jobs.scheduler.setup import prepare
from opsctl.run.config.schema import CronTable
from opsctl.run.state.scheduler import CronPaths
from opsctl.slurm.cluster import Cluster
from tests.cluster.commands import open_folder
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron
from tests.users import as_user

GROUP = f"octrust{os.getpid()}"


@pytest.fixture
def people(unix_user: Callable[..., str]) -> tuple[str, str, str]:
    return unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP]), unix_user("eve")


def shared(folder: Path, owner: str, group: str | None = GROUP) -> Cron:
    """The owner's cron folder, opened as a start does, with nothing in it."""

    def make() -> None:
        cron = a_cron(folder, SlurmInMemory(), **({"group": group} if group else {}))
        prepare(cron)

    as_user(owner, make)
    return a_cron_of(folder, group)


def a_cron_of(folder: Path, group: str | None) -> Cron:
    return Cron(CronPaths(folder), CronTable(group=group), Cluster(), SlurmInMemory(), {})


def put(folder: Path, user: str, name: str) -> None:
    def write() -> None:
        path = folder / "cron.hourly" / f"{name}.slurm"
        path.write_text("#!/bin/bash\nid -un\n")
        path.chmod(0o640)

    as_user(user, write)


def outcome(cron: Cron, user: str) -> dict[str, str]:
    """Job -> its problem, empty where it was started, when `user` carries the chain."""

    def started() -> dict[str, str]:
        return {file.name: start_job(cron, file, "abc", 3600).problem for file in job_files(cron.paths, False)}

    return as_user(user, started)


def test_members_programs_run_as_the_carrier_only_where_his_own_profile_names_the_group(
    people: tuple[str, str, str],
) -> None:
    ann, ben, _ = people
    with open_folder() as base:
        cron = shared(base / "cron", ann)
        put(base / "cron", ann, "anns")
        put(base / "cron", ben, "bens")
        said = outcome(a_cron_of(base / "cron", None), ann)
        assert said["hourly/anns"] == "" and f"belongs to {ben}" in said["hourly/bens"]
        assert outcome(cron, ann)["hourly/bens"] == ""


def test_a_strangers_file_is_not_run_even_when_it_got_into_the_folder(people: tuple[str, str, str]) -> None:
    ann, _, eve = people
    with open_folder() as base:
        cron = shared(base / "cron", ann)
        put(base / "cron", ann, "hers")
        path = base / "cron" / "cron.hourly" / "hers.slurm"
        os.chown(path, pwd.getpwnam(eve).pw_uid, -1)
        assert f"belongs to {eve}" in outcome(cron, ann)["hourly/hers"]


def test_a_hard_link_to_a_script_of_the_carriers_is_not_run(people: tuple[str, str, str]) -> None:
    ann, _, _ = people
    with open_folder() as base:
        cron = shared(base / "cron", ann)
        put(base / "cron", ann, "one")
        os.link(base / "cron" / "cron.hourly" / "one.slurm", base / "cron" / "cron.hourly" / "two.slurm")
        assert all("second name" in why for why in outcome(cron, ann).values())


def test_the_folder_of_somebody_else_is_refused_without_a_group_in_the_profile(people: tuple[str, str, str]) -> None:
    ann, _, eve = people
    with open_folder() as base:
        cron = shared(base / "cron", eve, group=None)
        (base / "cron").chmod(0o755)
        with pytest.raises(OpsctlError, match=rf"{base}/cron .*{eve}.*\[cron\]"):
            as_user(ann, lambda: prepare(cron))


def test_who_is_not_in_the_group_is_told_so_in_the_profiles_words(people: tuple[str, str, str]) -> None:
    _, _, eve = people
    with open_folder() as base:
        (base / "mine").mkdir(mode=0o777)
        (base / "mine").chmod(0o777)
        cron = a_cron_of(base / "mine" / "cron", GROUP)
        with pytest.raises(RunFileError, match=rf"{GROUP}.*\[cron\]"):
            as_user(eve, lambda: prepare(cron))
