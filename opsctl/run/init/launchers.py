"""Split a command of a script into its launcher, the launcher's options, and the training program. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.run.init.shell_script import Command
from opsctl.run.programs.kind import options_in

#: These start a program on several nodes; opsctl starts it on each node itself.
_MPI = frozenset(("mpirun", "mpiexec"))
#: Modules that are launchers, as `python -m MODULE`, and the launcher's own command.
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
#: Programs that start the ranks of a node, and programs that train.
LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed"))
_TRAINERS = frozenset(("litgpt", "nemo"))
_TRAINING = re.compile(r"[\w.]+-train")
_TRAININGS = frozenset(("train", "sft", "pretrain", "finetune", "run"))
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
#: Options of Python without a value, of which a program follows; `-c` is a program that trains nothing.
_OF_PYTHON = frozenset("-" + letter for letter in "uOBsSEIPvqbd")
#: Options without a value; every other one takes the next word, unless that is an option or a Python file.
_ALONE = frozenset(
    (
        *("m", "module", "no_python", "run_path", "use_env", "standalone", "virtual_local_rank"),
        *("multi_gpu", "cpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu", "tpu", "debug", "quiet", "q"),
        *("same_network", "use_parallelism_config", "enable_cpu_affinity", "no_local_rank", "no_ssh", "force_multi"),
        *("bind_cores_to_rank", "save_pid", "l", "label", "u", "unbuffered", "K", "kill_on_bad_exit", "exclusive"),
        *("overlap", "O", "overcommit", "pty", "v", "verbose", "Q", "k", "no_kill", "container_mount_home"),
        *("no_container_mount_home", "container_writable", "allow_run_as_root", "oversubscribe"),
    )
)
#: Options of launchers that opsctl sets itself, or that act against its own stops and restarts.
_OPSCTLS = frozenset(
    (
        *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "local_addr", "standalone"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval"),
        *("signals_to_handle", "shutdown_timeout", "num_machines", "machine_rank", "num_processes"),
        *("main_process_ip", "main_process_port", "same_network", "gpu_ids", "deepspeed_hostfile"),
        *("deepspeed_multinode_launcher", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter", "hostfile", "H"),
        *("num_nodes", "num_gpus", "include", "i", "exclude", "e", "launcher", "launcher_args", "no_ssh", "ssh_port"),
        *("force_multi", "no_local_rank"),
    )
)
#: Numbers among them: of nodes, of ranks on each node, of all ranks.
_NODES, _PER_NODE = ("nnodes", "num_machines", "num_nodes", "N", "nodes"), ("nproc_per_node", "num_gpus")
_PER_TASKS = ("ntasks_per_node",)


@dataclass(frozen=True)
class Started:
    """A training program that a script starts.

    words: its words in a run file, without the options that opsctl sets. program: the program and its arguments, the
    last of them. launcher: torchrun, accelerate, deepspeed, python, or a program's own name.
    """

    command: Command
    launcher: str
    words: tuple[str, ...]
    program: tuple[str, ...]
    dropped: tuple[str, ...]  # options of the launcher
    given: dict[str, str]  # all options of the launcher, and of srun
    of_srun: tuple[str, ...]  # options of srun
    is_on_all_nodes: bool  # by srun

    @property
    def name(self) -> str:
        """The program's, without its folder."""
        return self.program[0].rpartition("/")[2]

    @property
    def is_of_its_own(self) -> bool:
        """True if its launcher is a program that opsctl does not know."""
        return self.launcher not in (*LAUNCHERS, *_TRAINERS, "python")

    @property
    def nodes(self) -> int | None:
        """The number of nodes that the launcher is given."""
        return self._number(*_NODES)

    @property
    def gpus_per_node(self) -> int | None:
        """The number of ranks on each node that the launcher is given."""
        total = self._number("num_processes")
        if self.launcher == "accelerate" and total:
            nodes = self.nodes or 1
            return total // nodes if total % nodes == 0 else None
        return self._number(*_PER_NODE, *(() if self.launcher in LAUNCHERS else _PER_TASKS))

    @property
    def tasks_per_node(self) -> int | None:
        """The number of tasks that srun starts on each node, if it is given to srun."""
        return self._number(*_PER_TASKS)

    def _number(self, *names: str) -> int | None:
        return next((int(self.given[name]) for name in names if self.given.get(name, "").isdecimal()), None)


def started_by(command: Command) -> Started | None:
    """Return the training program that a command starts; None if it starts none that can be known."""
    words, given = [*command.around, *command.words], dict[str, str]()
    first = words[0].rpartition("/")[2]
    is_on_all_nodes = first == "srun" or first in _MPI
    of_srun: list[list[str]] = []
    if first == "srun":
        of_srun, words = _split(words[1:])
        given = options_in([word for option in of_srun for word in _long(option)])
    begin = max(0, len(words) - len(command.words))
    at = (n for n in range(begin, len(words)) if _launcher(words[n:], "run" if n == begin else words[n - 1]))
    place = next(at, begin if is_on_all_nodes and _is_training(words[begin:]) else None)
    if place is None:
        return None
    before, words = [] if first in _MPI else words[:place], words[place:]
    launcher, taken, own = _launcher(words, "run") or (words[0].rpartition("/")[2], 0, ())
    options, program = _split(words[taken:]) if launcher in LAUNCHERS else ([], words[taken:])
    kept = [option for option in options if option_name(option[0]) not in _OPSCTLS]
    if launcher == "deepspeed":
        kept = [["-m" if option_name(option[0]) == "module" else option[0], *option[1:]] for option in kept]
    if not program or program[0].startswith("-"):
        return None
    return Started(
        command=command,
        launcher=launcher,
        words=(*before, *own, *(word for option in kept for word in option), *program),
        program=tuple(program),
        dropped=tuple(" ".join(option) for option in options if option_name(option[0]) in _OPSCTLS),
        given=given | options_in([word for option in options for word in _long(option)]),
        of_srun=tuple(" ".join(option) for option in of_srun),
        is_on_all_nodes=is_on_all_nodes,
    )


def _launcher(words: Sequence[str], before: str) -> tuple[str, int, tuple[str, ...]] | None:
    """Return the launcher that begins here, how many words it has, and its words in a run file; None for none.

    before: the word before it, which is "run" where a program itself is run.
    """
    folder, slash, name = words[0].rpartition("/")
    if name in ("torchrun", "deepspeed"):
        return name, 1, (f"{folder}{slash}torchrun",)
    if name == "accelerate" and "launch" in words[1:2]:
        return name, 2, tuple(words[:2])
    if name in _TRAINERS:
        return name, 0, ()
    if name.endswith(".py") and before == "run":
        return "python", 0, ()
    if not _PYTHON.fullmatch(name):
        return None
    end = next((n for n, word in enumerate(words[1:], 1) if word not in _OF_PYTHON), len(words))
    if words[end : end + 1] == ["-m"] and len(words) > end + 1:
        module = words[end + 1]
        launcher = _MODULES.get(module, "python")
        taken = end + 1 + (launcher != "python")
        own = {"accelerate": ("accelerate", "launch"), "deepspeed": ("torchrun",)}
        return launcher, taken, own.get(launcher, tuple(words[:taken]))
    if words[end : end + 1] and words[end].endswith(".py"):
        return "python", end, tuple(words[:end])
    return None


def _is_training(words: Sequence[str]) -> bool:
    """Return whether the words start a training by a program of its own: `fairseq-train`, `trl sft`, `tune run`."""
    name, following = [*(word.rpartition("/")[2] for word in words[:2]), "", ""][:2]
    return bool(_TRAINING.fullmatch(name)) or following in _TRAININGS


def _split(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Split words into the options at their front, each with its value, and the rest."""
    options: list[list[str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = [rest.pop(0)]
        takes = "=" not in option[0] and option_name(option[0]) not in _ALONE and not re.fullmatch(r"-\w.+", option[0])
        if takes and rest and not rest[0].startswith("-") and not rest[0].endswith(".py"):
            option.append(rest.pop(0))
        options.append(option)
    return options, rest


def option_name(option: str) -> str:
    """Return the name in a word `--name` or `--name=value`, with `_` for `-`."""
    return option.lstrip("-").partition("=")[0].replace("-", "_")


def _long(option: Sequence[str]) -> list[str]:
    """Return an option in the long form, also `-N 2` and `-N2`."""
    if option[0].startswith("--"):
        return list(option)
    return [f"--{option[0][1:2]}", *([option[0][2:]] if len(option[0]) > 2 else option[1:])]
