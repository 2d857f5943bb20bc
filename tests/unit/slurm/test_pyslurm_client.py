"""Errors of the pyslurm backend, and its program that ends or hangs.

Where pyslurm itself is needed the contract (tests/contract) tries it; here a program of ours stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from opsctl.core.errors import SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.slurm import pyslurm_client
from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.pyslurm_client import PyslurmClient

Package = Callable[..., None]
PACKAGE = """
import os, sys, time
__version__ = "25.11.2"
class PyslurmError(Exception): pass
class Jobs:
    @staticmethod
    def load():
        {load}
{at_import}
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A Slurm of which only its release is known, and a pyslurm made for it."""
    (tmp_path / "slurm.conf").touch()
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho slurm 25.11.1\n")
    squeue.chmod(0o755)
    monkeypatch.setattr(metadata, "version", lambda _: "25.11.2")
    return Cluster(slurm_conf=str(tmp_path / "slurm.conf"), bin_folders=(str(tmp_path),))


def client(slurm: Cluster, seconds: float = 20.0) -> PyslurmClient:
    return PyslurmClient(slurm, Deadline(seconds))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Has the program find a pyslurm of ours."""

    def write(load: str = "return {}", at_import: str = "") -> None:
        (tmp_path / "pyslurm.py").write_text(PACKAGE.format(load=load, at_import=at_import))
        own = pyslurm_client._own_folder()
        monkeypatch.setattr(pyslurm_client, "_own_folder", lambda: f"{tmp_path}:{own}")

    return write


def test_a_missing_pyslurm_is_refused(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(SlurmUnasked, match=r"pyslurm.*pip install"):
        client(slurm).jobs()


def test_a_pyslurm_of_another_release_is_refused(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "24.11.0")
    with pytest.raises(SlurmUnasked, match=r"24\.11\.0.*25\.11\.1"):
        client(slurm).jobs()


def test_a_configuration_that_is_not_there_is_refused(slurm: Cluster) -> None:
    with pytest.raises(SlurmUnasked, match=r"SLURM_CONF=/nowhere/slurm\.conf"):
        client(Cluster(slurm_conf="/nowhere/slurm.conf", bin_folders=slurm.bin_folders)).jobs()


@pytest.mark.parametrize(
    ("words", "error", "fact"),
    [
        ("fatal: Could not establish a configuration source", SlurmUnasked, "Slurm"),
        ("fatal: out of cheese", SlurmError, "out of cheese"),
    ],
)
def test_a_program_that_libslurm_ends_is_an_error_with_its_words(
    slurm: Cluster, package: Package, words: str, error: type[Exception], fact: str
) -> None:
    package(at_import=f"print({words!r}, file=sys.stderr); os._exit(1)")
    with pytest.raises(error, match=fact):
        client(slurm).jobs()


def test_a_program_that_hangs_is_ended_and_slurm_counts_as_unreachable(slurm: Cluster, package: Package) -> None:
    package(load="time.sleep(600)")
    with pytest.raises(SlurmUnreachable, match="pyslurm"):
        client(slurm, 1.5).jobs()


def test_a_refusal_has_the_words_of_slurm_and_the_program_starts_again(slurm: Cluster, package: Package) -> None:
    package(load="raise PyslurmError('Access/permission denied')")
    asking = client(slurm)
    with pytest.raises(SlurmError, match=r"Access/permission denied"):
        asking.jobs()
    package(load="return {}")
    assert asking.jobs() == []


def test_a_controller_that_does_not_answer_is_unreachable(slurm: Cluster, package: Package) -> None:
    package(load="raise PyslurmError('Unable to contact slurm controller (connect failure)')")
    with pytest.raises(SlurmUnreachable, match="unknown"):
        client(slurm).jobs()


def test_no_question_starts_no_program(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyslurm_client, "run_program", None)
    asking = client(slurm)
    assert asking.jobs(users=[]) == asking.jobs(job_ids=[]) == []
    refused = PyslurmClient(Cluster(out_of_bounds="not from here"), Deadline(1))
    with pytest.raises(SlurmUnreachable, match="not from here"):
        refused.jobs()
