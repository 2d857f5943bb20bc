"""A launch script of Megatron-DeepSpeed's kind as a run file. Pure; the script is read and never run."""

from __future__ import annotations

import re
from collections.abc import Callable

from opsctl.beginning.begun import Begun
from opsctl.beginning.engine_file import take_engine
from opsctl.beginning.launch import Launch, launches, left_out, setting_up
from opsctl.beginning.sbatch_options import take_slurm
from opsctl.beginning.shell_commands import Script
from opsctl.beginning.shell_script import read_script
from opsctl.beginning.shell_values import is_known_but_for_variables, names_in
from opsctl.beginning.shell_words import Unreadable
from opsctl.beginning.traced import Traced
from opsctl.beginning.trainer_words import SAID_APART, take_options
from opsctl.errors import UsageError
from opsctl.runs.values import variable_problem
from opsctl.slurm.durations import format_duration, parse_duration_s
from opsctl.slurm.sbatch_lines import directives, header
from trainer.recipe.options import BY_KEY

#: What every run has to say of itself that a script may leave to the command line of sbatch.
NEEDED = ("nodes", "gpus_per_node", "time")
_TRAINING = "pretrain"  # what the programs of the family are called that train
_OURS = "pretrain_gpt"  # what the programs are called that train as the trainer does
#: BigScience's share below which the last epoch is shuffled apart; Megatron-LM's own is the trainer's default.
_LAST_EPOCH = 0.95


def from_script(
    text: str, name: str, folder: str, given: dict[str, object], read_file: Callable[[str], str | None]
) -> Begun:
    """The run `name` that the script trains; `folder` is the script's own. given: `[slurm]` as the caller says it.

    read_file: the text of a file that the script names, None where it cannot be read. Raises UsageError where the
    script starts no training, and where [slurm] lacks one of NEEDED.
    """
    begun = Begun()
    try:
        asked = list(directives(text))
        begun.set("run", "name", name)
        begun.set("run", "output", "output", "all that the run writes: put its folder on a large file system")
        take_slurm(begun, asked)
        _unread_directives(begun, text)
        for key, value in given.items():
            begun.set("slurm", key, value, "as given to opsctl init")
        script = read_script(Traced.of(text), _set_by_slurm(begun, name))
    except (Unreadable, ValueError) as error:
        raise UsageError(f"the script cannot be read: {error}") from None
    launch = _the_launch(begun, script)
    _nodes_and_gpus(begun, launch)
    missing = [key for key in NEEDED if begun.value("slurm", key) is None]
    if missing:
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in missing)
        raise UsageError(f"the script does not say {', '.join(missing)} in a way that can be read: give {flags}")
    own = take_options(begun, launch.words, script.values, _working_folder(begun, launch, folder))
    _own_options(begun, own)
    _margin(begun, own)
    _engine(begun, script, own, folder, read_file)
    if "deepspeed" in own and begun.value("data", "separate_last_epoch_threshold") is None:
        remark = "BigScience's Megatron-DeepSpeed; Megatron-LM has 0.80"
        begun.set("data", "separate_last_epoch_threshold", _LAST_EPOCH, remark)
    if begun.value("trainer", "zero_stage") == 0 and not begun.value("trainer", "bf16"):
        begun.set("trainer", "zero_stage", 1, "0 in the script: optimizer states are always sharded here")
    _environment(begun, script, launch)
    return begun


def _unread_directives(begun: Begun, text: str) -> None:
    read = {number for number, _ in header(text)}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH ") and number not in read:
            begun.note(number, f"{line}: Slurm does not read it behind the first command")


def _set_by_slurm(begun: Begun, name: str) -> dict[str, str]:
    """The variables of a job whose values follow from what it asks for."""
    said = {
        "SLURM_NNODES": begun.value("slurm", "nodes"),
        "SLURM_JOB_NUM_NODES": begun.value("slurm", "nodes"),
        "SLURM_GPUS_ON_NODE": begun.value("slurm", "gpus_per_node"),
        "SLURM_GPUS_PER_NODE": begun.value("slurm", "gpus_per_node"),
        "SLURM_CPUS_PER_TASK": begun.value("slurm", "cpus_per_task"),
        "SLURM_JOB_NAME": name,
    }
    return {variable: str(value) for variable, value in said.items() if value is not None}


def _the_launch(begun: Begun, script: Script) -> Launch:
    """The last command that starts a training, rather one that is called so. Raises UsageError where there is none."""
    found = launches(script)
    if not found:
        raise UsageError(
            "the script starts no training that could be found: no command in it runs a Python program with "
            "Megatron's options (--num-layers, --hidden-size, ...)"
        )
    # What is started behind the training is an evaluation or a generation with the same options.
    trainings = [one for one in found if one.name.startswith(_TRAINING)] or found
    launch = next((one for one in reversed(trainings) if one.is_sure), trainings[-1])
    others = {one.program.line for one in found if one.words != launch.words}
    for line in sorted(others):
        begun.note(line, f"another training is started here; taken is that of line {launch.program.line}")
    if not launch.is_sure:
        begun.note(launch.program.line, "it is started under a condition that the script does not decide")
    program = launch.name
    if not program.startswith(_OURS):
        begun.note(
            launch.program.line,
            f"{program}: the trainer trains as pretrain_gpt.py does; what this does besides is lost",
        )
    return launch


def _nodes_and_gpus(begun: Begun, launch: Launch) -> None:
    for key, said, what in (
        ("nodes", launch.nodes, "nodes"),
        ("gpus_per_node", launch.gpus_per_node, "processes of a node"),
    ):
        asked = begun.value("slurm", key)
        if asked is None and said is not None:
            begun.set("slurm", key, said, "as the launcher is told")
        elif said is not None and said != asked:
            begun.note(
                launch.program.line, f"the launcher is told of {said} {what}, Slurm of {asked}: taken is {asked}"
            )


def _working_folder(begun: Begun, launch: Launch, folder: str) -> str:
    """Where the script is when it starts the trainer, as far as it can be told."""
    into = launch.folder
    if into is None:
        return folder
    if not is_known_but_for_variables(into.text):
        begun.note(into.line, f"cd {into.text}: not known; relative paths are taken to start at {folder}")
        return folder
    text = into.text.rstrip("/") or "/"
    return text if text.startswith(("/", "~/", "${")) else f"{folder}/{text}"


def _own_options(begun: Begun, own: dict[str, tuple[str, int]]) -> None:
    rest = [BY_KEY[key].name for key in own if key not in SAID_APART and not BY_KEY[key].notice]
    if rest:
        begun.note(0, f"opsctl sets these itself: {', '.join(rest)}")
    if "save" in own:
        text, line = own["save"]
        begun.note(line, f"--save {text}: opsctl keeps checkpoints under [run] output")
    if "load" in own and own["load"][0] != own.get("save", ("", 0))[0]:
        text, line = own["load"]
        begun.note(line, f"--load {text}: a run goes on from its own checkpoints; docs/from-megatron-deepspeed.md")


def _margin(begun: Begun, own: dict[str, tuple[str, int]]) -> None:
    """How long before the limit the trainer leaves, from the minutes after which the script's did."""
    limit_s = parse_duration_s(begun.value("slurm", "time"))
    if "exit_duration_in_mins" in own:
        text, line = own["exit_duration_in_mins"]
        margin_s = limit_s - int(float(text) * 60)
        if 0 < margin_s < limit_s:
            begun.set("slurm", "exit_margin", format_duration(margin_s), f"line {line}: after {float(text):g} minutes")
            return
        begun.note(
            line, f"--exit-duration-in-mins {float(text):g}: not within the limit of {begun.value('slurm', 'time')}"
        )
    if limit_s <= 1200:
        begun.set("slurm", "exit_margin", format_duration(limit_s // 4), "a quarter of the limit")


def _engine(
    begun: Begun,
    script: Script,
    own: dict[str, tuple[str, int]],
    folder: str,
    read_file: Callable[[str], str | None],
) -> None:
    if "deepspeed_config" not in own:
        return
    path, line = own["deepspeed_config"]
    written = script.files.get(path)
    if written is not None:
        take_engine(begun, written.text, written.line)
        return
    text = None if "$" in path else read_file(path if path.startswith("/") else f"{folder}/{path}")
    if text is None:
        begun.note(line, f"--deepspeed_config {path}: the script does not write it, and it cannot be read here")
    else:
        take_engine(begun, text, line)


def _environment(begun: Begun, script: Script, launch: Launch) -> None:
    """`[run] environment` and `[env]`; what neither can hold becomes a script beside the run file."""
    lines = [" ".join(_quoted(word.text) for word in command.words) for command in setting_up(script)]
    unsure = {name for command in setting_up(script) if not command.is_sure for name in (command.name,)}
    for command in setting_up(script):
        if not command.is_sure:
            begun.note(command.line, f"{command.name}: done under a condition that the script does not decide")
    for command in left_out(script):
        begun.note(command.line, f"{command.name}: of the script, nothing but the training is run")
    exports = []
    for name, line in script.exported.items():
        value = script.values.text_of(name)
        if value is None:
            begun.note(line, f"export {name}: {script.values.why_unknown(name)}")
        elif _belongs_to_the_command(value, launch):
            continue
        elif name in script.added_to:
            exports += [f"export {name}={_quoted(one.text)}" for one in script.added_to[name]]
        elif not is_known_but_for_variables(value.text):
            begun.note(line, f"export {name}={value.text}: it is what a command prints")
        elif name in names_in(value.text):
            exports.append(f"export {name}={_quoted(value.text)}")
        elif problem := variable_problem(name, value.text):
            begun.note(line, problem.removeprefix("[env] "))
        else:
            begun.set("env", name, value.text, f"line {line}")
    sourced = re.fullmatch(r"(?:source|\.) (\S+)", lines[0]) if len(lines) == 1 and not exports and not unsure else None
    if sourced:
        begun.set("run", "environment", setting_up(script)[0].words[1].text, f"line {setting_up(script)[0].line}")
    elif lines or exports:
        begun.environment_script = lines + exports
        begun.set("run", "environment", "environment.sh", "beside this file; sourced on every node")


def _belongs_to_the_command(value: Traced, launch: Launch) -> bool:
    """Whether it is a piece of the training's command line: that is taken as such."""
    return re.search(r"(^|\s)--[A-Za-z]", value.text) is not None or value.text == launch.program.text


def _quoted(text: str) -> str:
    """As a shell's word in which variables are still put in."""
    if re.fullmatch(r"[\w@%+=:,./~-]+", text):
        return text
    return '"' + re.sub(r'([\\"`])', r"\\\1", text) + '"'
