"""Read the `#SBATCH` options of a script as `[slurm]` and `[array]` of a run file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opsctl.run.config.values import OWN_SBATCH_OPTIONS, extra_problem
from opsctl.run.init.draft import Draft
from opsctl.slurm.arrays import array_problem
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.sbatch_lines import Directive

_SAME = ("partition", "account", "qos", "constraint", "reservation", "exclude")
_WHOLE = {"cpus-per-task": "cpus_per_task", "nice": "nice"}
#: opsctl gives every job these itself.
_OWN = frozenset(
    ("job-name", "output", "error", "open-mode", "ntasks", "ntasks-per-node", "parsable", "wait", "export")
)
_GPUS = re.compile(r"(?:gres/)?gpu(?::(?!\d+(?:\(|$))(?P<type>[^:,()=]+))?(?:[:=](?P<number>\d+))?(?:\(.*\))?")
_NUMBERED = re.compile(r"(?:(?P<type>[^:,()]+):)?(?P<number>\d+)")


def take_slurm(draft: Draft, lines: Sequence[Directive]) -> None:
    """Set `[slurm]` and `[array]`; note options that a run cannot have. The caller checks for required ones."""
    asked = {one.name: one for one in lines}
    for name, one in asked.items():
        value, remark = (one.value or "").strip(), f"line {one.line}"
        if name in _SAME and value:
            draft.set("slurm", name, value, remark)
        elif name in _WHOLE and value.lstrip("-").isdigit():
            draft.set("slurm", _WHOLE[name], int(value), remark)
        elif name == "time":
            try:
                parse_duration_s(value)
                draft.set("slurm", "time", value, remark)
            except ValueError:
                draft.note(one.line, f"--time={value}: a run needs a limit, as a Slurm duration")
        elif name == "nodes":
            least, _, most = value.partition("-")
            if least.isdigit():
                draft.set("slurm", "nodes", int(least), remark)
            if not least.isdigit() or (most and most != least):
                taken = f"; {least} is taken" if least.isdigit() else ""
                draft.note(one.line, f"--nodes={value}: a run has one number of nodes{taken}")
        elif name == "array":
            problem = array_problem(value)
            if problem:
                draft.note(one.line, f"--array={value}: {problem}")
            else:
                draft.set("array", "tasks", value, remark)
        elif name not in _FOR_GPUS and name not in _OWN:
            _extra(draft, one)
    _gpus(draft, asked)


def _extra(draft: Draft, one: Directive) -> None:
    entry = f"--{one.name}" + ("" if one.value is None else f"={one.value}")
    problem = extra_problem(entry)
    if problem is None:
        draft.set("slurm", "extra", [*(draft.value("slurm", "extra") or ()), entry], f"line {one.line}")
    elif one.name in OWN_SBATCH_OPTIONS:
        draft.note(one.line, f"#SBATCH {entry}: opsctl sets it itself")
    else:
        draft.note(one.line, f"#SBATCH {entry}: {problem.partition(': ')[2]}")


def _of_gres(value: str) -> re.Match[str] | None:
    return next((found for one in value.split(",") if (found := _GPUS.fullmatch(one.strip()))), None)


#: sbatch's options for GPUs, those of a node first, and how each is parsed.
_FOR_GPUS: dict[str, Callable[[str], re.Match[str] | None]] = {
    "gpus-per-node": _NUMBERED.fullmatch,
    "gres": _of_gres,
    "gpus-per-task": _NUMBERED.fullmatch,
    "gpus": _NUMBERED.fullmatch,
}


def _gpus(draft: Draft, asked: dict[str, Directive]) -> None:
    name = next((name for name in _FOR_GPUS if name in asked), None)
    if name is None:
        return
    one = asked[name]
    match = _FOR_GPUS[name](one.value or "")
    if match is None:
        draft.note(one.line, f"#SBATCH --{name}={one.value}: no number of GPUs that can be read")
        return
    number = int(match["number"] or 1)
    if name == "gpus-per-task":
        tasks = tasks_of_a_node(draft, asked)
        if tasks is None:
            draft.note(one.line, f"#SBATCH --gpus-per-task={one.value}: the tasks of a node are not given")
            return
        number *= tasks
    nodes = draft.value("slurm", "nodes")
    if name == "gpus" and (not nodes or number % nodes):
        draft.note(one.line, f"#SBATCH --gpus={one.value}: a run has as many on each of its nodes: give gpus_per_node")
        return
    draft.set("slurm", "gpus_per_node", number // nodes if name == "gpus" else number, f"line {one.line}")
    if match["type"]:
        draft.set("slurm", "gpu_type", match["type"], f"line {one.line}")


def tasks_of_a_node(draft: Draft, asked: dict[str, Directive]) -> int | None:
    """Return 1 if no tasks are given, None if their number differs between nodes or is not known."""
    given = {name: asked[name].value or "" for name in ("ntasks-per-node", "ntasks") if name in asked}
    if not given:
        return 1
    if not all(value.isdigit() for value in given.values()):
        return None
    if "ntasks-per-node" in given:
        return int(given["ntasks-per-node"])
    nodes, tasks = draft.value("slurm", "nodes"), int(given["ntasks"])
    return tasks // nodes if nodes and not tasks % nodes else None
