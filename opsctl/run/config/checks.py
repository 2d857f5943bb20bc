"""Can this run be? Every reason why not, before anything is submitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.core.output import printable
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.expansion import unset_variables
from opsctl.run.config.load import LoadedRun, expanded_file
from opsctl.run.config.program import options_of_program, program_of
from opsctl.run.config.schema import ExpectTable, Reckoning, RunFile, SlurmTable
from opsctl.run.config.toml_types import MOST_RAMP_STAGES, combination_problems
from opsctl.slurm.durations import parse_duration_s
from trainer.formats.checkpoint.starting import consumed_at_start
from trainer.formats.data.data_sources import data_errors, prefixes
from trainer.formats.data.index_header import read_header
from trainer.formats.data.vocabulary_files import vocab_size
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS, weighted_file_key, weighted_key
from trainer.recipe.layout import Layout
from trainer.recipe.options import Options, from_tables
from trainer.recipe.schedule import BatchRamp, samples_to_train


def data_problems(data: Mapping[str, Any], sequence_length: int | None) -> list[str]:
    """Return the problems of the files that the expanded `[data]` table names, one per line; none if all are good."""
    problems = []
    if not any(data.get(key) for key in ("data_path", weighted_key("train"), weighted_file_key("train"))):
        problems.append("[data] names no training data: give data_path, or train_weighted_split_paths")
    holds = {weighted_file_key(split): "; it holds one line of groups in double quotes" for split in SPLITS}
    problems += [
        f"[data] {key}: no file {data[key]}{holds.get(key, '')}"
        for key in ("vocab_file", "merge_file", *holds)
        if data.get(key) and not Path(data[key]).is_file()
    ]
    pairs = dict.fromkeys(prefixes(data))  # each once, in order
    found = ((key, pair_problem(prefix, sequence_length)) for key, prefix in pairs)
    return problems + [f"[data] {key}: {problem}" for key, problem in found if problem]


def share_problems(options: Options) -> list[str]:
    """Return what is wrong with splits, weights, sizes and vocabulary, for files that `data_problems` found whole."""
    if options.seq_length is None:
        return []
    problems = data_errors(options, SPLITS if options.eval_iters else ("train",))
    if not problems and options.vocab_size:  # a tokenizer by name may be one that only compute nodes have
        try:
            vocab_size(options)
        except DataError as error:
            problems.append(str(error))
    return [f"[data] {problem}" for problem in dict.fromkeys(problems)]


def pair_problem(prefix: str, sequence_length: int | None) -> str | None:
    """Return the problem of `PREFIX.idx` and `PREFIX.bin`, reading only the header, the ends and the sizes."""
    try:
        tokens = read_header(prefix).tokens
    except DataError as error:
        unending = "; write the prefix without .bin or .idx" if prefix.endswith((".bin", ".idx")) else ""
        return f"{error}{unending}"
    if sequence_length is not None and tokens < sequence_length + 1:
        return (
            f"{prefix}.bin holds {tokens:,} tokens, less than one sample of seq_length + 1 = {sequence_length + 1:,}; "
            "give more text or a smaller seq_length"
        )
    return None


#: The keys of [expect] that have to fit into the exit margin.
_IN_THE_MARGIN = ("seconds_per_iteration", "evaluation_seconds", "save_seconds")


@dataclass(frozen=True)
class Findings:
    """Problems of a run, which forbid it, warnings, which do not, and what can be made of it."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    options: Options  # of the three tables, complete or not
    layout: Layout | None  # None: the ranks do not divide
    run: ExpandedRun | None  # None: the trainer would refuse it, or a variable is not set here
    unset: RunFileError | None = None  # names the variable


def check_run(
    loaded: LoadedRun, nodes: int | None = None, files: bool = True, margin: bool = True
) -> tuple[ExpandedRun, tuple[str, ...]]:
    """Return the run on `nodes` nodes, and warnings. Raises RunFileError with its first problem.

    Arguments as for `find_problems`. margin: False leaves the exit margin to a later `margin_findings`.
    """
    found = find_problems(loaded, nodes, files, margin=margin)
    if found.unset is not None:
        raise found.unset
    if found.problems or found.run is None:
        more = len(found.problems) - 1
        rest = f" (and {more} more: opsctl plan shows all)" if more else ""
        raise RunFileError(f"{loaded.path}: {found.problems[0]}{rest}")
    return found.run, found.warnings


def find_problems(
    loaded: LoadedRun,
    nodes: int | None = None,
    files: bool = True,
    expect: ExpectTable | None = None,
    margin: bool = True,
) -> Findings:
    """Every problem and warning of a run on `nodes` nodes (default: the run file's).

    files: False makes warnings of files that are missing or damaged, for who only wants to look at a script.
    expect: the durations that the exit margin has to hold, where they are better known than in the run file.
    Where `${VAR}` is not set here, no file is looked at, and a warning says so.
    """
    file, unset = _expanded(loaded)
    if loaded.file.program is not None:
        return _program_findings(loaded, file, unset, nodes, files)
    tables = all_options(file or loaded.file)
    layout, problems = _layout(loaded, nodes)
    options = from_tables(tables, layout.world_size if layout else None)
    starts = options.replace(load=str(loaded.paths.checkpoints), save=str(loaded.paths.checkpoints))
    problems += combination_problems(tables, layout.world_size if layout else None, consumed_at_start(starts))
    if layout is not None:
        problems += _ramp_problems(options) + _length_problems(options)
    run, refused = (None, None) if problems or file is None else _trained(loaded, file, nodes)
    if refused:
        problems.append(refused)
    warnings = []
    if not any(loaded.file.checkpoints.get(key) for key in ("save_interval", "save_schedule")):
        problems.append(
            "[checkpoints] save_interval is missing: iterations between checkpoints, or save_schedule: that by phases"
        )
    if file is None and (names := ", ".join(f"${{{name}}}" for name in _unset_names(loaded))):
        warnings.append(f"not set here: {names}; no file was looked at, and a submit needs every variable set")
    elif file is None:  # a name that no shell can set
        problems.append(str(unset).removeprefix(f"{loaded.path}: "))
    else:
        in_files = _environment_problems(file, loaded.folder)
        in_files += data_problems(file.data, options.seq_length) or share_problems(options)
        if files:
            problems += in_files
        else:
            warnings += in_files
    margin_problems, margin_warnings = (
        margin_findings(loaded.file.slurm, expect or loaded.file.expect, options) if margin else ([], [])
    )
    return Findings(
        tuple(printable(text) for text in problems + margin_problems),
        tuple(printable(text) for text in warnings + margin_warnings),
        options,
        layout,
        run,
        unset,
    )


def _program_findings(
    loaded: LoadedRun, file: RunFile | None, unset: RunFileError | None, nodes: int | None, files: bool
) -> Findings:
    """Return the findings on a run of another training program, of which only the start is known."""
    table = loaded.file.program
    assert table is not None
    problems, warnings, run = [], [], None
    margin_s, grace_s = parse_duration_s(loaded.file.slurm.exit_margin), parse_duration_s(table.grace)
    saves = (described := program_of(loaded.file, loaded.folder)) is not None and described.stop is not None
    if saves and grace_s > margin_s:
        problems.append(
            f"[program] grace of {grace_s} s is longer than [slurm] exit_margin of {margin_s} s: the time limit would "
            "end the save"
        )
    needs_trainer = {
        "[slurm] min_nodes": loaded.file.slurm.min_nodes > 0,
        "[slurm] probe and spare": loaded.file.slurm.effort != "off",
        "[carbon] measure": loaded.file.carbon.measure,
        "[evaluation]": loaded.file.evaluation is not None,
        "[run] rehearses": loaded.file.run.rehearses is not None,
    }
    problems += [
        f"{what} needs our trainer, and [program] starts another" for what, is_set in needs_trainer.items() if is_set
    ]
    if file is None:
        warnings.append(str(unset).removeprefix(f"{loaded.path}: "))
    else:
        run = ExpandedRun.of(loaded, file, nodes)
        program = program_of(file, loaded.folder)
        assert program is not None
        in_files = _environment_problems(file, loaded.folder)
        if not program.folder.is_dir():
            in_files.append(f"[program] folder {program.folder} is no folder: the program is started in it")
        (problems if files else warnings).extend(in_files)
        warnings += [f"{table.kind}: {sentence}" for sentence in program.lacks()]
    return Findings(
        tuple(map(printable, problems)),
        tuple(map(printable, warnings)),
        options_of_program(table),
        None,
        run,
        unset,
    )


def all_options(file: RunFile) -> dict[str, Any]:
    """Return the trainer's options of the three tables together."""
    return {**file.trainer, **file.data, **file.checkpoints}


def exit_margin_problem(margin_s: float, expect: Reckoning, async_save: bool = False) -> str | None:
    """Why leaving `margin_s` seconds before the limit is too late, or None. A duration that is None counts nothing.

    The trainer looks at the clock between iterations: at worst an iteration, an evaluation and a save follow; with
    --async-save first what is left of the one that was just begun.
    """
    parts = (
        ("an iteration", expect.seconds_per_iteration, ""),
        ("an evaluation", expect.evaluation_seconds, _typical_of(expect.evaluations)),
        ("the save under way", expect.save_seconds if async_save else None, ""),
        ("a save", expect.save_seconds, _typical_of(expect.saves)),
    )
    needed = sum(seconds or 0.0 for _, seconds, _ in parts)
    if margin_s >= needed:
        return None
    sum_text = " + ".join(f"{name} {_seconds(seconds)}{typical}" for name, seconds, typical in parts if seconds)
    minutes, seconds = divmod(math.ceil(needed), 60)
    return (
        f"[slurm] exit_margin of {_seconds(margin_s)} is too short: {sum_text} = {_seconds(needed)}; "
        f'set exit_margin = "{minutes}:{seconds:02d}" or more'
    )


def slow_warnings(margin_s: float, expect: Reckoning, async_save: bool = False) -> list[str]:
    """Return warnings about evaluations or saves that once, but not usually, took longer than `margin_s` seconds."""
    longest = (
        ("evaluations", expect.evaluations, expect.longest_evaluation_seconds, "evaluation_seconds"),
        ("saves", expect.saves, expect.longest_save_seconds, "save_seconds"),
    )
    return [
        f"one of the last {number} {what} took {_seconds(seconds)}: at the end of a job "
        f"[slurm] exit_margin of {_seconds(margin_s)} would be too short for it"
        for what, number, seconds, key in longest
        if seconds is not None
        and exit_margin_problem(margin_s, msgspec.structs.replace(expect, **{key: seconds}), async_save)
    ]


def _typical_of(number: int) -> str:
    return f" (median of the last {number})" if number else ""


def _expanded(loaded: LoadedRun) -> tuple[RunFile | None, RunFileError | None]:
    try:
        return expanded_file(loaded), None
    except RunFileError as error:
        return None, error


def _unset_names(loaded: LoadedRun) -> list[str]:
    variables = loaded.variables()
    return sorted({name for text in _texts(loaded.file) for name in unset_variables(text, variables)})


def _layout(loaded: LoadedRun, nodes: int | None) -> tuple[Layout | None, list[str]]:
    slurm = loaded.file.slurm
    used = slurm.nodes if nodes is None else nodes
    try:
        return Layout.of(from_tables(loaded.file.trainer), used * slurm.gpus_per_node), []
    except ValueError as error:
        return None, [
            f"[slurm] {used} nodes x {slurm.gpus_per_node} GPUs: {error}; change [slurm] nodes, or [trainer] "
            "tensor_model_parallel_size or pipeline_model_parallel_size"
        ]


def _trained(loaded: LoadedRun, file: RunFile, nodes: int | None) -> tuple[ExpandedRun | None, str | None]:
    try:
        return ExpandedRun.of(loaded, file, nodes), None
    except RunFileError as error:
        return None, str(error).removeprefix(f"{loaded.path}: ")


def _ramp(options: Options) -> BatchRamp | None:
    """Return the batch's ramp-up; None without a batch size, or if the trainer's own rules report a problem with it."""
    try:
        return None if options.global_batch_size is None else BatchRamp.of(options)
    except ValueError:
        return None


def _ramp_problems(options: Options) -> list[str]:
    ramp = _ramp(options)
    if ramp is None or ramp.intervals <= MOST_RAMP_STAGES:
        return []
    return [
        f"[trainer] rampup_batch_size has {ramp.intervals:,} stages, more than {MOST_RAMP_STAGES:,}; "
        "give a larger increment"
    ]


def _length_problems(options: Options) -> list[str]:
    ramp, samples = _ramp(options), options.train_samples
    if ramp is None or not samples or samples >= ramp.batch_at(0):
        return []
    return [f"[trainer] train_samples {samples} make no single step of {ramp.batch_at(0)} samples; train longer"]


def _environment_problems(file: RunFile, folder: Path) -> list[str]:
    script = file.run.environment
    if script is None or (folder / script).is_file():
        return []
    return [f"[run] environment: no file {script}; every node sources it; remove the key if there is nothing to set"]


def _texts(file: RunFile) -> list[str]:
    values: list[Any] = [file.run.output, file.run.environment, *file.env.values(), *all_options(file).values()]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if isinstance(item, str)]


def margin_findings(slurm: SlurmTable, expect: ExpectTable, options: Options) -> tuple[list[str], list[str]]:
    """Return problems and warnings of the exit margin, given how long an iteration, an evaluation and a save take."""
    margin_s = parse_duration_s(slurm.exit_margin)
    expected = expect if isinstance(expect, Reckoning) else Reckoning(**msgspec.structs.asdict(expect))
    if options.eval_iters <= 0:
        expected = msgspec.structs.replace(expected, evaluation_seconds=0.0, longest_evaluation_seconds=None)
    problem = exit_margin_problem(margin_s, expected, options.async_save)
    if problem:
        return [problem], []
    slow = slow_warnings(margin_s, expected, options.async_save)
    unknown = [key for key in _IN_THE_MARGIN if getattr(expected, key) is None]
    if not unknown:
        return [], slow
    return [], [
        *slow,
        f"exit_margin of {_seconds(margin_s)} is not checked in full: give {', '.join(unknown)} under [expect], "
        "or let the log measure it",
    ]


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"


def length_of_run(loaded: LoadedRun) -> tuple[int, int]:
    """Return the samples of the whole training, and the tokens of each. Raises RunFileError without them."""
    options = find_problems(loaded, files=False).options
    if options.seq_length is None:
        raise RunFileError(f"{loaded.path}: [trainer] seq_length is missing, so the length of the training is unknown")
    try:
        return samples_to_train(options), options.seq_length
    except (ValueError, TypeError) as error:
        raise RunFileError(f"{loaded.path}: how long is the training? {error}") from None
