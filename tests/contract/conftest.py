"""Clusters that several backends are tried on, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.conftest import RunningCluster
from tests.contract.scene import Scene, make_scene
from tests.contract.slurms import Slurm, running

Staged = tuple[RunningCluster, Scene]


@pytest.fixture(scope="session")
def staged() -> Iterator[Callable[[Slurm], Staged]]:
    """The cluster of a Slurm with the scene on it, made when it is first wanted."""
    made: dict[str, Staged] = {}
    with ExitStack() as held:

        def get(slurm: Slurm) -> Staged:
            if slurm.name not in made:
                cluster = held.enter_context(running(slurm))
                made[slurm.name] = (cluster, make_scene(cluster))
            return made[slurm.name]

        yield get
