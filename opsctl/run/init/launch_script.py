"""Turn a launch script into a run file, of opsctl's trainer or of the script's own program. Pure; it is never run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from opsctl.core.errors import UsageError
from opsctl.run.init.draft import Draft
from opsctl.run.init.launchers import LAUNCHERS, Started, started_by
from opsctl.run.init.program_launch import Places, chosen_start, kind_of, take_program
from opsctl.run.init.sbatch_options import take_slurm, tasks_of_a_node
from opsctl.run.init.script_environment import take_environment
from opsctl.run.init.shell_script import Command, Script, read_script
from opsctl.run.init.shell_syntax import Unreadable
from opsctl.run.init.shell_values import VARIABLE, names_in
from opsctl.run.init.start_folder import working_folder
from opsctl.run.init.trainer_launch import take_trainer
from opsctl.run.programs.kind import options_in
from opsctl.slurm.sbatch_lines import Directive, directives, header
from trainer.recipe.options import BY_KEY

#: Values that every run needs and that a script may leave to the command line of sbatch.
NEEDED = ("nodes", "gpus_per_node", "time")
_TRAINING, _OURS = "pretrain", "pretrain_gpt"  # programs that train, and those with the trainer's method
#: A program with fewer of the trainer's options does not train.
_LEAST_OPTIONS = 4
#: These start no training, leave nothing that one could miss, or make its environment.
_WITHOUT_TRACE = frozenset(
    (
        *("echo", "printf", "cat", "tee", "mkdir", "ls", "rm", "cp", "ln", "logger", "grep", "set", "cd", "exit"),
        *("true", "false", ":", "wait", "sleep", "date", "clear", "hostname", "read", "mapfile", "readarray"),
        *("getopts", "shift", "trap", "return", "break", "continue", "pwd", "unset", "eval", "let", "pushd", "popd"),
        *(
            "source",
            ".",
            "module",
            "ml",
            "conda",
            "mamba",
            "micromamba",
            "spack",
            "ulimit",
            "umask",
            "shopt",
            "[",
            "chmod",
        ),
    )
)


#: Names of programs that train, and the sizes that only Megatron's programs are given.
_TRAINS = re.compile(r"train|tune|sft|dpo|grpo|run_|main", re.IGNORECASE)
_FINETUNING = "finetune_t0"
_SIZES = {"num_layers", "hidden_size", "num_attention_heads"}
OUR_TRAINER = "trainer"


def from_script(
    text: str,
    name: str,
    folder: str,
    given: dict[str, object],
    read_file: Callable[[str], str | None],
    arguments: Sequence[str] | None = None,
    kind: str | None = None,
    submitted_in: str | None = None,
    run_folder: str | None = None,
) -> Draft:
    """Return the run `name` that the script trains. Raises UsageError if it starts none, or one of NEEDED is missing.

    folder: the script's own. given: `[slurm]` from the command line of opsctl. read_file: returns the text of a file
    that the script names, or None. arguments: those of the script; None if they are not known. kind: "trainer" for
    opsctl's trainer, or the kind of the script's own program; None: as the script shows. submitted_in: the folder in
    which sbatch is typed; None: the script's. run_folder: where the run file will be; None: in the script's folder.
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
    line_of = _line_finder(text)
    launch, is_ours = _the_launch(draft, script, kind)
    if not is_ours:
        start = chosen_start(launch, [submitted_in or folder, folder], read_file)
        _tasks(draft, launch, asked)
        _nodes_and_gpus(draft, launch)
        _refuse_missing(draft)
        take_program(
            draft,
            launch,
            name,
            kind,
            asked,
            Places(folder, start, run_folder or f"{folder}/{name}"),
            line_of,
            read_file,
        )
        take_environment(draft, launch.command, launch.program[0], start, folder)
    else:
        _nodes_and_gpus(draft, launch)
        _refuse_missing(draft)
        working = working_folder(draft, launch.command, folder, folder)
        take_trainer(draft, launch.program[1:], launch.command, working, line_of, read_file)
        take_environment(draft, launch.command, launch.program[0], folder, folder)
    for line, what in (*script.notes, *_left_out(script, launch.command)):
        draft.note(line, what)
    if names := script.state.taken_unset:
        draft.note(0, f"taken as unset, because the script asks for it and does not set it: {', '.join(names)}")
    return draft


def _refuse_missing(draft: Draft) -> None:
    missing = [key for key in NEEDED if draft.value("slurm", key) is None]
    if missing:
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in missing)
        raise UsageError(f"the script does not give {', '.join(missing)} in a way that can be read: give {flags}")


def _line_finder(text: str) -> Callable[[str], int]:
    """Return a function from an option or a variable to the first line of the script that has it; 0 if none does.

    In an option, - and _ are the same.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]

    def line_of(word: str) -> int:
        names = names_in(word) if VARIABLE.match(word) else []
        option = word.partition("=")[0]
        name = option.lstrip("-")
        dashes, spelled = option.removesuffix(name), re.sub("-|_", "[-_]", re.escape(name).replace(r"\-", "-"))
        plain = rf"(?<![\w-])(?:{dashes}{spelled}(?![\w-])|{spelled}=)"
        pattern = re.compile(rf"\$\{{?{re.escape(names[0])}(?!\w)" if names else plain)
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


def launches(script: Script) -> list[Started]:
    """Return every command of the script that starts a program with the trainer's options, in order."""
    return [found for command in script.commands if (found := _launch(script, command)) is not None]


def _launch(script: Script, command: Command) -> Started | None:
    if command.name in _WITHOUT_TRACE or command.words[0] in script.functions:
        return None
    for place, word in enumerate(command.words):
        program = command.words[place:]
        if word.endswith(".py") and len(options_in(program).keys() & BY_KEY.keys()) >= _LEAST_OPTIONS:
            return Started(command, "torchrun", (), program, (), options_in(command.words[:place]), (), False)
    return None


def _the_launch(draft: Draft, script: Script, kind: str | None) -> tuple[Started, bool]:
    """Return the command that starts the training, and whether that is opsctl's trainer. Raises UsageError.

    It is of opsctl's trainer if it has Megatron's options, unless it shows that it is another program.
    """
    trainings = launches(script) if kind in (None, OUR_TRAINER) else []
    if trainings and (kind == OUR_TRAINER or not _is_other(trainings[-1])):
        launch = _last_sure(draft, trainings, [one for one in trainings if one.name.startswith(_TRAINING)])
        if not launch.name.startswith(_OURS):
            text = f"{launch.name}: the trainer trains as pretrain_gpt.py does; its other functions are lost"
            draft.note(launch.command.line, text)
        return launch, True
    starts = map(started_by, _startable(script) if kind != OUR_TRAINER else ())
    found = [one for one in starts if one is not None and any(_rank(one))]
    if not found:
        raise UsageError(f"the script starts no training that could be found: {_why_none(script, kind)}")
    # On several nodes, with a launcher, or with the name of a training, before programs that prepare or evaluate.
    best = max(_rank(one) for one in found)
    return _last_sure(draft, found, [one for one in found if _rank(one) == best]), False


def _is_other(launch: Started) -> bool:
    """Return whether a program with Megatron's options is one that trains with its own code."""
    kind = kind_of(launch.program, "")
    is_megatrons = launch.name.startswith((_TRAINING, _FINETUNING)) or options_in(launch.program).keys() >= _SIZES
    return kind is not None or not is_megatrons


def _startable(script: Script) -> Iterator[Command]:
    for command in script.commands:
        if command.name not in _WITHOUT_TRACE and command.words[0] not in script.functions:
            yield command


def _rank(found: Started) -> tuple[bool, bool, bool]:
    """Return how likely it is that this is the training: the largest is."""
    return found.launcher != "python", found.is_on_all_nodes, bool(_TRAINS.search(found.program[0]))


def _last_sure(draft: Draft, found: Sequence[Started], likely: Sequence[Started]) -> Started:
    """Return the last one that certainly runs, of the likely ones if there are any; note all others."""
    likely = likely or found
    launch = next((one for one in reversed(likely) if one.command.is_sure), likely[-1])
    line = launch.command.line
    for other in sorted({one.command.line for one in found} - {line}):
        draft.note(other, f"another training is started here; taken: the one of line {line}")
    if not launch.command.is_sure:
        draft.note(line, "it is started in a loop, in a function, or under a condition that is not decided")
    return launch


def _why_none(script: Script, kind: str | None) -> str:
    if kind == OUR_TRAINER:
        return "no command in it runs a Python program with Megatron's options (--num-layers, --hidden-size, ...)"
    why = "no command in it runs torchrun, accelerate launch, deepspeed, litgpt or a Python program"
    scripts = [
        f"{word} (line {one.line})"
        for one in script.commands
        for word in one.words
        if word.endswith((".sh", ".slurm", ".sbatch")) and one.name not in ("source", ".")
    ]
    if scripts:
        return f"{why}. It runs {scripts[-1]}: give that script, with --nodes, --gpus-per-node and --time"
    lines = ", ".join(str(line) for line, what in script.notes if "not evaluated" in what)
    return f"{why}; the loops and functions of lines {lines} are not evaluated" if lines else why


def _tasks(draft: Draft, launch: Started, asked: Sequence[Directive]) -> None:
    """Set the GPUs of a node from the tasks of srun, where no line asks for GPUs."""
    if launch.launcher in LAUNCHERS or draft.value("slurm", "gpus_per_node"):
        return
    tasks = tasks_of_a_node(draft, {one.name: one for one in asked})
    if tasks is not None and tasks > 1:
        draft.set("slurm", "gpus_per_node", tasks, "the tasks of a node")


def _nodes_and_gpus(draft: Draft, launch: Started) -> None:
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


def _left_out(script: Script, started: Command) -> Iterator[tuple[int, str]]:
    """Yield notes on commands that neither make the environment, nor start a training, nor serve the script alone."""
    for command in script.commands:
        is_shell = any(word.rpartition("/")[2] in ("bash", "sh") for word in command.words)
        is_needed = command.name in _WITHOUT_TRACE or command.words[0] in script.functions or is_shell
        is_name = command.name.isprintable() and "$" not in command.words[0] and command.name
        is_redirection = command.words == ("exec",)
        if is_name and not (is_needed or is_redirection or command is started) and not _launch(script, command):
            yield command.line, f"{command.name}: of the script, only the training is run"
