"""Tiers: tests/cluster needs a real Slurm, tests/distributed several ranks.

With `pytest -n` a file's tests share a worker. Ranks need the processor, so all distributed tests have one worker. A
Slurm mostly waits, so the files of tests/cluster run on several workers, and each worker has a cluster of its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.native_libraries import build_into_own_folder
from tests.users import made_users

pytest_plugins = ("tests.golden",)

TIERS = ("cluster", "distributed")

#: The files below this folder that take longest, longest first: nothing long starts when other workers are done.
LONG = (
    "cluster/test_cron.py",
    "cluster/test_job.py",
    "cluster/test_requests.py",
    "cluster/test_failures.py",
    "cluster/test_one_writer.py",
    "cluster/test_hangs.py",
    "cluster/test_probe.py",
    "cluster/test_kill_switch.py",
    "cluster/test_evaluation.py",
)
#: What starts once for several files, or must not run twice at once -> those files.
SHARED = {
    "distributed": ("distributed/",),
    "accounting": ("cluster/test_local_cluster_bloom.py", "cluster/test_submit_examples.py"),
    "wheel": ("unit/test_wheel.py", "release/test_making.py"),
}


# How long one example takes says nothing on a machine with other work. `make nightly` chooses the second profile.
settings.register_profile("gate", deadline=None, max_examples=30)
settings.register_profile("nightly", deadline=None, max_examples=300)
settings.load_profile("gate")


def pytest_configure() -> None:
    # Tests change the queue behind the back of anyone who looks: each look asks Slurm. Those of the sharing set it.
    os.environ["OPSCTL_ANSWERS_AGE"] = "0"
    build_into_own_folder()
    # Folders that tests make for other Unix users are looked into by these.
    os.umask(0o022)
    # A shell that starts us in the background has SIGINT ignored, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(here).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
    items.sort(key=lambda item: _turn(item.path.relative_to(here).as_posix()))


def _turn(file: str) -> int:
    """Return when a file starts: the distributed tests, then the longest files, then tests/cluster, then others."""
    if file in LONG:
        return 1 + LONG.index(file)
    tier = file.partition("/")[0]
    return {"distributed": 0, "cluster": 1 + len(LONG)}.get(tier, 2 + len(LONG))


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each worker a file at a time, or all files of a group in `SHARED`.

    `--dist loadgroup` does this by marks, but xdist 3.8 does not see them with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        file = path.partition("tests/")[2]
        return next((group for group, files in SHARED.items() if file.startswith(files)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        try:
            import torch
        except ImportError:
            pytest.skip("needs torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and there is none here")


@pytest.fixture(autouse=True)
def _nothing_left_to_go_off() -> Iterator[None]:
    """No countdown goes on after its test: a hard end would end the process that runs the next ones."""
    yield
    left = [one for one in threading.enumerate() if isinstance(one, threading.Timer) and not one.finished.is_set()]
    for one in left:
        one.cancel()
    assert not left, left


@pytest.fixture(autouse=True)
def _as_it_was_found() -> Iterator[None]:
    """No test leaves a signal's handler, or this process less eager, to those that come after it."""
    handlers, niceness = _handlers(), os.getpriority(os.PRIO_PROCESS, 0)
    yield
    left = {number: handler for number, handler in _handlers().items() if handler != handlers[number]}
    for number in left:
        signal.signal(number, handlers[number])
    found = os.getpriority(os.PRIO_PROCESS, 0)
    if found != niceness:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    assert not left, left
    assert found == niceness


def _handlers() -> dict[signal.Signals, Any]:
    """Of every signal with a name; None where it is none of Python's."""
    return {number: signal.getsignal(number) for number in signal.Signals}


@pytest.fixture
def unix_user() -> Iterator[Callable[..., str]]:
    """Return a function that makes Unix users; see `made_users`."""
    with made_users() as make:
        yield make
