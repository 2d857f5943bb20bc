"""Plan a run file, section by section. Pure: reads no file and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from opsctl.run.checkpoints.adopted import existing_problem
from opsctl.run.config.checks import Findings, find_problems
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.program import program_of
from opsctl.run.config.schema import ExpectTable, GpuTable, RetentionTable, SlurmTable
from opsctl.run.planning.costs import checkpoint_section, job_section, time_sections
from opsctl.run.planning.fewer_nodes import SmallerLayout, smaller_layouts
from opsctl.run.planning.gpus import asks_for_v100, assumed_speed
from opsctl.run.planning.program import program_section
from opsctl.run.planning.schedule import batch_section, nodes_section, ramp_of, schedule_section
from opsctl.run.planning.section import Section
from opsctl.run.planning.sizes import layout_sections, memory_section, model_sections, model_shape
from trainer.recipe.layout import Layout
from trainer.recipe.options import Options

#: Layouts on fewer nodes that are printed, from the one with the most nodes.
_FEWER = 8


def plan_sections(
    slurm: SlurmTable,
    expect: ExpectTable,
    options: Options,
    layout: Layout | None,
    retention: RetentionTable | None = None,
    gpu: GpuTable | None = None,
    fewer: Sequence[SmallerLayout] = (),
) -> list[Section]:
    """Return every section of a valid run file, without those that cannot be computed.

    expect: durations measured in the log, in place of the run file's. options: of the three tables, complete or not.
    layout: None if the ranks do not divide. fewer: the layouts on fewer nodes.
    """
    shape, ramp = model_shape(options), ramp_of(options)
    sections: list[Section] = []
    if layout is not None:
        sections += layout_sections(slurm.gpus_per_node, options, layout)
    if shape is not None:
        sections += model_sections(options, shape)
    if ramp is not None:
        sections.append(batch_section(options, ramp, layout))
        sections += filter(None, [nodes_section(slurm.gpus_per_node, options, ramp)])
        sections.append(schedule_section(options))
    if shape is not None:
        sections.append(checkpoint_section(options, shape, expect, retention))
        sections.append(memory_section(options, shape, layout, asks_for_v100(slurm)))
        if ramp is not None and layout is not None:
            assumed = assumed_speed(gpu or GpuTable(), slurm, shape.precision)
            sections += time_sections(expect, options, shape, ramp, layout, assumed)
    return [*sections, job_section(slurm, expect, fewer)]


def run_sections(loaded: LoadedRun, found: Findings, expect: ExpectTable) -> list[Section]:
    """Return the sections of a run file; of a program other than our trainer only its start, its stop and its jobs."""
    program = program_of(found.run.file if found.run else loaded.file, loaded.folder)
    if program is not None:
        refused = existing_problem(loaded.paths, program)
        return [program_section(program, refused), job_section(loaded.file.slurm, expect)]
    file, run = loaded.file, found.run
    smaller = () if run is None else tuple(islice(smaller_layouts(run.file, run.arguments, run.options), _FEWER))
    return plan_sections(file.slurm, expect, found.options, found.layout, file.retention, file.gpu, smaller)


def expected_days(loaded: LoadedRun) -> str:
    """Return the days and GPU hours of a run file's plan: `31.35 days, 192,614 GPU hours`."""
    sections = run_sections(loaded, find_problems(loaded, files=False), loaded.file.expect)
    return next(one.rows[0][1] for one in sections if one.key == "time")
