"""Sources of the doctor: each function asks one thing, changes nothing, and leaves the judgement to the checks."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import platform
import resource
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from opsctl.core.account import account_name, group_name, membership_problem
from opsctl.core.dirwalk.file_system import FileSystems
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import Overdue, find_program, run_program
from opsctl.core.timestamps import now
from opsctl.jobs.evaluation.settings import settings_of, who_else_decides
from opsctl.monitoring.gather.services import cron_seen
from opsctl.run.config.load import LoadedRun, expanded_file
from opsctl.run.config.profile import profile, profile_files
from opsctl.run.environments.inspection import Target, check, expected_of
from opsctl.run.environments.query import start_problem, why_not_started
from opsctl.run.state.register import cron_folder, cron_folder_option
from opsctl.run.state.run_view import RunView
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import run_slurm
from opsctl.ui.doctor.check import (
    AccountSeen,
    DeskSeen,
    EnvironmentSeen,
    FolderSeen,
    HostSeen,
    KernelsSeen,
    LmEvalSeen,
    SlurmSeen,
    SoftwareSeen,
)
from opsctl.ui.doctor.gpu_kernels import kernels_of_gpus
from trainer.formats.attempt.environment_facts import driver_version
from trainer.formats.distribution import former_version

PROGRAMS = (
    *("bash", "sbatch", "squeue", "srun", "sinfo", "scontrol", "scancel", "sacct", "slurmctld", "slurmd", "munged"),
    *("uv", "g++", "ninja", "nvcc", "nvidia-smi"),
)
PACKAGES = (
    *("torch", "deepspeed", "numpy", "safetensors", "tokenizers", "xxhash"),
    *("huggingface_hub", "s3fs", "gcsfs", "codecarbon"),
)
_SLURM_S = 10.0
_LM_EVAL_S = 30.0
_VERSION_OF_LM_EVAL = "import importlib.metadata; print(importlib.metadata.version('lm_eval'))"
_MOUNTS = Path("/proc/self/mountinfo")


def account(loaded: LoadedRun | None, environment: Mapping[str, str]) -> AccountSeen:
    """Return the account, and whether only it and root can change the profiles."""
    group = None if loaded is None else loaded.file.run.group
    said = ""
    try:
        profile(environment)
    except OpsctlError as error:
        said = str(error)
    return AccountSeen(
        name=account_name(),
        default_group=group_name(os.getegid()),
        umask=_umask(),
        group_problem="" if group is None else membership_problem(group) or "",
        profiles={path: who_else_can_write(path) or "" for path in profile_files(environment)},
        profile_problem=said,
    )


def software(environment: Mapping[str, str]) -> SoftwareSeen:
    """Programs in PATH, and packages of this Python; none is imported."""
    beside_us = os.pathsep.join((environment.get("PATH", ""), str(Path(sys.executable).parent)))
    found = {name: find_program(name, {"PATH": beside_us}) for name in PROGRAMS}
    return SoftwareSeen(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        executable=sys.executable,
        programs={name: path for name, path in found.items() if path is not None},
        packages={name: importlib.util.find_spec(name) is not None for name in PACKAGES},
        former_version=former_version(),
    )


def slurm(cluster: Cluster) -> SlurmSeen:
    """Return the answers of the controller and the accounting database. Raises SlurmError without the controller's."""
    client = client_for(cluster, _SLURM_S)
    said = client.configuration()
    kind = said.get("AccountingStorageType", "")
    return SlurmSeen(
        name=said.get("ClusterName", ""),
        version=said.get("SLURM_VERSION", ""),
        accounting_type=kind,
        accounting_problem=_accounting_problem(cluster) if "slurmdbd" in kind else "",
        partitions=frozenset(name.rstrip("*") for node in client.nodes() for name in node.partitions),
    )


def output(loaded: LoadedRun | None) -> FolderSeen | None:
    """Return the run's output folder."""
    return None if loaded is None else folder(loaded.paths.output)


def home(environment: Mapping[str, str]) -> FolderSeen | None:
    """Return the home folder, which has caches and logins, and is small."""
    return folder(Path(environment["HOME"])) if environment.get("HOME") else None


def folder(path: Path) -> FolderSeen:
    """Test a folder without creating a named file in it. Raises OpsctlError if its file system hangs."""
    systems = FileSystems()
    if problem := systems.problem(path):
        raise OpsctlError(problem)
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    filled = systems.filled(there)
    kind = _type_of(there)
    if there != path:
        return FolderSeen(path, False, os.access(there, os.W_OK), file_system=kind, filled=filled)
    found = path.stat()
    locks, skew = _tried(path)
    return FolderSeen(
        path=path,
        is_there=stat.S_ISDIR(found.st_mode),
        is_writable=os.access(path, os.W_OK | os.X_OK),
        mode=stat.S_IMODE(found.st_mode),
        group=group_name(found.st_gid),
        owner=account_name(found.st_uid),
        file_system=kind,
        filled=filled,
        has_locks=locks,
        skew_s=skew,
    )


def host() -> HostSeen:
    """Shared memory, limits and GPUs of this host."""
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes: int | None = shm.f_blocks * shm.f_frsize
    except OSError:
        shm_bytes = None
    names = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked memory": resource.RLIMIT_MEMLOCK,
    }
    return HostSeen(
        name=platform.node(),
        shm_bytes=shm_bytes,
        limits={name: resource.getrlimit(number)[0] for name, number in names.items()},
        driver=driver_version(),
        gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
    )


def environment(loaded: LoadedRun | None) -> EnvironmentSeen | None:
    """Start the run's environment and return its facts; not if other users could change what that runs."""
    if loaded is None:
        return None
    file = expanded_file(loaded)
    script = None if file.run.environment is None else Path(file.run.environment)
    if script is not None and not script.exists():
        return EnvironmentSeen(script, is_there=False)
    if why := why_not_started(file, loaded.path, loaded.paths.output):
        return EnvironmentSeen(script, others_can_change=why)
    if script is not None and (problem := start_problem(script, {}, "-c", "pass")):
        return EnvironmentSeen(script, problem=problem)
    against, places = expected_of(loaded)
    checked = check(Target(script, dict(file.env)), against, (), places)
    return EnvironmentSeen(script, held_against=against, discrepancies=tuple(checked.problems))


def kernels(loaded: LoadedRun | None) -> KernelsSeen | None:
    """Ask the run's Python which kernels are built for its GPUs; not if other users could change what that runs."""
    if loaded is None:
        return None
    file = expanded_file(loaded)
    given = file.run.environment
    if (given is not None and not Path(given).exists()) or why_not_started(file, loaded.path, loaded.paths.output):
        return None
    return kernels_of_gpus(file)


def lm_eval(loaded: LoadedRun | None, environment: Mapping[str, str]) -> LmEvalSeen | None:
    """Return whether the Python of [evaluation] has lm-eval, by its package metadata; loading it would take long."""
    if loaded is None:
        return None
    run = RunView(loaded.file.run, loaded.paths, loaded)
    settings = settings_of(run)  # what an evaluation takes: the published ones
    if settings is None or not settings.tasks:
        return None
    no_folders = tuple(one for one in settings.table.include if not Path(one).is_dir())
    found = LmEvalSeen(settings.python, no_folders=no_folders)
    python = find_program(settings.python, environment)
    if python is None:
        return replace(found, problem="there is no such program")
    if why := who_else_decides(run, settings):
        return replace(found, others_can_change=why)
    try:
        ended = run_program([python, "-c", _VERSION_OF_LM_EVAL], {**environment, **settings.variables}, _LM_EVAL_S)
    except Overdue:
        return replace(found, problem=f"it did not start within {_LM_EVAL_S:.0f} s")
    except OSError as error:
        return replace(found, problem=f"it cannot be run: {error.strerror}")
    said = ended.out.decode(errors="replace").strip()
    return replace(found, version=said) if ended.code == 0 and said else replace(found, problem="it has no lm-eval")


def desk(loaded: LoadedRun | None, environment: Mapping[str, str]) -> DeskSeen:
    """Return the scheduler's records, and the number of alert channels."""
    channels = profile(environment).get("alerts", {}).get("channels", ())
    if loaded is not None:
        channels = loaded.file.alerts.get("channels", channels)
    return DeskSeen(cron_seen(cron_folder(environment), now(), cron_folder_option(environment)), len(channels))


def has_hub_token(environment: Mapping[str, str]) -> bool:
    """Return whether huggingface_hub would find a token; it is not read."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "/")) / ".cache")
    where = environment.get("HF_HOME") or str(Path(cache) / "huggingface")
    path = environment.get("HF_TOKEN_PATH") or str(Path(where) / "token")
    return bool(environment.get("HF_TOKEN")) or Path(path).is_file()


def _umask() -> int:
    """As the kernel has it: setting and setting back would be seen by other threads."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def _accounting_problem(cluster: Cluster) -> str:
    try:
        answer = run_slurm(["sacct", "-n", "-X", "--format=JobID", "--starttime=now"], cluster.environment(), _SLURM_S)
    except SlurmError as error:
        return str(error)
    return answer.words() if answer.code else ""


def _tried(path: Path) -> tuple[bool | None, float | None]:
    """If locks are honoured, and the file server's clock less ours, by a file without a name, gone as it closes."""
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return None, None
    try:
        before = time.time()
        os.write(fd, b"x")
        os.fsync(fd)
        skew = os.fstat(fd).st_mtime - (before + time.time()) / 2
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return (False if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP) else None), skew
        return True, skew
    finally:
        os.close(fd)


def _type_of(path: Path) -> str:
    """Return the file system's type, by the kernel's table."""
    best, kind = "", ""
    for line in _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        words = line.split()
        point, after = words[4], words[words.index("-") + 1 :]
        if len(point) >= len(best) and path.resolve().is_relative_to(point):
            best, kind = point, after[0]
    return kind
