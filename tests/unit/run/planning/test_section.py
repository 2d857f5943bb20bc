"""A plan as text."""

from __future__ import annotations

from dataclasses import replace

from opsctl.run.config.schema import ExpectTable
from opsctl.run.planning.costs import time_sections
from opsctl.run.planning.gpus import KNOWN, AssumedSpeed
from opsctl.run.planning.schedule import ramp_of
from opsctl.run.planning.section import Section, lines_of
from tests.unit.trainer.recipe.test_throughput import BLOOM, GPUS, bloom
from trainer.recipe.layout import Layout
from trainer.recipe.options import parse


def time_of(gpu: str) -> Section:
    """Return the time of a plan of BLOOM at an assumed speed of that GPU."""
    options = parse(BLOOM.split())
    ramp = ramp_of(options)
    assert ramp is not None
    speed = AssumedSpeed(gpu, 0.4, 312.0)
    return next(time_sections(ExpectTable(), options, bloom().shape, ramp, Layout(GPUS, 4, 12, 8), speed))


def test_a_label_and_its_value_never_run_together() -> None:
    sections = [time_of(gpu) for gpu in ("this GPU", *(one.name for one in KNOWN))]
    sections.append(replace(sections[0], rows=(("a label that is longer than its column", "3 days"),)))
    for section in sections:
        shown = "\n".join(lines_of([section]))
        for label, value in section.rows:
            assert f"  {label}  " in shown, shown
            assert value.split()[0] in shown.split(f"  {label}  ")[1].split()[0]
