"""The environment that the run trains in."""

from __future__ import annotations

from opsctl.ui.doctor.check import (
    Check,
    EnvironmentSeen,
    KernelsSeen,
    LmEvalSeen,
    Result,
    Seen,
    missing,
    ok,
    optional,
    unknown,
)

_MOST = 3
_MAKE_LM_EVAL = "uv venv DIR && uv pip install --python DIR/bin/python 'lm-eval[hf]'; python under [evaluation]"


def _script(found: EnvironmentSeen, seen: Seen) -> Result | None:
    if found.script is None and not found.others_can_change:
        return None
    if found.others_can_change:
        return unknown(f"it was not started: {found.others_can_change}", "opsctl env check --trust")
    if not found.is_there:
        todo = (
            "opsctl env build"
            if seen.run is not None and seen.run.environment is not None
            else "correct [run] environment"
        )
        return missing(f"{found.script} is not there", todo)
    if found.problem:
        return missing(
            f"{found.script} does not start here: {found.problem}", f"bash -lc 'source {found.script}; python -V'"
        )
    return ok(f"{found.script} starts, and has a python")


def _lock(found: EnvironmentSeen, _seen: Seen) -> Result | None:
    if found.problem or found.others_can_change or not found.is_there:
        return None
    if found.held_against is None:
        return optional(
            "no file lists the packages that the run needs",
            "uv pip freeze > requirements.lock; its path under requirements of [environment]",
        )
    if found.discrepancies and found.discrepancies[0].kind == "not in use":
        return missing(found.discrepancies[0].text, found.discrepancies[0].todo)
    wrong = [one.text for one in found.discrepancies if one.kind != "cannot be seen"]
    if wrong:
        more = f" and {len(wrong) - _MOST} more" if len(wrong) > _MOST else ""
        return missing(
            f"it differs from {found.held_against}: {', '.join(wrong[:_MOST])}{more}",
            "opsctl env check; opsctl env build",
        )
    return ok(f"it is the same as {found.held_against}")


def _kernels(found: KernelsSeen, _seen: Seen) -> Result | None:
    where = ", ".join(found.folders)
    if found.state == "ok":
        return ok(f"{found.name} is built in {where}")
    return missing(f"{found.name} is {found.state} in {where}: torch would compute all of it", found.build)


def _lm_eval(found: LmEvalSeen, _seen: Seen) -> Result | None:
    if found.others_can_change:
        return unknown(f"{found.python} was not started: {found.others_can_change}", "have the run file's owner look")
    if found.problem:
        return missing(f"{found.python}: {found.problem}, and [evaluation] has tasks", _MAKE_LM_EVAL)
    if found.no_folders:
        return missing(f"{', '.join(found.no_folders)}: no folder", "correct [evaluation] include")
    return ok(f"lm-eval {found.version} in {found.python}")


CHECKS = (
    Check("environment script", "Does it start here, and is there a python behind it?", _script, "environment"),
    Check("environment's lock", "Is in the environment what should be?", _lock, "environment"),
    Check(
        "compiled operations",
        "Are the kernels built for the GPUs that the run asks for, and for its torch?",
        _kernels,
        "kernels",
    ),
    Check(
        "lm-eval", "Has the Python that evaluates checkpoints an lm-eval, and may it be started?", _lm_eval, "lm_eval"
    ),
)
