"""`opsctl plan`: what a training comes to, from a run file or from a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.selection import Function, json_option, run_argument
from opsctl.core.errors import RunFileError
from opsctl.core.output import message, print_json, show_lines
from opsctl.diagnosis.carbon.estimate import of_table
from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.config.locate import locate_run_file
from opsctl.run.config.schema import CarbonTable, ExpectTable
from opsctl.run.logs.measurements import measured
from opsctl.run.planning.costs import carbon_section, with_measured
from opsctl.run.planning.fewer_nodes import fewer_nodes_problem
from opsctl.run.planning.from_inputs import plan_inputs
from opsctl.run.planning.from_run import run_sections
from opsctl.run.planning.plan import Inputs, NumbersPlan, PlannedRun, PlannedTime, RunPlan
from opsctl.run.planning.schedule import evaluation_sections
from opsctl.run.planning.search import layout_search, search_lines
from opsctl.run.planning.section import Section, bullet_lines, lines_of

if TYPE_CHECKING:
    Type = click.ParamType[float]
else:
    Type = click.ParamType  # generic only since click 8.4


class Number(Type):
    """A number as people write it: `450e9`, `341_000_000_000`, `176B`, `5M`."""

    name = "number"
    _UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}  # noqa: RUF012 - never changed

    def __init__(self, whole: bool, zero: bool = False) -> None:
        self.whole, self.zero = whole, zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to an int if `whole`, else to a float. Fails, as click does, for no number and one out of bounds."""
        text = str(value).strip()
        unit = self._UNITS.get(text[-1:].upper(), 1)
        try:
            number = (
                int(text)
                if unit == 1 and text.replace("_", "").isdigit()
                else float(text[:-1] if unit != 1 else text) * unit
            )
        except (ValueError, OverflowError):
            self.fail(f"{text[:60]!r} is not a number; write it like 450e9, 341_000_000_000 or 176B", param, ctx)
        if (
            not math.isfinite(number)
            or number < 0
            or (number == 0 and not self.zero)
            or number > 1e30
            or 0 < number < 1e-30
        ):
            self.fail(f"{text[:60]} must be above 0, between 1e-30 and 1e30", param, ctx)
        if not self.whole:
            return float(number)
        if number != int(number):
            self.fail(f"{text[:60]} must be a whole number", param, ctx)
        return int(number)


def _number(name: str, what: str, whole: bool = True, zero: bool = False) -> Callable[[Function], Function]:
    return click.option(name, type=Number(whole, zero), help=what)


@click.command(name="plan")
@run_argument
@json_option(
    plan=[
        ("opsctl.run.planning.plan.RunPlan", "from a run file"),
        ("opsctl.run.planning.plan.NumbersPlan", "from numbers"),
    ],
    search=("opsctl.run.planning.plan.LayoutSearch", "with --search"),
)
@click.option("--nodes", type=click.IntRange(1, 100_000), metavar="N", help="Plan the run for this number of nodes.")
@click.option("--search", is_flag=True, help="List layouts that fit the GPUs' memory, the fastest first.")
@_number("--params", "Parameters of the model.")
@_number("--tokens", "Tokens to train on.")
@_number("--gpus", "Number of GPUs.")
@_number("--tflops", "TFLOP/s that each GPU reaches in training, recomputation included; not its peak.", whole=False)
@_number("--num-layers", "Transformer blocks.")
@_number("--hidden-size", "Hidden size.")
@_number("--num-attention-heads", "Attention heads.")
@_number("--vocab-size", "Size of the vocabulary.")
@_number("--sequence-length", "Tokens per sample.")
@_number("--consumed-tokens", "Tokens consumed so far.", zero=True)
@_number("--goal-tokens", "Tokens to consume in all.")
@_number("--seconds-per-iteration", "Seconds per iteration.", whole=False)
@_number("--global-batch-size", "Samples per iteration.")
def command(run: str | None, as_json: bool, nodes: int | None, search: bool, **numbers: Any) -> None:
    """Print sizes, days, batch ramp and layout of a run.

    Exits 2 if the run file cannot be submitted. Without a run file, it computes what it can from a few numbers:

    \b
      opsctl plan --params 167e9 --tokens 450e9 --gpus 384 --tflops 150
      opsctl plan --num-layers 70 --hidden-size 14336 --vocab-size 250680 --sequence-length 2048
      opsctl plan RUN --search --gpus 192
      opsctl plan --consumed-tokens 193e9 --goal-tokens 341e9 --seconds-per-iteration 105 --global-batch-size 2048
    """  # noqa: D301 - click looks for that very character
    if search:
        _search(run, nodes, numbers, as_json)
    elif any(value is not None for value in numbers.values()):
        if run or nodes is not None:
            flag = next(name for name, value in numbers.items() if value is not None).replace("_", "-")
            raise click.UsageError(f"--{flag} plans without a run file: leave out {run or '--nodes'}, or the number")
        _plan_numbers(numbers, as_json)
    else:
        _plan_run(run, nodes, as_json)


def _search(chosen: str | None, nodes: int | None, numbers: dict[str, Any], as_json: bool) -> None:
    gpus = numbers.pop("gpus")
    for name, value in numbers.items():
        if value is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} plans without a run file, --search with one: remove one of them"
            )
    if gpus is not None and nodes is not None:
        raise click.UsageError(f"--gpus {gpus} and --nodes {nodes} contradict each other: give only one of them")
    loaded = load_run_file(locate_run_file(chosen))
    slurm = loaded.file.slurm
    many = gpus if gpus is not None else (nodes or slurm.nodes) * slurm.gpus_per_node
    options = find_problems(loaded, None).options
    found = layout_search(loaded.file.run.name, slurm, loaded.file.gpu, _expected_or_measured(loaded), options, many)
    if as_json:
        print_json("search", found)
    else:
        show_lines(search_lines(found))


def _plan_numbers(numbers: dict[str, Any], as_json: bool) -> None:
    inputs = Inputs(**numbers)
    sections = plan_inputs(inputs)
    if as_json:
        print_json("plan", NumbersPlan(inputs=inputs, **_by_key(sections)))
    else:
        show_lines(lines_of(sections))


def _plan_run(chosen: str | None, nodes: int | None, as_json: bool) -> None:
    loaded = load_run_file(locate_run_file(chosen))
    expect = _expected_or_measured(loaded)
    findings = find_problems(loaded, nodes, expect=expect)
    if (planned := findings.run) is not None:
        more = fewer_nodes_problem(planned.file, planned.arguments, planned.options)
        findings = replace(findings, problems=(*findings.problems, *filter(None, [more])))
    sections = run_sections(loaded, findings, expect)
    sections += _carbon(loaded.file.carbon, sections)
    sections += evaluation_sections(loaded.file.evaluation, findings.options)
    run = PlannedRun(name=loaded.file.run.name, file=str(loaded.path))
    if as_json:
        problems, warnings = list(findings.problems), list(findings.warnings)
        print_json("plan", RunPlan(run=run, problems=problems, warnings=warnings, **_by_key(sections)))
    else:
        show_lines([f"{run.name}   {run.file}", "", *lines_of(sections)])
        for line in bullet_lines("Not known yet", findings.warnings):
            message(line)
        for line in bullet_lines("This run cannot be submitted", findings.problems):
            message(line)
    if findings.problems:
        raise SystemExit(2)


def _carbon(carbon: CarbonTable, sections: Sequence[Section]) -> list[Section]:
    """Return the energy of the planned time, if `[carbon]` has the figures for it."""
    time = next((section.values for section in sections if isinstance(section.values, PlannedTime)), None)
    if carbon.gpu_power_w is None or time is None:
        return []
    section = carbon_section(carbon, of_table(carbon), time)
    return [] if section is None else [section]


def _by_key(sections: Sequence[Section]) -> dict[str, Any]:
    return {section.key: section.values for section in sections}


def _expected_or_measured(loaded: LoadedRun) -> ExpectTable:
    """Return the run's durations, measured ones if its output folder is known and has a log."""
    try:
        return with_measured(loaded.file.expect, measured(loaded.paths))
    except RunFileError:  # a variable in the output folder's path is not set here
        return loaded.file.expect
