"""Every check on a set-up where all is well, and on one that is broken in one place: the line that names it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsctl.core.dirwalk.file_system import Filled
from opsctl.monitoring.snapshot import CronSeen
from opsctl.run.config.schema import EnvironmentTable, ProgramTable, RunFile, RunTable, SlurmTable
from opsctl.run.environments.inspection import Discrepancy
from opsctl.ui.doctor.check import (
    AccountSeen,
    DeskSeen,
    EnvironmentSeen,
    FolderSeen,
    HostSeen,
    KernelsSeen,
    LmEvalSeen,
    PrintedCheck,
    Seen,
    SlurmSeen,
    SoftwareSeen,
    State,
    examined,
    is_well,
)
from opsctl.ui.doctor.gather import CHECKS
from opsctl.ui.doctor.sources import PACKAGES, PROGRAMS
from trainer.formats.distribution import requirement

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
RUN = RunFile(
    run=RunTable(name="tr1", group="team", environment="env.sh"),
    slurm=SlurmTable(nodes=3, gpus_per_node=8, time="20:00:00", partition="gpu", spare=1),
    environment=EnvironmentTable(requirements=("r.txt",), extensions=("cpu_adam",), architectures=("8.0",)),
)
ROOMY = Filled(used_bytes=1 << 40, limit_bytes=1 << 41, used_inodes=10, limit_inodes=1000)
HEALTHY = Seen(
    now=NOW,
    run=RUN,
    tables={"hub": {"repo": "lab/tr1"}, "backup": {"to": ["s3://b/p"]}},
    jobs={"internet_partition": "prepost"},
    account=AccountSeen("alice", "team", 0o007, profiles={Path("/etc/opsctl/profile.toml"): ""}),
    software=SoftwareSeen(
        (3, 11, 2), "/usr/bin/python", dict.fromkeys(PROGRAMS, "/bin/x"), dict.fromkeys(PACKAGES, True)
    ),
    slurm=SlurmSeen("jz", "24.11.5", "accounting_storage/slurmdbd", "", frozenset({"gpu", "prepost"})),
    output=FolderSeen(
        *(Path("/runs/tr1"), True, True, 0o2770, "team", "alice", "ext4"), filled=ROOMY, has_locks=True, skew_s=0.1
    ),
    home=FolderSeen(Path("/home/alice"), True, filled=ROOMY),
    host=HostSeen("login1", 64 << 30, {"open files": 65536, "processes": -1}, "550.54", 8),
    environment=EnvironmentSeen(Path("/runs/env.sh"), held_against=Path("/runs/lock")),
    kernels=KernelsSeen("cuda-sm_80", "ok", ("/kernels",), "opsctl kernels build --arch=8.0"),
    lm_eval=LmEvalSeen("/lm-eval/bin/python", "0.4.13"),
    desk=DeskSeen(CronSeen("/cron", is_started=True, period_s=3600.0, heartbeat_at=NOW - timedelta(minutes=5)), 2),
    has_hub_token=True,
)


def changed(part: str, **values: Any) -> Seen:
    return replace(HEALTHY, **{part: replace(getattr(HEALTHY, part), **values)})


def without(*programs: str) -> Seen:
    assert HEALTHY.software is not None
    return changed("software", programs={k: v for k, v in HEALTHY.software.programs.items() if k not in programs})


def lacking(*packages: str) -> dict[str, bool]:
    return {name: name not in packages for name in PACKAGES}


def run_with(**tables: Any) -> RunFile:
    return msgspec.structs.replace(RUN, **tables)


def wrong(kind: Any, text: str, todo: str = "") -> tuple[Discrepancy, ...]:
    return (Discrepancy(kind=kind, text=text, todo=todo),)


NO_SCRIPT = run_with(run=RunTable(name="tr1", group="team"))
PROGRAM = run_with(
    run=NO_SCRIPT.run,
    slurm=msgspec.structs.replace(RUN.slurm, spare=0),
    program=ProgramTable(command=("torchrun", "-m", "torchtitan.train"), kind="torchtitan", steps=5),
)
#: (check, what is broken, the state, words of the line, words of what to type)
BREAKS: list[tuple[str, Seen, State, str, str]] = [
    (
        "program",
        replace(HEALTHY, run=PROGRAM),
        State.OPTIONAL,
        "torchtitan: No save on request: the work",
        "your-trainer.md",
    ),
    (
        "probe",
        replace(HEALTHY, run=run_with(slurm=msgspec.structs.replace(RUN.slurm, spare=0))),
        State.OPTIONAL,
        "off: one slow or lying node of many is noticed late",
        'probe = "quick" and spare = 1 under [slurm]',
    ),
    (
        "run file",
        replace(HEALTHY, run=None, run_problem="run.toml: [run] nam"),
        State.MISSING,
        "[run] nam",
        "opsctl plan",
    ),
    (
        "group",
        changed("account", group_problem="alice is not in group team"),
        State.MISSING,
        "not in group",
        "newgrp team",
    ),
    ("umask", changed("account", umask=0o077), State.MISSING, "umask 0077", "umask 0007"),
    ("umask", changed("account", umask=0o000), State.MISSING, "everybody can", "umask 0007"),
    ("umask", changed("account", default_group="users"), State.OPTIONAL, "default group users", "newgrp team"),
    (
        "profiles",
        changed("account", profiles={Path("/p"): "/p can be written by others"}),
        State.MISSING,
        "/p can",
        "chmod",
    ),
    ("profiles", changed("account", profile_problem="/p: [crn] is not known"), State.MISSING, "[crn]", "correct"),
    ("profiles", changed("account", profiles={}), State.OPTIONAL, "no profile", ""),
    (
        "cron",
        replace(HEALTHY, desk=DeskSeen(CronSeen("/c", is_started=False), 1)),
        State.OPTIONAL,
        "none is started",
        "opsctl cron start",
    ),
    (
        "cron",
        replace(
            HEALTHY, desk=DeskSeen(CronSeen("/c", True, period_s=3600.0, heartbeat_at=NOW - timedelta(hours=5)), 1)
        ),
        State.MISSING,
        "not ticked for",
        "opsctl cron",
    ),
    (
        "cron",
        replace(HEALTHY, desk=DeskSeen(CronSeen("/c", True, problem="/c: denied"), 1)),
        State.UNKNOWN,
        "denied",
        "opsctl cron",
    ),
    ("alert channels", changed("desk", channels=0), State.OPTIONAL, "no alert channel", "[alerts]"),
    ("hub", replace(HEALTHY, has_hub_token=False), State.MISSING, "no token", "opsctl hub login"),
    ("hub", replace(HEALTHY, tables={}), State.OPTIONAL, "no repository", "[hub]"),
    ("python", changed("software", python=(3, 9, 1)), State.MISSING, "3.9.1", "newer Python"),
    (
        "distribution",
        changed("software", former_version="0.1.0"),
        State.MISSING,
        "opsctl 0.1.0 is installed too",
        "uninstall opsctl-slurm opsctl",
    ),
    (
        "trainer's packages",
        replace(changed("software", packages=lacking("torch")), run=NO_SCRIPT),
        State.MISSING,
        "torch not",
        requirement("trainer"),
    ),
    (
        "trainer's packages",
        changed("software", packages=lacking("torch")),
        State.OPTIONAL,
        "torch not",
        requirement("trainer"),
    ),
    ("hub's client", changed("software", packages=lacking("huggingface_hub")), State.MISSING, "not installed", "[hub]"),
    (
        "hub's client",
        replace(changed("software", packages=lacking("huggingface_hub")), tables={}),
        State.OPTIONAL,
        "not installed",
        requirement("hub"),
    ),
    ("uv", without("uv"), State.MISSING, "uv is not", "pip install uv"),
    ("compiler", without("g++"), State.MISSING, "g++ is not", "compiler"),
    ("nvcc", without("nvcc"), State.MISSING, "nvcc is not", "modules"),
    ("nvcc", replace(without("nvcc"), run=None), State.OPTIONAL, "nvcc is not", "modules"),
    ("backups", changed("software", packages=lacking("s3fs")), State.MISSING, "s3fs not installed", requirement("s3")),
    ("backups", replace(HEALTHY, tables={"hub": HEALTHY.tables["hub"]}), State.OPTIONAL, "only copy", "[backup]"),
    ("slurm's commands", replace(without("sbatch"), slurm=None), State.MISSING, "sbatch", "local-cluster up"),
    (
        "controller",
        replace(HEALTHY, slurm=None, problems={"slurm": "Slurm does not answer"}),
        State.UNKNOWN,
        "not answer",
        "",
    ),
    ("controller", changed("slurm", version="20.11.8"), State.MISSING, "20.11.8", "newer"),
    ("accounting", changed("slurm", accounting_problem="connection refused"), State.UNKNOWN, "refused", "sacct"),
    ("accounting", changed("slurm", accounting_type="accounting_storage/none"), State.OPTIONAL, "no accounting", ""),
    (
        "partition",
        changed("slurm", partitions=frozenset({"cpu", "prepost"})),
        State.MISSING,
        "gpu is not on this cluster, which has cpu",
        "[slurm]",
    ),
    (
        "internet partition",
        replace(HEALTHY, jobs={"internet_partition": "gone"}),
        State.MISSING,
        "gone is not",
        "[jobs]",
    ),
    ("internet partition", replace(HEALTHY, jobs={}), State.OPTIONAL, "no partition", "[jobs]"),
    ("local cluster", without("munged"), State.OPTIONAL, "munged not here", "apt install"),
    ("output folder", changed("output", is_writable=False, owner="bob"), State.MISSING, "bob", "ask bob"),
    ("output folder", changed("output", mode=0o755), State.MISSING, "not open to team", "kill-switch arm"),
    ("output folder", changed("output", group="users"), State.MISSING, "not open to team", "kill-switch arm"),
    ("output folder", changed("output", is_there=False), State.MISSING, "no folder", "move"),
    ("space", changed("output", filled=Filled(99, 100)), State.MISSING, "99 % full", "prune"),
    ("space", changed("output", filled=Filled(problem="it hangs")), State.UNKNOWN, "hangs", ""),
    ("inodes", changed("output", filled=replace(ROOMY, used_inodes=990)), State.MISSING, "99 %", "small files"),
    ("locks", changed("output", has_locks=False), State.MISSING, "honours no locks", "flock"),
    ("locks", changed("output", has_locks=None), State.OPTIONAL, "could not be tried", ""),
    ("clock", changed("output", skew_s=-90.0), State.MISSING, "-90 s", "clock"),
    (
        "home",
        changed("home", filled=Filled((3 << 30) - 1000, 3 << 30)),
        State.MISSING,
        "left at /home/alice",
        "HF_HOME",
    ),
    ("shared memory", changed("host", shm_bytes=64 << 20), State.MISSING, "NCCL", "/dev/shm"),
    ("shared memory", changed("host", shm_bytes=None), State.MISSING, "no /dev/shm", "site"),
    (
        "limits",
        changed("host", limits={"open files": 1024, "processes": -1}),
        State.OPTIONAL,
        "open files 1024",
        "ulimit",
    ),
    ("gpus", changed("host", driver=""), State.MISSING, "no driver", "site"),
    ("gpus", changed("host", driver="", gpus=0), State.OPTIONAL, "login1 has none", ""),
    ("environment script", changed("environment", is_there=False), State.MISSING, "not there", "opsctl env build"),
    (
        "environment script",
        changed("environment", problem="module: not found"),
        State.MISSING,
        "module: not found",
        "source",
    ),
    (
        "environment script",
        changed("environment", others_can_change="/runs can be written by others"),
        State.UNKNOWN,
        "not started",
        "opsctl env check --trust",
    ),
    (
        "environment script",
        replace(changed("environment", script=None, others_can_change="/runs/run.toml belongs to bob"), run=NO_SCRIPT),
        State.UNKNOWN,
        "not started: /runs/run.toml belongs to bob",
        "opsctl env check --trust",
    ),
    (
        "environment's lock",
        changed("environment", discrepancies=(*wrong("not in use", "no [run]", "write"), *wrong("more", "x"))),
        State.MISSING,
        "no [run]",
        "write",
    ),
    (
        "environment's lock",
        changed("environment", discrepancies=wrong("differs", "torch 2.6 -> 2.7")),
        State.MISSING,
        "torch 2.6 -> 2.7",
        "env check",
    ),
    ("environment's lock", changed("environment", held_against=None), State.OPTIONAL, "no file lists", "uv pip freeze"),
    (
        "compiled operations",
        changed("kernels", state="missing"),
        State.MISSING,
        "cuda-sm_80 is missing in /kernels",
        "opsctl kernels build --arch=8.0",
    ),
    ("lm-eval", changed("lm_eval", problem="it has no lm-eval"), State.MISSING, "has no lm-eval", "uv pip install"),
    ("lm-eval", changed("lm_eval", no_folders=("/tasks",)), State.MISSING, "/tasks: no folder", "include"),
    ("lm-eval", changed("lm_eval", others_can_change="/x belongs to bob"), State.UNKNOWN, "belongs to bob", "owner"),
]


def answers(seen: Seen) -> dict[str, PrintedCheck]:
    return {one.name: one for one in examined(CHECKS, seen)}


def test_where_all_is_well_every_check_says_so_and_nothing_is_to_be_done() -> None:
    found = examined(CHECKS, HEALTHY)
    assert [(one.name, one.text) for one in found if one.state is not State.OK or one.todo] == []
    assert {one.name for one in found} == {check.name for check in CHECKS} and is_well(found)


@pytest.mark.parametrize(("name", "seen", "state", "words", "todo"), BREAKS, ids=lambda value: str(value)[:30])
def test_what_is_broken_is_named_by_its_check_with_what_to_type(
    name: str, seen: Seen, state: State, words: str, todo: str
) -> None:
    found = answers(seen)[name]
    assert found.state is state and words in found.text and todo in found.todo, found
    assert is_well(answers(seen).values()) == (state is State.OPTIONAL)


def test_every_check_has_a_set_up_that_it_alone_names() -> None:
    assert {name for name, *_ in BREAKS} == {check.name for check in CHECKS}


def test_the_worst_comes_last_and_a_source_that_is_blind_is_told_once() -> None:
    seen = replace(changed("account", umask=0o077), slurm=None, problems={"slurm": "no answer within 40 s"})
    found = examined(CHECKS, seen)
    assert found[-1].name == "umask"
    assert [one.name for one in found if one.state is State.UNKNOWN] == ["controller"]
    order = [list(State).index(one.state) for one in found]
    assert order == sorted(order)


def test_without_a_run_only_what_has_to_do_with_the_account_and_host_is_said() -> None:
    seen = replace(HEALTHY, run=None, tables={}, output=None, environment=None, lm_eval=None)
    names = set(answers(seen))
    assert {"python", "controller", "home", "cron"} <= names
    assert not names & {"run file", "group", "umask", "output folder", "locks", "environment script"}


def test_a_run_of_another_program_is_asked_for_nothing_that_only_our_trainer_needs() -> None:
    seen = replace(changed("software", packages=lacking("torch", "deepspeed")), run=PROGRAM)
    names = answers(seen).keys()
    assert "program" in names and not names & {"probe", "trainer's packages"}
