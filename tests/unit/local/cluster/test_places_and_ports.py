"""Short paths for sockets, and ports that no two clusters share."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.tcp_ports import is_free
from opsctl.jobs.runner.launch import free_port
from opsctl.local.cluster import ports
from opsctl.local.cluster.files import link_root, places_of, unlink_root

#: sun_path of sockaddr_un, with its final zero. Source: unix(7).
SOCKET_PATH_BYTES = 108


def test_a_short_plain_folder_is_used_as_it_is() -> None:
    assert places_of(Path("/srv/oc1")).root == Path("/srv/oc1")


@pytest.mark.parametrize("name", ["with blank", "quote'", "ünï", "$(x)", "d" * 60, "comma,bracket[1-2]"])
def test_any_other_folder_gets_a_short_link(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    places = places_of(folder)
    link_root(places)
    try:
        assert places.root.parent == Path("/tmp")
        assert places.root.resolve() == folder.resolve()
        link_root(places)
        node = "jean-zay-iam52"
        longest = places.spool / node / f"{node}_4294967295.4294967295.4294967295"
        assert len(os.fsencode(longest)) < SOCKET_PATH_BYTES
    finally:
        unlink_root(places)
    assert not places.root.is_symlink()
    assert folder.is_dir()


def test_a_link_that_is_somebody_elses_is_refused(tmp_path: Path) -> None:
    places = places_of(tmp_path / "a b")
    places.root.symlink_to("/nonexistent")
    try:
        with pytest.raises(OpsctlError, match=str(places.root)):
            link_root(places)
    finally:
        places.root.unlink()


def test_two_reservations_at_once_share_no_port() -> None:
    with ports.reserve(52) as first, ports.reserve(52, first) as second, ports.reserve(100) as third:
        all_ports = [port for one in (first, second, third) for port in (one.slurmctld, one.slurmdbd, *one.slurmds)]
        assert len(set(all_ports)) == 3 * 2 + 52 + 52 + 100
        assert len({first.first_job_id, second.first_job_id, third.first_job_id}) == 3
        assert all(is_free(port) for port in all_ports)


def test_the_first_jobs_of_all_clusters_on_one_machine_have_different_rendezvous_ports() -> None:
    clusters = [ports.Ports(start, start + 1, ()) for start in range(ports._FIRST, ports._LAST, ports._BLOCK)]
    first = [free_port(one.first_job_id + job, lambda _port: True) for one in clusters for job in range(90)]
    assert len(set(first)) == len(first) > 17_000


def test_a_reservation_keeps_the_old_ports_while_nobody_took_them() -> None:
    with ports.reserve(4) as before:
        pass
    with ports.reserve(4, before) as again:
        assert again == before
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before.slurmds[2]))
        taken.listen()
        with ports.reserve(4, before) as moved:
            assert before.slurmds[2] not in (moved.slurmctld, moved.slurmdbd, *moved.slurmds)
