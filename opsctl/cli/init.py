"""`opsctl init`: a new run folder from answers, a shipped example, another run or a launch script."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from opsctl.cli.new_run import make_run, say_next
from opsctl.cli.plan import Number
from opsctl.cli.selection import cluster_option
from opsctl.run.config.schema import KINDS_OF_PROGRAMS

DEFAULT_EXAMPLE = "demo"


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Check the text and return it unchanged. Raises click.UsageError if it is no duration of Slurm's."""
    from opsctl.slurm.durations import DURATION_RULE, parse_duration_s

    try:
        if text is not None:
            parse_duration_s(text)
    except ValueError:
        raise click.UsageError(f"--time {text}: not {DURATION_RULE}") from None
    return text


@click.command(name="init")
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS...]", type=click.UNPROCESSED)
@click.option(
    "--from",
    "example",
    metavar="EXAMPLE",
    help="demo, llama-1B, llama-3.1-8B, mistral-7B, qwen3-0.6B, tr1-13B, tr11-176B-ml, tr11d-760M-ml, setup-test-n2 "
    "[default: demo]; with --rehearsal a run.",
)
@click.option(
    "--rehearsal", is_flag=True, help="Make a small copy of the run of --from, for two nodes, to try a change."
)
@click.option("--from-script", "script", metavar="FILE", help="Read a launch script of a training.")
@click.option(
    "--kind",
    type=click.Choice(["trainer", *KINDS_OF_PROGRAMS]),
    help="With --from-script: the program that trains [default: as the script shows]; trainer is opsctl's.",
)
@click.option("--params", type=Number(whole=False), help="Parameters of the model, such as 1.3B.")
@click.option("--tokens", type=Number(whole=False), help="Tokens to train on [default: 20 per parameter].")
@click.option(
    "--gpus", type=click.IntRange(1, 100_000), metavar="N", help="Number of GPUs [default: enough for two weeks]."
)
@click.option(
    "--gpu",
    metavar="KIND",
    help="V100-16, V100-32, A100-40, A100-80, H100, H200, GH200, B200, GB200, MI300X, L40S [default: Slurm's].",
)
@click.option("--nodes", type=click.IntRange(1, 100_000), metavar="N", help="With --from-script: number of nodes.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), metavar="N", help="GPUs per node.")
@click.option("--partition", metavar="P", help="Slurm partition: the group of nodes for the jobs.")
@click.option("--account", metavar="A", help="Slurm account: the budget that pays for the jobs.")
@click.option("--time", metavar="T", help="Time limit of each job: 20:00:00 is twenty hours.", callback=_duration)
@click.option("--yes", is_flag=True, help="Ask no questions.")
@cluster_option
def command(
    name: str,
    arguments: tuple[str, ...],
    example: str | None,
    rehearsal: bool,
    script: str | None,
    kind: str | None,
    yes: bool,
    **given: Any,
) -> None:
    """Make a run folder with a run file, from questions, an example or a launch script.

    NAME is a folder here, or an absolute path. At a terminal it asks questions, and Enter takes the default answer.
    With any option, or without a terminal, it asks nothing. The name of an example selects it: `opsctl init
    tr11-176B-ml`.

    --from-script reads a script that starts a training with torchrun, accelerate, deepspeed or srun. The run starts
    the script's own program (docs/your-trainer.md), or opsctl's trainer for a script of Megatron-DeepSpeed. Nothing of
    the script is run, and it is not changed. What opsctl cannot copy is printed with its line numbers.

    --rehearsal makes a small copy of a run, for two nodes and half an hour: `opsctl init try-1 --rehearsal
    --from tr1`. Each scaled value is printed; other settings stay the same. The copy has its own name, output folder
    and kill switch.

    ARGUMENTS are passed to the launch script: `opsctl init a-run --from-script sweep.slurm -- 1e-4 0.1`.
    """
    folder, run_name = _wanted_folder(name)
    cluster = given.pop("cluster")
    given = {key: value for key, value in given.items() if value is not None}
    _refuse_mixtures(example, rehearsal, script, given)
    if arguments and script is None:
        raise click.UsageError(f"{arguments[0]}: one name makes one run; arguments are those of a --from-script")
    if kind and script is None:
        raise click.UsageError(f"--kind {kind}: give the launch script too, with --from-script FILE")
    if rehearsal:
        from opsctl.cli.rehearsal import check_rehearsal, rehearsal_text

        make_run(folder, run_name, rehearsal_text(example, run_name), check=check_rehearsal)
        _say_how_to_rehearse(folder)
        return
    if script is not None:
        from opsctl.cli.init_script import make_from_script

        make_from_script(folder, run_name, Path(script), given, arguments, kind)
        return
    examples = _examples()
    asks = not (yes or given or example or run_name in examples) and _person_is_here()
    if asks or given:
        from opsctl.cli.init_answers import make_from_answers

        if make_from_answers(folder, run_name, cluster, given, asks):
            return
    source = _chosen(examples, run_name, example)
    make_run(folder, run_name, with_run_name(source.read_text(), run_name))
    _say_what_next(folder, source.stem)


def _person_is_here() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _refuse_mixtures(example: str | None, rehearsal: bool, script: str | None, given: dict[str, Any]) -> None:
    """Raise click.UsageError for options that contradict each other."""
    if script is not None and (example or rehearsal):
        raise click.UsageError(f"--from-script {script} and {'--from' if example else '--rehearsal'}: give one")
    of_script = ("nodes", "gpus_per_node", "partition", "account", "time")
    if example or rehearsal:
        wrong = next(iter(given), None)
        why = "an example's and a rehearsal's values are changed in the run file"
    elif script is not None:
        wrong = next((key for key in given if key not in of_script), None)
        why = "a script defines its own model and data"
    else:
        wrong = "nodes" if "nodes" in given else None
        why = "without --from-script give --gpus"
    if wrong:
        raise click.UsageError(f"--{wrong.replace('_', '-')}: {why}")


def _say_how_to_rehearse(folder: Path) -> None:
    say_next(folder, [("", "opsctl plan"), ("", "opsctl submit")])


def with_run_name(text: str, name: str) -> str:
    """Return the example's text with its run called `name`; all else stays, comments too."""
    renamed, count = re.subn(r'^name = "[^"]*"', f'name = "{name}"', text, count=1, flags=re.MULTILINE)
    assert count == 1, "an example names its run"
    return renamed


def _wanted_folder(name: str) -> tuple[Path, str]:
    """Return the folder to make and the run's name, its last part. Raises UsageError."""
    from opsctl.core.errors import UsageError
    from opsctl.run.config.values import RUN_NAME, RUN_NAME_RULE

    folder = Path(os.path.abspath(name))  # noqa: PTH100 - links stay as written
    run_name = name.rstrip("/").rpartition("/")[2]
    if not RUN_NAME.fullmatch(run_name):
        raise UsageError(f"{run_name!r} cannot name a run: allowed are {RUN_NAME_RULE}")
    if ".." in Path(name).parts and not folder.is_relative_to(Path.cwd()):
        raise UsageError(
            f"{name} leads out of this folder: if {folder} is meant, type opsctl init {shlex.quote(str(folder))}"
        )
    if not folder.parent.is_dir():
        raise UsageError(f"no folder {str(folder.parent)!r} to make the run in: make it first")
    return folder, run_name


def _examples() -> dict[str, Path]:
    from opsctl.core.shipped import templates_folder

    return {path.stem: path for path in sorted((templates_folder() / "examples").glob("*.toml"))}


def _chosen(examples: dict[str, Path], name: str, example: str | None) -> Path:
    from opsctl.core.errors import UsageError

    wanted = example or (name if name in examples else DEFAULT_EXAMPLE)
    if wanted not in examples:
        near = sorted((one for one in examples if one.startswith(wanted)), key=len)[:1] or difflib.get_close_matches(
            wanted, examples, 1, 0.4
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no example {wanted!r}{hint} (there are {', '.join(examples)})")
    return examples[wanted]


def _say_what_next(folder: Path, example: str) -> None:
    from opsctl.cli.local_cluster import DEFAULT_NAME

    if example == "demo":
        steps = [
            ("start a real Slurm on this machine", "opsctl local-cluster up"),
            ("make a corpus from the Python standard library", _PREPARE),
        ]
    else:
        steps = [("set paths, account and partition of your cluster", "${EDITOR:-vi} run.toml")]
    cluster = f" --cluster {DEFAULT_NAME}" if example == "demo" else ""
    steps += [
        ("print sizes, durations and problems", "opsctl plan"),
        ("submit a chain of three tasks, one at a time", f"opsctl submit --array 1-3%1{cluster}"),
    ]
    say_next(folder, steps)


_PREPARE = (
    "opsctl data prepare \"$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"stdlib\"))')\" --include '*.py' "
    "--exclude test --exclude tests --exclude idlelib --exclude '*-packages' "
    "--output-prefix data/corpus --vocab-size 1024"
)
