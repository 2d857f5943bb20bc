"""Address and port where launchers meet."""

from __future__ import annotations

import socket

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.tcp_ports import is_free
from opsctl.jobs.runner.launch import FIRST_PORT, PORTS, free_port, master_address


def test_a_name_that_resolves_is_the_address() -> None:
    def never(node: str) -> str:
        raise AssertionError(node)

    assert master_address("x01", never, resolves=lambda _name: True) == "x01"


def test_a_name_that_does_not_resolve_gives_way_to_slurms_address() -> None:
    assert master_address("x01", lambda node: f"addr-of-{node}", resolves=lambda _name: False) == "addr-of-x01"


def test_two_jobs_on_one_host_start_from_different_ports() -> None:
    ports = {free_port(job_id, lambda _port: True) for job_id in range(1, 1000)}
    assert len(ports) == 999
    assert min(ports) >= FIRST_PORT and max(ports) < FIRST_PORT + PORTS < 32768


def test_a_port_somebody_listens_on_is_passed_over() -> None:
    first = next(job_id for job_id in range(1, 500) if is_free(FIRST_PORT + job_id * 13))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", FIRST_PORT + first * 13))
        listener.listen()
        assert not is_free(FIRST_PORT + first * 13)
        assert free_port(first) > FIRST_PORT + first * 13


def test_no_free_port_is_said() -> None:
    with pytest.raises(OpsctlError, match=rf"\b5\b.*\b{FIRST_PORT + 13}\b"):
        free_port(1, lambda _port: False, tries=5)
