"""Find the programs of a local cluster: Slurm from the system or a prefix, munge, MariaDB."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError, SlurmMissing

#: Folders of daemons on Debian, which an ordinary user's PATH does not contain.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: Program -> its Debian package.
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "munged": "munge",
}
ACCOUNTING_PACKAGES = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}


@dataclass(frozen=True)
class Installation:
    """The programs, with absolute paths, and the folders to add to PATH and LD_LIBRARY_PATH."""

    programs: dict[str, str]
    version: tuple[int, int]  # (22, 5) for 22.05
    bin_folders: tuple[str, ...]
    library_folders: tuple[str, ...]
    plugin_folder: str = ""  # for PluginDir; empty: as compiled in
    stepd: str = ""  # the slurmstepd that slurmds start; empty: as compiled in

    def __getitem__(self, program: str) -> str:
        return self.programs[program]


def find_program(name: str, first: Sequence[str] = (), search_path: str | None = None) -> str | None:
    """Return the path of `name` in `first`, `search_path` (default: $PATH) or the system's folders; else None."""
    listed = os.environ.get("PATH", "") if search_path is None else search_path
    for folder in (*first, *filter(None, listed.split(os.pathsep)), *SYSTEM_FOLDERS):
        candidate = Path(folder) / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate.absolute())
    return None


def find_installation(prefix: str | None = None, accounting: bool = False) -> Installation:
    """Return the Slurm under `prefix` (its `bin`, `sbin`), or the system's. Raises SlurmMissing with the packages."""
    wanted = {**PACKAGES, **(ACCOUNTING_PACKAGES if accounting else {})}
    own = tuple(str(Path(prefix).expanduser().absolute() / part) for part in ("bin", "sbin")) if prefix else ()
    from_prefix = {name for name in wanted if wanted[name].startswith("slurm")} if prefix else set()
    programs: dict[str, str] = {}
    for name in wanted:
        found = find_program(name, own)
        if found and not (name in from_prefix and str(Path(found).parent) not in own):
            programs[name] = found
    missing = [name for name in wanted if name not in programs]
    absent = [name for name in missing if name in from_prefix]
    if absent:
        raise SlurmMissing(
            f"no {', '.join(absent)} in {prefix}/bin or {prefix}/sbin. Set --slurm-prefix to Slurm's folder"
        )
    if missing:
        packages = sorted(
            {wanted[name] for name in missing}
            | ({"slurm-wlm-mysql-plugin"} if accounting and "slurmdbd" in missing else set())
        )
        raise SlurmMissing(
            f"{', '.join(missing)} not found. As root (or with sudo): apt-get install {' '.join(packages)}. "
            "Without them init, plan, render and data still work"
        )
    on_path = {folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder}
    clients = str(Path(programs["sbatch"]).parent)
    root = Path(prefix).expanduser().absolute() if prefix else None
    # A prefix may have moved since it was configured, so all paths are set explicitly.
    plugins = root / "lib" / "slurm" if root else None
    stepd = root / "sbin" / "slurmstepd" if root else None
    library = [str(one) for one in (plugins.parent, plugins) if one.is_dir()] if plugins else []
    return Installation(
        programs=programs,
        version=_version(programs["slurmctld"], library),
        bin_folders=own or (() if clients in on_path else (clients,)),
        library_folders=tuple(library),
        plugin_folder=str(plugins) if plugins and plugins.is_dir() else "",
        stepd=str(stepd) if stepd and stepd.is_file() else "",
    )


def _version(slurmctld: str, library_folders: Sequence[str]) -> tuple[int, int]:
    environment = dict(os.environ)
    if library_folders:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(
            [*library_folders, environment.get("LD_LIBRARY_PATH", "")]
        ).rstrip(os.pathsep)
    try:
        answer = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=10, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OpsctlError(f"{slurmctld} does not run: {error}") from None
    match = re.search(r"(\d+)\.(\d+)", answer.stdout)
    if answer.returncode or not match:
        text = (answer.stderr.strip() or answer.stdout.strip() or f"exit status {answer.returncode}").splitlines()[-1]
        raise OpsctlError(f"{slurmctld} -V: {text}. Missing libraries? (Debian: libmunge2 libjson-c5 libmariadb3)")
    return int(match[1]), int(match[2])
