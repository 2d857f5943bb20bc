"""Turn a launch script of Megatron-DeepSpeed's kind into a run file. Pure; the script is read and never run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opsctl.core.errors import UsageError
from opsctl.run.config.values import is_launchers, variable_problem
from opsctl.run.init.draft import Draft
from opsctl.run.init.engine_file import take_engine
from opsctl.run.init.sbatch_options import take_slurm
from opsctl.run.init.shell_script import Command, Script, placed, read_script
from opsctl.run.init.shell_syntax import Unreadable
from opsctl.run.init.shell_values import VARIABLE, SetUp, is_known_but_for_variables, names_in, why_open
from opsctl.run.init.trainer_command_line import NOTED_SEPARATELY, take_options
from opsctl.slurm.durations import format_duration, parse_duration_s
from opsctl.slurm.sbatch_lines import directives, header
from trainer.recipe.lengths import EVALUATE_ONLY
from trainer.recipe.options import BY_KEY

#: Values that every run needs and that a script may leave to the command line of sbatch.
NEEDED = ("nodes", "gpus_per_node", "time")
_TRAINING, _OURS = "pretrain", "pretrain_gpt"  # programs that train, and those with the trainer's method
#: BigScience's share below which the last epoch is shuffled separately; Megatron-LM's is the trainer's default.
_LAST_EPOCH = 0.95
#: A program with fewer of the trainer's options does not train.
_LEAST_OPTIONS = 4
#: These start no training, leave nothing that one could miss, or make its environment.
_WITHOUT_TRACE = frozenset(
    (
        *("echo", "printf", "cat", "tee", "mkdir", "ls", "rm", "cp", "ln", "logger", "grep", "set", "cd", "exit"),
        *("true", "false", ":", "wait", "sleep", "date", "clear", "hostname", "read", "mapfile", "readarray"),
        *("getopts", "shift", "trap", "return", "break", "continue", "pwd", "unset", "eval", "let", "pushd", "popd"),
        *("source", ".", "module", "ml", "conda", "mamba", "micromamba", "spack", "ulimit", "umask", "shopt", "["),
    )
)


@dataclass(frozen=True)
class Launch:
    """The command that starts the training: its program, the words after it, and the launcher's sizes."""

    program: str
    words: tuple[str, ...]
    command: Command
    nodes: int | None
    gpus_per_node: int | None

    @property
    def name(self) -> str:
        """The program's, without its folder."""
        return self.program.rpartition("/")[2]


def from_script(
    text: str,
    name: str,
    folder: str,
    given: dict[str, object],
    read_file: Callable[[str], str | None],
    arguments: Sequence[str] | None = None,
) -> Draft:
    """Return the run `name` that the script trains. Raises UsageError if it starts none, or one of NEEDED is missing.

    folder: the script's own. given: `[slurm]` from the command line of opsctl. read_file: returns the text of a file
    that the script names, or None. arguments: those of the script; None if they are not known.
    """
    draft = Draft()
    try:
        asked = list(directives(text))
        draft.set("run", "name", name)
        draft.set("run", "output", "output", "all that the run writes: put its folder on a large file system")
        take_slurm(draft, asked)
        _unread_directives(draft, text)
        for key, value in given.items():
            draft.set("slurm", key, value, "as given to opsctl init")
        script = read_script(text, _set_by_slurm(draft, name), arguments)
    except RecursionError:
        raise UsageError("the script cannot be read: its brackets and branches are nested too deep") from None
    except (Unreadable, ValueError) as error:
        raise UsageError(f"the script cannot be read: {error}") from None
    launch = _the_launch(draft, script)
    _nodes_and_gpus(draft, launch)
    missing = [key for key in NEEDED if draft.value("slurm", key) is None]
    if missing:
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in missing)
        raise UsageError(f"the script does not give {', '.join(missing)} in a way that can be read: give {flags}")
    working = _working_folder(draft, launch, folder)
    own = take_options(draft, launch.words, launch.command, working, _line_finder(text))
    _own_options(draft, own)
    _margin(draft, own)
    if "deepspeed_config" in own:
        _engine(draft, launch, own["deepspeed_config"], working, read_file)
    if "deepspeed" in own and draft.value("data", "separate_last_epoch_threshold") is None:
        remark = "BigScience's Megatron-DeepSpeed; Megatron-LM has 0.80"
        draft.set("data", "separate_last_epoch_threshold", _LAST_EPOCH, remark)
    _environment(draft, launch)
    for line, what in (*script.notes, *_left_out(script)):
        draft.note(line, what)
    if names := script.state.taken_unset:
        draft.note(0, f"taken as unset, because the script asks for it and does not set it: {', '.join(names)}")
    return draft


def _line_finder(text: str) -> Callable[[str], int]:
    """Return a function from an option or a variable to the first line of the script that has it; 0 if none does."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]

    def line_of(word: str) -> int:
        names = names_in(word) if VARIABLE.match(word) else []
        option = re.escape(word.partition("=")[0])
        pattern = re.compile(rf"\$\{{?{names[0]}\b" if names else rf"(?<![\w-]){option}(?![\w-])")
        return next((number for number, line in lines if pattern.search(line)), 0)

    return line_of


def _unread_directives(draft: Draft, text: str) -> None:
    read = {number for number, _ in header(text)}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH ") and number not in read:
            draft.note(number, f"{line}: Slurm does not read it behind the first command")


def _set_by_slurm(draft: Draft, name: str) -> dict[str, str]:
    """Return the variables of a job whose values follow from its request."""
    found = {
        "SLURM_NNODES": draft.value("slurm", "nodes"),
        "SLURM_JOB_NUM_NODES": draft.value("slurm", "nodes"),
        "SLURM_GPUS_ON_NODE": draft.value("slurm", "gpus_per_node"),
        "SLURM_GPUS_PER_NODE": draft.value("slurm", "gpus_per_node"),
        "SLURM_CPUS_PER_TASK": draft.value("slurm", "cpus_per_task"),
        "SLURM_JOB_NAME": name,
    }
    return {variable: str(value) for variable, value in found.items() if value is not None}


# The command that starts the training


def launches(script: Script) -> list[Launch]:
    """Return every command of the script that starts a training, in order."""
    return [found for command in script.commands if (found := _launch(script, command)) is not None]


def _launch(script: Script, command: Command) -> Launch | None:
    if command.name in _WITHOUT_TRACE or command.words[0] in script.functions:
        return None
    for place, word in enumerate(command.words):
        after = command.words[place + 1 :]
        names = {one.removeprefix("--").partition("=")[0].replace("-", "_") for one in after}
        if word.endswith(".py") and len(names & BY_KEY.keys()) >= _LEAST_OPTIONS:
            sizes = dict(_launcher_options(command.words[:place]))
            nodes = sizes.get("nnodes", sizes.get("num-nodes"))
            return Launch(word, after, command, nodes, sizes.get("nproc-per-node", sizes.get("num-gpus")))
    return None


def _launcher_options(words: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the launcher's options that are whole numbers: `--nproc_per_node 8`, `--nnodes=2`."""
    for word, following in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name.startswith("--") and re.fullmatch(r"\d+", value):
            yield name.removeprefix("--").replace("_", "-"), int(value)


def _the_launch(draft: Draft, script: Script) -> Launch:
    """Return the last command that starts a training, preferably one that certainly runs. Raises UsageError."""
    found = launches(script)
    if not found:
        lines = ", ".join(str(line) for line, what in script.notes if "not evaluated" in what)
        hint = f"; the loops and functions of lines {lines} are not evaluated" if lines else ""
        raise UsageError(
            "the script starts no training that could be found: no command in it runs a Python program with "
            f"Megatron's options (--num-layers, --hidden-size, ...){hint}"
        )
    # A program started behind the training may evaluate or generate with the same options.
    trainings = [one for one in found if one.name.startswith(_TRAINING)] or found
    launch = next((one for one in reversed(trainings) if one.command.is_sure), trainings[-1])
    line = launch.command.line
    for other in sorted({one.command.line for one in found} - {line}):
        draft.note(other, f"another training is started here; taken: the one of line {line}")
    if not launch.command.is_sure:
        draft.note(line, "it is started in a loop, in a function, or under a condition that is not decided")
    if not launch.name.startswith(_OURS):
        draft.note(line, f"{launch.name}: the trainer trains as pretrain_gpt.py does; its other functions are lost")
    return launch


def _nodes_and_gpus(draft: Draft, launch: Launch) -> None:
    for key, given, what in (
        ("nodes", launch.nodes, "nodes"),
        ("gpus_per_node", launch.gpus_per_node, "processes of a node"),
    ):
        asked = draft.value("slurm", key)
        if asked is None and given is not None:
            draft.set("slurm", key, given, "as given to the launcher")
        elif given is not None and given != asked:
            line = launch.command.line
            draft.note(line, f"the launcher is given {given} {what}, Slurm {asked}: {asked} is taken")


# Folders, options and DeepSpeed's file


def _working_folder(draft: Draft, launch: Launch, folder: str) -> str:
    """Return the folder in which the script starts the trainer, as far as it is known."""
    into = launch.command.state.folder
    if into is None:
        return folder
    if not is_known_but_for_variables(into):
        draft.note(launch.command.line, f"its folder is not known: relative paths are taken to start at {folder}")
        return folder
    text = into.rstrip("/") or "/"
    return text if text.startswith(("/", "~/", "${")) else f"{folder}/{text}"


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
    draft: Draft, launch: Launch, option: tuple[str, int], folder: str, read_file: Callable[[str], str | None]
) -> None:
    path, line = option
    into, files = launch.command.state.folder, launch.command.files
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


# The environment


def _environment(draft: Draft, launch: Launch) -> None:
    """Set `[run] environment` and `[env]`, or write both into a script next to the run file, in the script's order."""
    made = [one for one in launch.command.state.set_up if not one.exports or _is_exported(draft, one, launch)]
    commands = [one for one in made if not one.exports or _is_own(one)]
    is_one_file = len(commands) == 1 and commands[0].words[0] in ("source", ".") and len(commands[0].words) == 2
    for one in commands:
        if not one.is_sure and not one.exports:
            draft.note(one.line, f"{one.words[0]}: done under a condition that the script does not decide")
    if is_one_file and made[0] is commands[0] and made[0].is_sure:
        draft.set("run", "environment", made.pop(0).words[1], f"line {commands[0].line}")
    elif commands:
        draft.environment_script = [_line(one) for one in made]
        draft.set("run", "environment", "environment.sh", "beside this file; sourced on every node")
        return
    for one in made:
        draft.set("env", one.exports, one.words[1].partition("=")[2], f"line {one.line}")


def _is_exported(draft: Draft, one: SetUp, launch: Launch) -> bool:
    """Return whether the training is to have this export; note why not."""
    state, name, value = launch.command.state, one.exports, one.words[1].partition("=")[2]
    variable = state.variables.get(name)
    if variable is None or not variable.is_exported or re.search(r"(^|\s)--[A-Za-z]", value) or value == launch.program:
        return False  # taken back, or a piece of the training's command line
    if variable.value is None:
        draft.note(one.line, f"export {name}: {state.why_unknown(name)}")
    elif is_launchers(name):
        draft.note(one.line, f"{name} is set for every rank by Slurm and the launcher")
    elif not is_known_but_for_variables(value) and not _is_own(one):
        draft.note(one.line, f"export {name}={value}: {why_open(value)}")
    elif problem := variable_problem(name, value):
        draft.note(one.line, problem.removeprefix("[env] "))
    else:
        return True
    return False


def _is_own(one: SetUp) -> bool:
    """Return whether an export extends the variable's value from before the script."""
    return bool(one.exports) and re.search(rf"\$\{{?{one.exports}\b", one.words[1]) is not None


def _line(one: SetUp) -> str:
    if one.exports:
        return f"export {one.exports}={_quoted(one.words[1].partition('=')[2])}"
    return " ".join(_quoted(word) for word in one.words)


def _left_out(script: Script) -> Iterator[tuple[int, str]]:
    """Yield notes on commands that neither make the environment, nor start a training, nor serve the script alone."""
    for command in script.commands:
        is_shell = any(word.rpartition("/")[2] in ("bash", "sh") for word in command.words)
        is_needed = command.name in _WITHOUT_TRACE or command.words[0] in script.functions or is_shell
        is_name = command.name.isprintable() and "$" not in command.words[0] and command.name
        is_redirection = command.words == ("exec",)
        if is_name and not (is_needed or is_redirection) and not _launch(script, command):
            yield command.line, f"{command.name}: of the script, only the training is run"


def _quoted(text: str) -> str:
    """Quote as a shell's word in which variables are still expanded."""
    if re.fullmatch(r"[\w@%+=:,./~-]+", text):
        return text
    return '"' + re.sub(r'([\\"`])', r"\\\1", text) + '"'
