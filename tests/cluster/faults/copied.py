"""Copy the files that a fault left as triage finds them, with this machine's paths and names replaced."""

from __future__ import annotations

import gzip
import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opsctl.slurm.nodes import NODE_FIELDS
from opsctl.slurm.rows import ACCOUNTING_FIELDS, FIELD_END, queue_format
from tests.cluster.faults.fault import Fault, Stage

#: A file over this is kept as .gz, and one that no one reads for causes is left out.
LARGEST_BYTES = 2_000
_LEFT_OUT = ("environment.json",)
_SOURCE = "python -m tests.cluster.capture_faults"


def copy_out(fault: Fault, stage: Stage, to: Path) -> None:
    """Write the case's folder `to`: label.json, main_log.txt, sacct.txt, nodes.txt, exit.json, and opsctl's records."""
    to.mkdir(parents=True)
    names = _plausible(stage)
    ended = _accounting(stage)
    how = _exit(ended)
    if fault.script:
        _copy(stage.folder / "job.out", to / "main_log.txt", names)
    else:
        paths = stage.training.paths
        _copy(paths.main_log, to / "main_log.txt", names)
        attempt = paths.attempt_folder(stage.job_id)
        for path in sorted(attempt.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name not in _LEFT_OUT and path.suffix != ".out":
                _copy(path, to / "attempt" / path.relative_to(attempt), names)
        (own,) = [one for one in stage.training.recorded() if one["job_id"] == stage.job_id]
        _write(to / "attempt.json", json.dumps(own, indent=1).encode(), names)
        how |= {key: own[key] for key in ("exit_code", "signal")}
        for output in sorted(paths.job_outputs.glob("*")):
            if output.read_bytes().strip() not in paths.main_log.read_bytes():
                _copy(output, to / "slurm" / output.name, names)
    _write(to / "sacct.txt", ended.encode(), names)
    _write(to / "nodes.txt", _nodes(stage).encode(), names)
    _write(to / "exit.json", json.dumps(how).encode() + b"\n", names)
    _write(to / "label.json", json.dumps(_label(fault, stage, to), indent=1).encode() + b"\n", {})


def _label(fault: Fault, stage: Stage, to: Path) -> dict[str, Any]:
    truth = asdict(fault.truth)
    if truth["node"] == "of rank":
        truth["node"] = _node_of_rank(fault, stage)
    elif truth["node"] == "of job":
        truth["node"] = stage.culprit
    order = ("cause", "node", "rank", "user_fault")
    return {
        **{key: truth[key] for key in order},
        "origin": "captured",
        "about": truth["about"] + ".",
        "source": _SOURCE,
    }


def _node_of_rank(fault: Fault, stage: Stage) -> str:
    rank = fault.truth.rank
    assert rank is not None
    if fault.nodes == 1:
        return stage.nodes[0]
    return stage.nodes[rank // fault.ranks_per_node]


def _accounting(stage: Stage) -> str:
    words = [
        "env",
        "SLURM_TIME_FORMAT=%s",
        "sacct",
        "--noheader",
        "--parsable2",
        f"--delimiter={FIELD_END}",
        "--allocations",
    ]
    form = f"--format={','.join(ACCOUNTING_FIELDS)}"
    return stage.cluster.run(*words, "--starttime=1970-01-01", form, f"--jobs={stage.job_id}").stdout


def _nodes(stage: Stage) -> str:
    form = f"--Format={queue_format(NODE_FIELDS)}"
    return stage.cluster.run("sinfo", "--noheader", "--all", "--Node", form).stdout


def _exit(accounting: str) -> dict[str, Any]:
    """exit code, signal and state of the job's last row."""
    fields = accounting.strip().splitlines()[-1].split(FIELD_END)
    code, number = (int(part) for part in fields[2].split(":"))
    return {"exit_code": code, "signal": number or None, "slurm_state": fields[1]}


def _plausible(stage: Stage) -> dict[str, str]:
    checkout = Path(__file__).resolve().parents[3]
    return {
        f"{stage.folder}": "/scratch/llm/run",
        f"{stage.cluster.folder}": "/var/spool/slurm",
        f"{Path(sys.executable).parent.parent}": "/opt/envs/train",
        f"{checkout}": "/opt/opsctl",
        sys.base_prefix: "/opt/python",
        socket.gethostname(): "login1",
    }


def _copy(source: Path, to: Path, names: Mapping[str, str]) -> None:
    _write(to, source.read_bytes(), names)


def _write(to: Path, data: bytes, names: Mapping[str, str]) -> None:
    for real, plausible in names.items():
        data = data.replace(real.encode(), plausible.encode())
    to.parent.mkdir(parents=True, exist_ok=True)
    if len(data) > LARGEST_BYTES:
        to.with_name(to.name + ".gz").write_bytes(gzip.compress(data, mtime=0))
    elif data:
        to.write_bytes(data)
