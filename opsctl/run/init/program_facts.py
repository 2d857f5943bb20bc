"""Set how a program saves, resumes and stops, as far as its arguments, its file and Slurm's options show it. Pure."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping, Sequence

from opsctl.run.config.schema import HOOK, STOPS
from opsctl.run.init.draft import Draft
from opsctl.run.init.launchers import Started, option_name
from opsctl.run.programs.kind import Kind, by_itself, options_in
from opsctl.slurm.durations import format_duration, parse_duration_s
from opsctl.slurm.sbatch_lines import Directive

#: Options of programs that resume from the checkpoint that is their value.
RESUMES = ("resume_from_checkpoint", "resume_from", "resume_path", "resume", "ckpt_path")
#: Values with which a program finds its newest checkpoint itself.
BY_ITSELF = frozenset(("", "auto", "latest", "last", "true", "false", "none", "must", "allow", "never"))
#: Options of programs whose value is the length of the training in optimizer steps.
_STEPS = ("max_steps", "max_train_steps", "train_iters", "max_iters", "num_train_steps", "total_steps", "train_steps")
#: Options of programs whose value is the folder of what they save.
_OUTPUTS = ("output_dir", "out_dir", "save_dir", "checkpoint_dir", "ckpt_dir", "output_folder", "save_folder", "save")
_HANDLES = re.compile(r"\bsignal\.signal\(\s*(?:signal\.)?(SIG[A-Z0-9]+)\s*,\s*(?!signal\.SIG)")
_HOOKED = re.compile(r"^\s*(?:from|import)\s+opsctl_hook\b", re.MULTILINE)
_WARNING = re.compile(r"(?P<options>[RB]*:)?(?P<signal>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?")
_ACCUMULATES = re.compile(r"\baccumulate_grad_batches\s*=\s*(\d{1,9})\b")
_LEAST_MARGIN_S = 60


def take_facts(
    draft: Draft,
    found: Started,
    kind: Kind | None,
    given: Mapping[str, str],
    text: str,
    asked: Sequence[Directive],
    line_of: Callable[[str], int],
) -> None:
    """Set what is certain. given: the program's options as in the run file. text: that of the program's file, or ""."""
    _saves(draft, kind, given, line_of)
    _resumes(draft, found, kind, text, line_of)
    _length(draft, kind, given, line_of)
    _batches(draft, kind, given, text)
    _stops(draft, kind, text, asked)


def _saves(draft: Draft, kind: Kind | None, given: Mapping[str, str], line_of: Callable[[str], int]) -> None:
    output = next((given[one].rstrip("/") for one in _OUTPUTS if given.get(one)), "saved")
    if kind is None:
        why = "pattern of its checkpoint folders or files, with the step as their last number"
        draft.ask("program", "checkpoints", f"{output}/step-*", why)
        progress = r"step (?P<iteration>\d+).*loss (?P<loss>\S+)"
        draft.ask("program", "progress", progress, "pattern of the line that it prints for a step")
        return
    line = kind.command_line
    folder = given.get(line.output, "").rstrip("/") if line and line.output else ""
    if line and folder:
        pattern = f"{folder if '${' in folder else glob.escape(folder)}/{line.saves}"
        draft.set("program", "checkpoints", pattern, f"line {line_of(f'--{line.output}')}")
    elif not (line and line.has_default):
        draft.ask("program", "checkpoints", f"{output}/{line.saves if line else '*'}", "pattern of its checkpoints")


def _resumes(draft: Draft, found: Started, kind: Kind | None, text: str, line_of: Callable[[str], int]) -> None:
    """Set the arguments that resume, for a program whose arguments are not those of its kind."""
    given = options_in(found.program)
    if kind is not None and (
        kind.resume is by_itself or (kind.command_line and kind.command_line.is_its(found.program))
    ):
        return
    defined = re.findall(r"add_argument\(\s*[\"']--([\w-]+)[\"'](?![^)]*store_true)", text)
    spelled = {option_name(word): word.partition("=")[0] for word in found.program}
    for one in RESUMES:
        if given.get(one, "").lower() not in BY_ITSELF:
            draft.set("program", "resume", [spelled[one], "{checkpoint}"], f"line {line_of(spelled[one])}")
            return
    if any(one in given for one in RESUMES) or "OPSCTL_CHECKPOINT" in text:
        return
    option = next((one for one in defined if one.replace("-", "_") in RESUMES), None)
    if option:
        draft.set("program", "resume", [f"--{option}", "{checkpoint}"], f"{found.program[0]} has this argument")
    else:
        why = "arguments that resume; [] if it finds its newest checkpoint, or reads OPSCTL_CHECKPOINT"
        draft.ask("program", "resume", ["--resume", "{checkpoint}"], why)


def _length(draft: Draft, kind: Kind | None, given: Mapping[str, str], line_of: Callable[[str], int]) -> None:
    names = (kind.command_line.steps,) if kind and kind.command_line else _STEPS
    for one in (*names, *_STEPS):
        if given.get(one, "").replace("_", "").isdecimal() and int(given[one]) > 0:
            draft.set("program", "steps", int(given[one]), f"line {line_of(f'--{one}')}")
            return
    draft.ask("program", "steps", 10_000, "length of the training in steps, at which the chain ends")


def _batches(draft: Draft, kind: Kind | None, given: Mapping[str, str], text: str) -> None:
    """Set the batches of a step, for a kind whose bar counts batches."""
    in_text = _ACCUMULATES.search(text)
    value = given.get("trainer.accumulate_grad_batches") or (in_text[1] if in_text else "")
    if kind is not None and kind.follow is not None and value.isdecimal() and int(value) > 1:
        draft.set("program", "batches_per_step", int(value), "accumulate_grad_batches")


def _stops(draft: Draft, kind: Kind | None, text: str, asked: Sequence[Directive]) -> None:
    """Set on what request the program saves and exits, and how long before the limit it gets it."""
    warning = next((one for one in asked if one.name == "signal"), None)
    match = _WARNING.fullmatch(warning.value or "") if warning else None
    hooked = bool(_HOOKED.search(text))
    if hooked:
        draft.set("program", "stop", HOOK, "the program's file imports opsctl_hook")
    elif kind is None:
        handled = [one for one in _HANDLES.findall(text) if one in STOPS]
        by_slurm = f"SIG{match['signal'].upper().removeprefix('SIG')}" if match and not match["options"] else ""
        if handled:
            draft.set("program", "stop", handled[0], "the program's file has a handler of it")
        elif by_slurm in STOPS and warning:
            draft.set("program", "stop", by_slurm, f"line {warning.line}: --signal")
        else:
            draft.ask("program", "stop", "SIGTERM", "the signal on which it saves and exits, if it does")
    limit_s = parse_duration_s(draft.value("slurm", "time"))
    margin_s = int(match["seconds"]) if match and match["seconds"] else 0
    if warning and _LEAST_MARGIN_S <= margin_s < limit_s:
        draft.set("slurm", "exit_margin", format_duration(margin_s), f"line {warning.line}: --signal")
    elif limit_s <= 1200:
        margin_s = limit_s // 4
        draft.set("slurm", "exit_margin", format_duration(margin_s), "a quarter of the limit")
    if 0 < margin_s < 300 and (hooked or kind is None or kind.saves_on):
        draft.set("program", "grace", format_duration(margin_s // 2), "half of exit_margin")
