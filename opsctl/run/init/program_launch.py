"""Fill a run file of a training program from the command of a launch script that starts it. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from opsctl.run.config.schema import COMMAND
from opsctl.run.init.draft import Draft, Note
from opsctl.run.init.launchers import Started, option_name
from opsctl.run.init.program_facts import BY_ITSELF, RESUMES, take_facts
from opsctl.run.init.sbatch_options import tasks_of_a_node
from opsctl.run.init.shell_script import Command, placed
from opsctl.run.init.shell_values import (
    VARIABLE,
    State,
    is_argument,
    is_known_but_for_variables,
    is_open,
    names_in,
    why_open,
)
from opsctl.run.init.start_folder import placed_from, settled, working_folder
from opsctl.run.programs.kind import Kind, options_in
from opsctl.run.programs.registry import KINDS
from opsctl.slurm.sbatch_lines import Directive

#: Stands for what the script does not decide. No shell has it, so that a submit is refused until it is replaced.
FILL_IN = "${FILL_IN}"
#: Variables of a job that opsctl sets for each node, and the words for them in a command.
_OF_A_NODE = {
    **{"MASTER_ADDR": "master_address", "MASTER_PORT": "master_port", "WORLD_SIZE": "world_size"},
    **{"SLURM_NODEID": "node_rank", "NODE_RANK": "node_rank", "SLURM_NTASKS": "world_size"},
}
#: What is another one in each job of a chain, and must not be in the name of a folder that they share.
_OF_ONE_JOB = re.compile(
    r"\$\(\s*date\b[^()]*\)|`\s*date\b[^`]*`|\$\{?(?:SLURM_(?:ARRAY_)?JOB_?ID|RANDOM)\b\}?",
)
#: Options of srun that say where and how many, or where its output goes: opsctl does this.
_PLACES = re.compile(
    r"-[NnwloeuKWJcG]|--(nodes|ntasks|ntasks-per-node|nodelist|jobid|job-name|label|unbuffered|output"
    r"|error|kill-on-bad-exit|wait|gpus.*|gres|cpus-per-task|export|exclusive|overlap|mem|time|partition|account)\b"
)
_SECRET = re.compile(
    r"token|.*((hub|hf|auth|access|api|wandb|bearer)_token|secret|passw(or)?d|api_?key|access_key|wandb_key)", re.I
)


@dataclass(frozen=True)
class Places:
    """The folders of a script: its own, the one in which it is started, and the one that its run file gets."""

    script_folder: str
    start: str
    run_folder: str


def take_program(
    draft: Draft,
    found: Started,
    name: str,
    kind_name: str | None,
    asked: Sequence[Directive],
    places: Places,
    line_of: Callable[[str], int],
    read_file: Callable[[str], str | None],
) -> None:
    """Set `[program]` and the exit margin of the run `name`; list what the user has to set.

    kind_name: the kind, as the user has given it; None: as the program's words and its file show.
    """
    command = found.command
    folder = working_folder(draft, command, places.start, places.script_folder)

    def text_of(path: str) -> str | None:
        written = command.files.known.get(placed(command.state.folder, path))
        return written[0] if written else read_file(placed_from(folder, None, path))

    text = next((one for path in _files(found) if (one := text_of(path)) is not None), "")
    kind = KINDS.get(kind_name or "") or (None if kind_name else kind_of(found.program, text))
    arguments = list(_kept(draft, found, kind, line_of))
    words = [
        _word(draft, word, before, name, command.state, places, line_of, command.line)
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]
    if found.launcher == "accelerate" and _has_deepspeed(found, text_of):
        words[words.index("launch") + 1 : words.index("launch") + 1] = ["--deepspeed_multinode_launcher", "standard"]
    words = [_written_by_script(draft, word, command, places) for word in words]
    draft.set("program", "command", words, f"line {command.line}")
    remark = "" if kind else "none was recognised; docs/your-trainer.md lists them"
    draft.set("program", "kind", kind.name if kind else COMMAND, remark)
    draft.set("program", "folder", folder, "where the script starts it")
    _launch(draft, found, kind, asked)
    given = options_in(words[-len(found.program) :])
    take_facts(draft, found, kind, given, text, asked, line_of)
    draft.ask("alerts", "channels", ["mailto://me@example.org"], "where alerts go, unless your profile has it")


def chosen_start(found: Started, folders: Sequence[str], read_file: Callable[[str], str | None]) -> str:
    """Return the folder in which the script is started: the first that has its program, else the last."""
    into = found.command.state.folder
    if into is not None and into.startswith(("/", "~", "$(")):
        return folders[0]
    has = (one for one in folders for path in _files(found) if read_file(placed_from(one, into, path)) is not None)
    return next(has, folders[-1])


def _files(found: Started) -> Iterator[str]:
    """Yield the paths that the program's file may have."""
    program = found.program[0]
    if program.endswith(".py"):
        yield program
    else:
        yield program.replace(".", "/") + ".py"
        yield program.replace(".", "/") + "/__main__.py"


def kind_of(program: Sequence[str], text: str) -> Kind | None:
    """Return the kind that the program's words show, or else the modules that it imports."""
    lines = [(kind, kind.command_line) for kind in KINDS.values() if kind.command_line is not None]
    imported = re.findall(r"^\s*(?:from|import)\s+([\w.]+)", text, re.MULTILINE)
    by_words = (kind for kind, line in lines if line.is_its(program))
    by_imports = (
        kind
        for kind, line in lines
        if any(one == name or one.startswith(f"{name}.") for name in line.imports for one in imported)
    )
    return next(by_words, None) or next(by_imports, None)


# The command


def _kept(draft: Draft, found: Started, kind: Kind | None, line_of: Callable[[str], int]) -> Iterator[str]:
    """Yield the command's words without the options that opsctl gives itself; note those that are left out."""
    line = found.command.line
    if found.dropped:
        names = ", ".join(one.partition(" ")[0].partition("=")[0] for one in found.dropped)
        draft.note(line, f"opsctl sets these options of {found.launcher} itself: {names}")
    if rest := [one for one in found.of_srun if not _PLACES.match(one)]:
        draft.note(line, f"options of srun: {', '.join(rest)}")
    if any(one.startswith("--container") for one in found.of_srun):
        text = "opsctl starts no container through srun: put apptainer exec, or the like, in front of the command"
        draft.fill_in.append(Note(line, text))
    if found.launcher == "deepspeed":
        draft.note(line, "deepspeed: torchrun starts the program, and gives it LOCAL_RANK but no --local_rank")
    left_out = set(kind.command_line.left_out if kind and kind.command_line else ())
    given = options_in(found.program)
    left_out |= {one for one in RESUMES if given.get(one, "").lower() not in BY_ITSELF}
    words = list(found.words)
    while words:
        word = words.pop(0)
        if word in ("${@}", "${*}"):
            draft.note(line, f"{word}: the script's own arguments: give them after --")
            continue
        option, equals, _ = word.partition("=")
        if not option.startswith("--") or option_name(option) not in left_out:
            yield word
            continue
        takes = not equals and words and not words[0].startswith("-")
        shown = " ".join([word, words.pop(0)] if takes else [word])
        resumes = option_name(option) in RESUMES
        why = (
            'gives it itself; for checkpoints of before: existing = "continue"'
            if resumes
            else "ends the program itself"
        )
        draft.note(line_of(option) or line, f"{shown}: opsctl {why}")


def _word(
    draft: Draft,
    word: str,
    before: str,
    name: str,
    state: State,
    places: Places,
    line_of: Callable[[str], int],
    line: int,
) -> str:
    """Return a word for a run file. before: the word before it, which may be its option."""
    option = word if word.startswith("-") or "=" in word else before if before.startswith("-") else ""
    line = line_of(option or word) or line
    option = option.partition("=")[0]
    shown = f"{option} {word}" if option and word != option and "=" not in word else word
    if _SECRET.fullmatch(option_name(option)) and word != option:
        why = "it looks like a secret, and the group reads this file: remove it, and set it in the environment"
        draft.fill_in.append(Note(line, f"{option}: {why}"))
        return f"{option}={FILL_IN}" if word.startswith(f"{option}=") else FILL_IN
    text = settled(word, places.start, places.script_folder)
    text = VARIABLE.sub(_of_a_node, text)
    if _OF_ONE_JOB.search(text):
        text = _OF_ONE_JOB.sub(lambda _: name, text)
        draft.note(line, f"{shown}: differs in each job of a chain, so the run's name is in its place")
    if not is_known_but_for_variables(text):
        draft.fill_in.append(Note(line, f"{shown}: {why_open(text)}"))
        head, equals, _ = text.partition("=")
        return f"{head}={FILL_IN}" if equals and head.startswith("-") and "$" not in head else FILL_IN
    for one in names_in(text):
        if one in state.variables or one.startswith("SLURM_") or is_argument(one):
            draft.fill_in.append(Note(line, f"{shown}: {state.why_unknown(one)}"))
            text = re.sub(rf"\$\{{?{re.escape(one)}(?!\w)\}}?", lambda _: FILL_IN, text)
    return VARIABLE.sub(lambda match: "${" + (match["braced"] or match["bare"]) + "}", text)


def _of_a_node(match: re.Match[str]) -> str:
    field = _OF_A_NODE.get(match["braced"] or match["bare"])
    return match[0] if field is None else "{" + field + "}"


def _written_by_script(draft: Draft, word: str, command: Command, places: Places) -> str:
    """Return the word, or the place next to the run file of the file that it names and that the script writes."""
    path = placed(command.state.folder, word)
    if path in command.files.known and "." in word:
        text, line = command.files.known[path]
        name = posixpath.basename(path)
        if not is_open(text):
            draft.files[name] = text
            return f"{places.run_folder}/{name}"
        draft.fill_in.append(
            Note(line, f"{word}: the script writes this file, with values that are not known: write it")
        )
    elif posixpath.basename(path) in command.files.lost and "." in word:
        line = command.files.lost[posixpath.basename(path)]
        draft.fill_in.append(Note(line, f"{word}: the script writes this file: write it before you submit"))
    return word


def _has_deepspeed(found: Started, text_of: Callable[[str], str | None]) -> bool:
    """Return whether accelerate is to use DeepSpeed, whose own launcher would start the other nodes through ssh."""
    config = found.given.get("config_file", "")
    text = (text_of(config) if config else None) or ""
    return "use_deepspeed" in found.given or bool(re.search(r"^\s*distributed_type:\s*DEEPSPEED", text, re.MULTILINE))


def _launch(draft: Draft, found: Started, kind: Kind | None, asked: Sequence[Directive]) -> None:
    """Set how the program is started, where the kind's default is another one."""
    per_node = draft.value("slurm", "gpus_per_node")
    line = found.command.line
    tasks = found.tasks_per_node or tasks_of_a_node(draft, {one.name: one for one in asked})
    how = {"torchrun": "torchrun", "deepspeed": "torchrun", "accelerate": "accelerate"}.get(found.launcher, "ranks")
    if found.is_of_its_own and tasks in (None, 1):
        how = "torchrun"  # it starts its ranks itself
        draft.note(line, f"{found.launcher}: it is started once on each node, and has to find the other nodes itself")
    elif how == "ranks" and kind is None and per_node != 1 and tasks in (None, 1):
        how = "torchrun"  # one process on each node, which starts its ranks itself
        draft.note(line, "one process is started on each node, as in the script, and has to start its ranks itself")
    elif how == "ranks" and tasks not in (None, per_node):
        draft.note(line, f"srun starts {tasks} tasks on each node, opsctl one for each of {per_node} GPUs")
    if how == "ranks" and kind is None:
        draft.note(line, "srun: opsctl gives each rank RANK, LOCAL_RANK and WORLD_SIZE, but no own SLURM_PROCID")
    if how != (kind.launch if kind else "torchrun"):
        draft.set("program", "launch", how)
