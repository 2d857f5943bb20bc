"""Node counts that fit, by the sample from which on they do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.planning.plan import NodesAlongTheRamp
from opsctl.run.planning.schedule import nodes_section
from trainer.recipe.schedule import BatchRamp


def fitting(ramp: BatchRamp, micro: int, model: tuple[int, int], per_node: int) -> list[tuple[int, int, list[int]]]:
    tensor, pipeline = model
    options = {
        "micro_batch_size": micro,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
    }
    section = nodes_section(per_node, options, ramp)
    if section is None:
        return []
    assert isinstance(section.values, NodesAlongTheRamp)
    return [(one.first_sample, one.batch_size, one.nodes) for one in section.values.stages]


def test_a_ramp_in_doublings_of_its_start_takes_more_nodes_as_it_grows() -> None:
    """Batches 16, 32, 48, 64 of one sample each, one GPU a replica, four a node: 48 has 16 in common with 64."""
    found = fitting(BatchRamp(16, 16, 480, 64), 1, (1, 1), 4)
    assert [(batch, nodes) for _, batch, nodes in found] == [(16, [1, 2, 4]), (64, [1, 2, 4, 8, 16])]
    assert fitting(BatchRamp(16, 48, 100, 64), 2, (2, 2), 4)[0] == (0, 16, [1, 2, 4, 8])


def test_without_a_ramp_or_a_micro_batch_that_fits_there_is_nothing_to_say() -> None:
    assert fitting(BatchRamp.constant(64), 1, (1, 1), 4) == []
    assert fitting(BatchRamp(4, 4, 100, 8), 3, (1, 1), 1) == []


@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.integers(1, 300), st.integers(1, 3), st.integers(1, 4)
)
def test_a_node_count_fits_where_every_later_batch_divides(
    start: int, increment: int, times: int, samples: int, micro: int, per_node: int
) -> None:
    ramp, model = BatchRamp(start, increment, samples, start + increment * times), 2
    found = fitting(ramp, micro, (model, 1), per_node)
    later = [(stage.first_sample, stage.batch_size) for stage in ramp.stages()]
    for sample, _, nodes in found:
        batches = [batch for first, batch in later if first >= sample]
        whole = [n for n in range(1, 200) if n * per_node % model == 0]
        assert nodes == [n for n in whole if all(b % (micro * (n * per_node // model)) == 0 for b in batches)]
