"""A launch script of Megatron-DeepSpeed's kind as a run file. Pure; the script is read and never run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

from opsctl.core.errors import UsageError
from opsctl.run.config.values import is_launchers, variable_problem
from opsctl.run.init.draft import Begun
from opsctl.run.init.engine_file import take_engine
from opsctl.run.init.launch_command import BRINGING, Launch, launches, left_out, setting_up
from opsctl.run.init.sbatch_options import take_slurm
from opsctl.run.init.shell_commands import Script
from opsctl.run.init.shell_files import placed
from opsctl.run.init.shell_script import read_script
from opsctl.run.init.shell_state import names_in
from opsctl.run.init.shell_tokens import Unreadable
from opsctl.run.init.shell_values import Values, is_known_but_for_variables, why_open
from opsctl.run.init.traced_text import Traced
from opsctl.run.init.trainer_command_line import SAID_APART, take_options
from opsctl.slurm.durations import format_duration, parse_duration_s
from opsctl.slurm.sbatch_lines import directives, header
from trainer.recipe.only_evaluating import EVALUATE_ONLY
from trainer.recipe.options import BY_KEY

#: What every run has to say of itself that a script may leave to the command line of sbatch.
NEEDED = ("nodes", "gpus_per_node", "time")
_TRAINING = "pretrain"  # what the programs of the family are called that train
_OURS = "pretrain_gpt"  # what the programs are called that train as the trainer does
#: Options without which there is no model.
_OF_A_MODEL = ("num_layers", "hidden_size", "num_attention_heads")
#: BigScience's share below which the last epoch is shuffled apart; Megatron-LM's own is the trainer's default.
_LAST_EPOCH = 0.95


def from_script(
    text: str,
    name: str,
    folder: str,
    given: dict[str, object],
    read_file: Callable[[str], str | None],
    arguments: Sequence[str] | None = None,
) -> Begun:
    """The run `name` that the script trains; `folder` is the script's own. given: `[slurm]` as the caller says it.

    read_file: the text of a file that the script names, None where it cannot be read. arguments: what the script is
    called with, None where nobody says. Raises UsageError where the script starts no training, and where [slurm]
    lacks one of NEEDED.
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
        script = read_script(Traced.of(text), _set_by_slurm(begun, name), arguments)
    except RecursionError:
        raise UsageError("the script cannot be read: its brackets and branches stand too deep in one another") from None
    except (Unreadable, ValueError) as error:
        raise UsageError(f"the script cannot be read: {error}") from None
    launch = _the_launch(begun, script)
    values = launch.command.values
    _refused(begun, script)
    _nodes_and_gpus(begun, launch)
    missing = [key for key in NEEDED if begun.value("slurm", key) is None]
    if missing:
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in missing)
        raise UsageError(f"the script does not say {', '.join(missing)} in a way that can be read: give {flags}")
    working = _working_folder(begun, launch, folder)
    own = take_options(begun, launch.words, values, working)
    _refuse_another_program(begun, launch)
    _own_options(begun, own)
    _margin(begun, own)
    _engine(begun, launch, own, working, read_file)
    if "deepspeed" in own and begun.value("data", "separate_last_epoch_threshold") is None:
        remark = "BigScience's Megatron-DeepSpeed; Megatron-LM has 0.80"
        begun.set("data", "separate_last_epoch_threshold", _LAST_EPOCH, remark)
    _environment(begun, script, launch)
    _missing_arguments(begun, values, arguments)
    for (line, by), names in values.used_behind.items():
        begun.note(line, f"{by}; set before it and used behind: {', '.join(sorted(names))}")
    if values.taken_unset:
        begun.note(
            0, f"taken to be unset, as the script asks for it and does not set it: {', '.join(values.taken_unset)}"
        )
    return begun


def _refuse_another_program(begun: Begun, launch: Launch) -> None:
    """Raise UsageError where the program takes mostly other options than ours, and none that makes a model."""
    if any(begun.value("trainer", key) is not None for key in _OF_A_MODEL):
        return
    names = {word.text.partition("=")[0]: None for word in launch.words if word.text.startswith("--")}
    others = [name for name in names if name.removeprefix("--").replace("-", "_") not in BY_KEY]
    if 2 * len(others) > len(names):
        raise UsageError(
            f"line {launch.program.line}: {launch.name} is not a program of Megatron's kind: it takes "
            f"{', '.join(others[:3])} and the like, and no option gives its model a size "
            "(--num-layers, --hidden-size): a run made of this would have nothing in it"
        )


def _refused(begun: Begun, script: Script) -> None:
    for line, what in script.refused:
        begun.note(line, f"{what}: no shell reads a script with that: mend it, and read it again")
    for line, what in script.told:
        begun.note(line, what)


def _missing_arguments(begun: Begun, values: Values, arguments: Sequence[str] | None) -> None:
    if not values.missing:
        return
    names = ", ".join(f"${name}" for name in sorted(values.missing))
    given = "" if arguments is None else f" more than the {len(arguments)} given:"
    begun.note(0, f"the script asks for{given} {names}: give what it is called with, behind --")


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
    for line in sorted({one.program.line for one in found} - {launch.program.line}):
        begun.note(line, f"another training is started here; taken is that of line {launch.program.line}")
    _other_turns(begun, found, launch)
    if not launch.is_sure:
        begun.note(launch.program.line, "it is started under a condition that the script does not decide")
    program = launch.name
    if not program.startswith(_OURS):
        begun.note(
            launch.program.line,
            f"{program}: the trainer trains as pretrain_gpt.py does; what this does besides is lost",
        )
    return launch


def _other_turns(begun: Begun, found: list[Launch], launch: Launch) -> None:
    """Of a training that a loop starts again and again, how its turns differ."""
    turns = [one for one in found if one.program.line == launch.program.line]
    options = [dict(_split(one)) for one in turns]
    differing = [name for name in options[-1] if len({one.get(name) for one in options}) > 1]
    if differing:
        begun.note(
            launch.program.line,
            f"it is started {len(turns)} times, each with {', '.join(differing)} of its own: taken is the last",
        )


def _split(launch: Launch) -> Iterator[tuple[str, str]]:
    """Each option of a training with the words behind it."""
    name, values = "", list[str]()
    for word in (*(one.text for one in launch.words), "--"):
        if word.startswith("--"):
            if name:
                yield name, " ".join(values)
            name, values = word, []
        else:
            values.append(word)


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
    into = launch.command.values.folder
    if into is None:
        return folder
    if into.text.startswith("$(pwd)"):
        begun.note(into.line, f"where it goes from here is not known: relative paths are taken to start at {folder}")
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
    for key in (one for one in EVALUATE_ONLY if one in own):
        line = own[key][1]
        begun.note(line, f"{BY_KEY[key].name}: the script trains nothing, and a run trains: see opsctl evaluate")
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
    launch: Launch,
    own: dict[str, tuple[str, int]],
    folder: str,
    read_file: Callable[[str], str | None],
) -> None:
    if "deepspeed_config" not in own:
        return
    path, line = own["deepspeed_config"]
    into, files = launch.command.values.folder, launch.command.files
    place = placed(into, path)
    written = files.known.get(place)
    if written is not None:
        take_engine(begun, written.text, written.line)
        return
    if place in files.lost:
        begun.note(line, f"--deepspeed_config {path}: what line {files.lost[place]} makes of it is not known")
        return
    is_elsewhere = into is not None and not is_known_but_for_variables(into.text) and not path.startswith("/")
    path_here = place if place.startswith("/") else posixpath.normpath(f"{folder}/{path}")
    text = None if "$" in path_here or is_elsewhere else read_file(path_here)
    if text is None:
        begun.note(line, f"--deepspeed_config {path}: the script does not write it, and it cannot be read here")
    else:
        take_engine(begun, text, line)


def _environment(begun: Begun, script: Script, launch: Launch) -> None:
    """`[run] environment` and `[env]`; what neither can hold becomes a script beside the run file."""
    values = launch.command.values
    commands = setting_up(script, launch)
    places = {id(command): place for place, command in enumerate(script.commands)}
    #: Place among the script's commands, whether it is one of them, and the line; what is exported stands before.
    made = [(places[id(one)], 1, " ".join(_quoted(word.text) for word in one.words)) for one in commands]
    last = max((places[id(one)] for one in commands if one.name in BRINGING), default=-1)
    unsure = [command for command in commands if not command.is_sure]
    for command in unsure:
        begun.note(command.line, f"{command.name}: done under a condition that the script does not decide")
    for command in left_out(script, launch):
        begun.note(command.line, f"{command.name}: of the script, nothing but the training is run")
    for name, line in values.exported.items():
        value, behind = values.text_of(name), values.exported_behind.get(name, len(script.commands))
        if value is None:
            begun.note(line, f"export {name}: {values.why_unknown(name)}")
        elif _belongs_to_the_command(value, launch):
            continue
        elif is_launchers(name):
            begun.note(line, f"{name} is set for every rank by Slurm and the launcher")
        elif name in values.added_to:
            made += [(place, 0, f"export {name}={_quoted(one.text)}") for place, one in values.added_to[name]]
        elif not is_known_but_for_variables(value.text):
            begun.note(line, f"export {name}={value.text}: {why_open(value.text)}")
        elif name in names_in(value.text):
            made.append((behind, 0, f"export {name}={_quoted(value.text)}"))
        elif problem := variable_problem(name, value.text):
            begun.note(line, problem.removeprefix("[env] "))
        elif behind <= last:
            made.append((behind, 0, f"export {name}={_quoted(value.text)}"))
        else:
            begun.set("env", name, value.text, f"line {line}")
    lines = [line for _, _, line in sorted(made, key=lambda one: one[:2])]
    sourced = re.fullmatch(r"(?:source|\.) (\S+)", lines[0]) if len(lines) == 1 and commands and not unsure else None
    if sourced:
        begun.set("run", "environment", commands[0].words[1].text, f"line {commands[0].line}")
    elif lines:
        begun.environment_script = lines
        begun.set("run", "environment", "environment.sh", "beside this file; sourced on every node")


def _belongs_to_the_command(value: Traced, launch: Launch) -> bool:
    """Whether it is a piece of the training's command line: that is taken as such."""
    return re.search(r"(^|\s)--[A-Za-z]", value.text) is not None or value.text == launch.program.text


def _quoted(text: str) -> str:
    """As a shell's word in which variables are still put in."""
    if re.fullmatch(r"[\w@%+=:,./~-]+", text):
        return text
    return '"' + re.sub(r'([\\"`])', r"\\\1", text) + '"'
