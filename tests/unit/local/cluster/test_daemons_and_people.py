"""The message of a failing daemon's log; the sacctmgr commands for a shape's accounts; the contents of cluster.json."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.local.cluster import daemons
from opsctl.local.cluster.daemons import MARKER, end, is_daemon_of, pid_of, processes_of
from opsctl.local.cluster.files import Description, places_of, read_description, write_description
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.spec import Spec, plain
from opsctl.local.cluster.startup import is_ready
from opsctl.run.state.chosen_cluster import find_cluster
from opsctl.slurm.cluster import Cluster


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("[2026-01-02T03:04:05.678] fatal: no such plugin\n", "fatal: no such plugin"),
        ("[x] error: cannot bind\n[x] fatal: going down\n[x] bye\n", "error: cannot bind; fatal: going down"),
        ("2026-01-02 03:04:05 0 [ERROR] mariadbd: Can't lock\n", "[ERROR] mariadbd: Can't lock"),
        ("started\nready\n", "ready"),
    ],
)
def test_the_complaint_is_the_logs_own_words(tmp_path: Path, log: str, said: str) -> None:
    path = tmp_path / "daemon.log"
    path.write_text(log)
    assert daemons.complaint(path) == f"{said} ({path})"


def test_an_empty_or_absent_log_is_said_so(tmp_path: Path) -> None:
    assert str(tmp_path / "none.log") in daemons.complaint(tmp_path / "none.log")
    (tmp_path / "empty.log").touch()
    assert str(tmp_path / "empty.log") in daemons.complaint(tmp_path / "empty.log")


def test_waiting_ends_when_the_daemon_is_gone_or_time_is_up(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("fatal: why\n")
    with pytest.raises(OpsctlError, match=r"^x [^.]*: fatal: why"):
        daemons.await_ready("x", log, lambda: False, lambda: False, 10)
    with pytest.raises(OpsctlError, match=r"^x .* 0\.1 s: fatal: why"):
        daemons.await_ready("x", log, lambda: False, lambda: True, 0.1)


def test_a_marked_process_is_the_clusters_and_no_other_is(tmp_path: Path) -> None:
    places = places_of(tmp_path)
    marked = subprocess.Popen(["sleep", "60"], env={**os.environ, MARKER: str(places.folder)})
    neighbour = subprocess.Popen(["sleep", "60"], env={**os.environ, MARKER: f"{places.folder}2"})
    try:
        # The child has our environment until it has become `sleep`.
        deadline = time.monotonic() + 60
        while [p.pid for p in processes_of(places)] != [marked.pid]:
            assert time.monotonic() < deadline
        places.pid_file("slurmctld").parent.mkdir()
        places.pid_file("slurmctld").write_text(str(marked.pid))
        places.pid_file("munged").write_text(str(neighbour.pid))
        places.pid_file("slurmdbd").write_text("rubbish")
        assert pid_of(places, "slurmctld") == marked.pid
        assert pid_of(places, "munged") is None
        assert pid_of(places, "slurmdbd") is None
        end([marked.pid], grace_s=60)
        assert not is_daemon_of(places, marked.pid)
        assert processes_of(places) == []
        assert neighbour.poll() is None
    finally:
        for process in (marked, neighbour):
            process.kill()
            process.wait()


def test_what_ignores_sigterm_or_is_stopped_is_ended_after_its_grace() -> None:
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.1; done"], stdout=subprocess.PIPE, text=True
    )
    stopped = subprocess.Popen(["sleep", "60"])
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    stopped.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    end([stubborn.pid, stopped.pid], grace_s=0.3)
    assert time.monotonic() - began >= 0.3
    for process in (stubborn, stopped):
        process.wait(timeout=60)
        process.stdout and process.stdout.close()


@pytest.mark.parametrize("spec", [plain("a", nodes=12, accounting=True), plain("b", one_slurmd=True)])
def test_cluster_json_gives_back_what_was_written_and_finds_the_cluster(tmp_path: Path, spec: Spec) -> None:
    places = places_of(tmp_path)
    cluster = Cluster("a", "/x/slurm.conf", ("/x/bin",), ("/x/lib",))
    ports = Ports(1, 2, tuple(range(3, 3 + len(spec.node_names))))
    description = Description(cluster, spec, ports, "ann")
    assert read_description(places) is None
    write_description(places, description)
    assert read_description(places) == description
    assert find_cluster(str(tmp_path)) == cluster


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"spec": 3}', "{"])
def test_a_damaged_cluster_json_is_one_line_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    places = places_of(tmp_path)
    places.description.write_text(text)
    with pytest.raises(OpsctlError, match=f"{places.description}.*opsctl local-cluster up"):
        read_description(places)


@pytest.mark.parametrize(
    ("state", "ready"),
    [
        *((state, True) for state in ("idle", "mixed", "allocated", "drained")),
        *((state, False) for state in ("idle*", "down", "down*", "unknown", "inval")),
    ],
)
def test_a_node_is_ready_when_its_slurmd_has_registered(state: str, ready: bool) -> None:
    assert is_ready(state) is ready


def test_names_of_ten_nodes_sort_as_slurm_folds_them() -> None:
    group = plain(nodes=12).node_groups[0]
    assert group.folded == "node[01-12]"
    assert list(group.names) == sorted(group.names)
