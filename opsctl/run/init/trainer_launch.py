"""Fill a run file of opsctl's trainer from the options of a launch script. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence

from opsctl.run.init.draft import Draft
from opsctl.run.init.engine_file import take_engine
from opsctl.run.init.shell_script import Command, placed
from opsctl.run.init.shell_values import is_known_but_for_variables
from opsctl.run.init.trainer_command_line import NOTED_SEPARATELY, take_options
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.recipe.lengths import EVALUATE_ONLY
from trainer.recipe.options import BY_KEY

#: BigScience's share below which the last epoch is shuffled separately; Megatron-LM's is the trainer's default.
_LAST_EPOCH = 0.95


def take_trainer(
    draft: Draft,
    words: Sequence[str],
    command: Command,
    folder: str,
    line_of: Callable[[str], int],
    read_file: Callable[[str], str | None],
) -> None:
    """Set the trainer's tables from the words behind its program, which `command` starts in `folder`."""
    own = take_options(draft, words, command, folder, line_of)
    _own_options(draft, own)
    _margin(draft, own)
    if "deepspeed_config" in own:
        _engine(draft, command, own["deepspeed_config"], folder, read_file)
    if "deepspeed" in own and draft.value("data", "separate_last_epoch_threshold") is None:
        remark = "BigScience's Megatron-DeepSpeed; Megatron-LM has 0.80"
        draft.set("data", "separate_last_epoch_threshold", _LAST_EPOCH, remark)


def _own_options(draft: Draft, own: dict[str, tuple[str, int]]) -> None:
    rest = [BY_KEY[key].name for key in own if key not in NOTED_SEPARATELY and not BY_KEY[key].notice]
    if rest:
        draft.note(0, f"opsctl sets these itself: {', '.join(rest)}")
    for key in (one for one in EVALUATE_ONLY if one in own):
        line = own[key][1]
        draft.note(line, f"{BY_KEY[key].name}: the script trains nothing, and a run trains: see opsctl evaluate")
    if "save" in own:
        text, line = own["save"]
        draft.note(line, f"--save {text}: opsctl keeps checkpoints under [run] output")
    if "load" in own and own["load"][0] != own.get("save", ("", 0))[0]:
        text, line = own["load"]
        draft.note(line, f"--load {text}: a run resumes from its own checkpoints; docs/from-megatron-deepspeed.md")


def _margin(draft: Draft, own: dict[str, tuple[str, int]]) -> None:
    """Set how long before the limit the trainer exits, from the minutes after which the script's exits."""
    limit_s = parse_duration_s(draft.value("slurm", "time"))
    if "exit_duration_in_mins" in own:
        text, line = own["exit_duration_in_mins"]
        margin_s = limit_s - int(float(text) * 60)
        if 0 < margin_s < limit_s:
            draft.set("slurm", "exit_margin", format_duration(margin_s), f"line {line}: after {float(text):g} minutes")
            return
        limit = draft.value("slurm", "time")
        draft.note(line, f"--exit-duration-in-mins {float(text):g}: not within the limit of {limit}")
    if limit_s <= 1200:
        draft.set("slurm", "exit_margin", format_duration(limit_s // 4), "a quarter of the limit")


def _engine(
    draft: Draft, command: Command, option: tuple[str, int], folder: str, read_file: Callable[[str], str | None]
) -> None:
    path, line = option
    into, files = command.state.folder, command.files
    place = placed(into, path)
    written, lost = files.known.get(place), files.lost.get(posixpath.basename(place))
    if written is not None:
        take_engine(draft, *written)
        return
    if lost is not None:
        draft.note(line, f"--deepspeed_config {path}: the change by line {lost} is unknown")
        return
    is_elsewhere = into is not None and not is_known_but_for_variables(into) and not path.startswith("/")
    path_here = place if place.startswith("/") else posixpath.normpath(f"{folder}/{path}")
    text = None if "$" in path_here or is_elsewhere else read_file(path_here)
    if text is None:
        draft.note(line, f"--deepspeed_config {path}: the script does not write it, and it cannot be read here")
    else:
        take_engine(draft, text, line)
