"""The contract of SlurmClient, on real Slurms, by each backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.slurm.backends import BACKEND_VARIABLE, client_for
from opsctl.slurm.client import SlurmClient
from tests.cluster.conftest import RunningCluster
from tests.contract.changing import CHANGES, Change
from tests.contract.conftest import Staged
from tests.contract.scene import Scene
from tests.contract.sentences import SENTENCES, Sentence
from tests.contract.slurms import Slurm, parameters

Stage = tuple[RunningCluster, Scene, SlurmClient]


@pytest.fixture(params=parameters())
def stage(request: pytest.FixtureRequest, staged: Callable[[Slurm], Staged], monkeypatch: pytest.MonkeyPatch) -> Stage:
    slurm, backend = request.param
    cluster, scene = staged(slurm)
    monkeypatch.setenv(BACKEND_VARIABLE, backend)
    return cluster, scene, client_for(cluster.cluster, 60)


@pytest.mark.cluster
@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda one: one.__name__)
def test_while_nothing_changes(stage: Stage, sentence: Sentence) -> None:
    _, scene, slurm = stage
    sentence(slurm, scene)


@pytest.mark.cluster
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_what_is_changed(stage: Stage, change: Change) -> None:
    cluster, _, slurm = stage
    change(cluster, slurm)
