"""Looking at all that the doctor asks about: every source in a thread of its own with a deadline. Changes nothing.

What hangs (a file server, a controller, a module system) is given up, said, and holds up nothing else: the threads are
daemons, so that the process ends whatever they wait for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.timestamps import now
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.config.locate import locate_run_file
from opsctl.run.config.profile import jobs_table
from opsctl.run.config.toml_file import read_toml
from opsctl.slurm.cluster import Cluster
from opsctl.ui.doctor import sources
from opsctl.ui.doctor.check import Check, Seen
from opsctl.ui.doctor.checks import cluster, environment, people, places, software

#: All sources together may take so long.
DEADLINE_S = 40.0


@dataclass(frozen=True)
class Asked:
    """For whom and what is looked."""

    loaded: LoadedRun | None
    cluster: Cluster
    environment: Mapping[str, str]


#: Part of a look -> what looks at it.
SOURCES: dict[str, Callable[[Asked], Any]] = {
    "account": lambda asked: sources.account(asked.loaded, asked.environment),
    "software": lambda asked: sources.software(asked.environment),
    "slurm": lambda asked: sources.slurm(asked.cluster),
    "output": lambda asked: sources.output(asked.loaded),
    "home": lambda asked: sources.home(asked.environment),
    "host": lambda _: sources.host(),
    "environment": lambda asked: sources.environment(asked.loaded),
    "kernels": lambda asked: sources.kernels(asked.loaded),
    "lm_eval": lambda asked: sources.lm_eval(asked.loaded, asked.environment),
    "desk": lambda asked: sources.desk(asked.loaded, asked.environment),
}


def gather(asked: Asked, seen: Seen, deadline_s: float = DEADLINE_S) -> Seen:
    """`seen` with every part that could be looked at in time, and why the others could not."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}

    def look(part: str) -> None:
        try:
            found[part] = SOURCES[part](asked)
        except OpsctlError as error:
            problems[part] = str(error)
        except OSError as error:
            problems[part] = file_problem(error)
        except Exception as error:  # one that cannot look hides no other
            problems[part] = f"{type(error).__name__}: {error}"

    threads = {part: threading.Thread(target=look, args=(part,), daemon=True) for part in SOURCES}
    for thread in threads.values():
        thread.start()
    ends_at = time.monotonic() + deadline_s
    for part, thread in threads.items():
        thread.join(max(0.0, ends_at - time.monotonic()))
        if thread.is_alive():
            problems[part] = f"no answer within {deadline_s:g} s"
    parts = {part: value for part, value in found.items() if part not in problems}
    return replace(seen, **parts, problems=dict(problems))


def run_at_hand(chosen: str | None, environment: Mapping[str, str] = os.environ) -> tuple[LoadedRun | None, Seen]:
    """Return the chosen run, if any, and the facts known from its file and the profiles.

    Raises UsageError for a named run that does not exist.
    """
    seen = Seen(now=now(), has_hub_token=sources.has_hub_token(environment))
    with contextlib.suppress(OpsctlError):  # problems of the profiles are reported by their own check
        seen = replace(seen, jobs=msgspec.structs.asdict(jobs_table(environment)))
    if chosen is None and not environment.get("OPSCTL_RUN") and not Path("run.toml").exists():
        return None, seen
    path = locate_run_file(chosen, environment)
    try:
        loaded = load_run_file(path, environment)
        return loaded, replace(seen, run=loaded.file, tables=read_toml(path))
    except OpsctlError as error:
        return None, replace(seen, run_problem=str(error))
    except OSError as error:
        return None, replace(seen, run_problem=file_problem(error))


#: All checks, in the order in which equally good ones are shown.
CHECKS: tuple[Check, ...] = (
    *people.CHECKS,
    *software.CHECKS,
    *cluster.CHECKS,
    *places.CHECKS,
    *environment.CHECKS,
)
