"""A user's crontab, and Slurm's scrontab: one marked block in it is ours, and nothing else of it is touched."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from opsctl.core.errors import OpsctlError, SlurmError, SlurmMissing, UsageError
from opsctl.core.process import Ended, Overdue, find_program, run_program
from opsctl.jobs.scheduler.context import Cron
from opsctl.run.render.scheduler import TICK_NAME, crontab_line
from opsctl.run.render.templates import directive_word
from opsctl.run.state.scheduler import CronChain, Via

#: For `crontab` to answer, seconds.
_ANSWER_S = 15.0


def with_block(text: str, mark: str, lines: Sequence[str]) -> str:
    """`text` of a crontab with our block replaced by `lines`, or without it where there are none. Pure."""
    begin, end = f"# {mark} begin", f"# {mark} end"
    kept, inside = [], False
    for line in text.splitlines():
        if line.strip() == begin:
            inside = True
        elif line.strip() == end and inside:
            inside = False
        elif not inside:
            kept.append(line)
    if inside:
        raise OpsctlError(f"the crontab has a line {begin!r} and none {end!r}: remove or complete the block")
    block = [begin, *lines, end] if lines else []
    return "".join(f"{line}\n" for line in (*kept, *block))


def schedule(period_s: int, utc_offset_s: int) -> str:
    """When, as crontabs say it, so that it meets the grid in a zone that is `utc_offset_s` ahead of UTC. Pure.

    Raises UsageError for a period that no crontab can say.
    """
    minutes = period_s // 60
    if period_s % 60 or minutes < 1 or 60 % minutes:
        raise UsageError(f"--tick {period_s}s: a crontab knows minutes that divide an hour; take --via slurm")
    shift = utc_offset_s // 60 % minutes
    return f"{','.join(str(minute) for minute in range(shift, 60, minutes)) if minutes > 1 else '*'} * * * *"


def best_via(cron: Cron, period_s: int) -> Via:
    """Return scrontab if Slurm enables it and it can express the period, else Slurm's queue."""
    if period_s % 60 or 60 % (period_s // 60):
        return "slurm"
    return "scrontab" if _scrontab_problem(cron) is None else "slurm"


def install(cron: Cron, chain: CronChain) -> None:
    """Put the chain's line into the crontab that it is carried by. Raises OpsctlError where that is not possible."""
    line = crontab_line(cron.setting(chain.token, chain.period_s), schedule(chain.period_s, time.localtime().tm_gmtoff))
    if chain.via == "scrontab":
        problem = _scrontab_problem(cron)
        if problem is not None:
            raise OpsctlError(f"--via scrontab: {problem}; take --via slurm")
        _edit(cron, "scrontab", [*_scron_lines(cron), line])
    else:
        _edit(cron, "crontab", [line])


def uninstall(cron: Cron, via: str, token: str) -> None:
    """Take our block out again if it is of the chain `token`. Raises OpsctlError."""
    if f"--token {token} " in _listed(cron, via):
        _edit(cron, via, [])


def mark_of(cron: Cron) -> str:
    """Return the mark of this folder's block."""
    return f"opsctl cron {hashlib.sha256(str(cron.paths.folder).encode()).hexdigest()[:12]}"


def _scron_lines(cron: Cron) -> list[str]:
    table = cron.table
    said = [("job-name", TICK_NAME), ("partition", table.partition), ("account", table.account), ("qos", table.qos)]
    said += [("constraint", table.constraint), ("time", table.time), ("nice", str(table.nice) if table.nice else None)]
    said += [("ntasks", "1"), ("cpus-per-task", "1"), ("output", "/dev/null"), ("chdir", "/")]
    return [f"#SCRON --{name}={directive_word(value)}" for name, value in said if value is not None]


def _scrontab_problem(cron: Cron) -> str | None:
    """Return why scrontab cannot be used here."""
    if find_program("scrontab", cron.cluster.environment()) is None:
        return "it is not on PATH"
    try:
        said = cron.client.configuration().get("ScronParameters", "")
    except SlurmMissing as error:
        return str(error)
    except SlurmError as error:
        return f"whether Slurm enables it is not known ({error})"
    return None if "enable" in said.split(",") else "Slurm does not enable it (ScronParameters)"


def _edit(cron: Cron, program: str, lines: list[str]) -> None:
    before = _listed(cron, program)
    after = with_block(before, mark_of(cron), lines)
    if after != before:
        answer = _run(cron, program, "-", after)
        if answer.code:
            raise OpsctlError(f"{program} refused the line: {_said(answer) or answer.code}")


def _listed(cron: Cron, program: str) -> str:
    """Return the whole crontab, empty where there is none. Raises OpsctlError for one that cannot be read."""
    answer = _run(cron, program, "-l")
    if answer.code == 0:
        return answer.out.decode(errors="surrogateescape")
    said = _said(answer)
    if "no crontab for" in said.lower():
        return ""
    raise OpsctlError(f"cannot read your crontab ({program} -l: {said or answer.code}): nothing was changed")


def _run(cron: Cron, program: str, argument: str, text: str | None = None) -> Ended:
    environment = cron.cluster.environment()
    path = find_program(program, environment)
    if path is None:
        raise OpsctlError(f"--via {program}: there is no {program} on this machine; take --via slurm")
    handed = None if text is None else text.encode(errors="surrogateescape")
    try:
        return run_program([path, argument], environment, _ANSWER_S, handed)
    except Overdue:
        raise OpsctlError(f"{program} does not answer within {_ANSWER_S:.0f} s: nothing is known of it") from None


def _said(answer: Ended) -> str:
    return (answer.err + answer.out).decode(errors="replace").strip()
