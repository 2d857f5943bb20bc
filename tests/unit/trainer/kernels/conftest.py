"""The device for CUDA kernels: the emulator in every order of threads, and with `-m gpu` a CUDA device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.emulator.replayed import RECORD_VARIABLE, LaunchKeeper
from tests.emulator.runner import ORDERS, EmulatedRunner, needs_gxx
from trainer.kernels.native.cuda_driver import CudaDriver, CudaRunner
from trainer.kernels.native.launching import KernelRunner
from trainer.kernels.native.libraries import NotBuilt, cubins_for


@dataclass(frozen=True)
class Machine:
    """Where a test's tensors are to lie, and what runs kernels there.

    runners: on the emulator one for each order in which threads take turns; on a GPU there is one.
    """

    device: torch.device
    runners: tuple[KernelRunner, ...]

    @property
    def runner(self) -> KernelRunner:
        """For what is shown by any order."""
        return self.runners[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where launches are kept, one case of each test comes before any test's next: soon there is one of each kernel."""
    if RECORD_VARIABLE in os.environ:
        EmulatedRunner.listener = LaunchKeeper(Path(os.environ[RECORD_VARIABLE]))
        turns: Counter[str] = Counter()
        place = {}
        for item in items:
            name = item.nodeid.partition("[")[0]
            turns[name] += 1
            place[item.nodeid] = turns[name]
        items.sort(key=lambda item: place[item.nodeid])


@pytest.fixture(autouse=True)
def _end_when_all_is_kept() -> Iterator[None]:
    yield
    if isinstance(EmulatedRunner.listener, LaunchKeeper) and EmulatedRunner.listener.has_all:
        pytest.exit("a launch of every kernel is kept", 0)


@pytest.fixture(
    params=[pytest.param("emulator", marks=needs_gxx), pytest.param("cuda", marks=pytest.mark.gpu)], scope="session"
)
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "emulator":
        if RECORD_VARIABLE in os.environ:
            return Machine(torch.device("cpu"), (EmulatedRunner(),))  # other orders launch nothing else
        return Machine(torch.device("cpu"), tuple(EmulatedRunner(order=order) for order in ORDERS))
    device = torch.device("cuda", 0)
    cubins = cubins_for(torch.cuda.get_device_capability(device))
    if isinstance(cubins, NotBuilt):
        pytest.fail(cubins.why)
    runner = CudaRunner(CudaDriver(), 0, cubins, lambda: int(torch.cuda.current_stream(device).cuda_stream))
    return Machine(device, (runner,))
