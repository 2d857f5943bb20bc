"""What an on-call engineer does with a run of another program, on a real Slurm."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.test_programs import PROGRAM
from tests.cluster.trainings import START_S, Training, environment_script
from tests.printed_json import printed

RUN_FILE = """
[run]
name = "counts"
environment = {environment}

[slurm]
nodes = 2
gpus_per_node = 1
time = "10:00"
exit_margin = "1:00"

[program]
command = ["python", "misbehaving.py", "counts", "100000"]
launch = "ranks"
stop = "none"
checkpoints = "saved/step-*.pt"
progress = 'step (?P<iteration>\\d+)/(?P<total>\\d+) loss (?P<loss>\\S+)'
steps = 100000

[retention]
last = 3
full_percent = 0

[alerts]
channels = ["json://127.0.0.1:{port}"]
"""


@contextmanager
def received() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The port of a server, and the messages that it gets."""
    messages: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, messages
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.nightly
def test_a_run_of_another_program_is_held_requeued_revised_moved_off_a_lost_node_and_reported(
    local_cluster: RunningCluster,
) -> None:
    with open_folder() as folder, received() as (port, messages):
        opsctl = Opsctl(local_cluster, folder)
        training = Training(opsctl)
        shutil.copy(PROGRAM.with_name("misbehaving.py"), folder)
        run_file = folder / "run.toml"
        run_file.write_text(RUN_FILE.format(environment=environment_script(folder), port=port))
        chain = training.submit("1-9%1")

        def attempt(number: int) -> dict[str, Any]:
            """Wait until the attempt trains, six steps at least, and has saved."""
            wait_until(training.paths.attempts.exists, START_S, "the first attempt")
            wait_until(lambda: len(training.recorded()) >= number, START_S, f"attempt {number}")
            goal = (training.recorded()[number - 1]["iteration_at_start"] or 0) + 6
            training.wait_for_log(f"step {goal}/")
            folder = training.paths.checkpoints / f"global_step{goal - goal % 5}"
            wait_until(folder.exists, START_S, f"the adoption of {folder.name}")
            return training.recorded()[number - 1]

        def pending(fields: str) -> list[str]:
            return local_cluster.run("squeue", "-h", "-t", "PENDING", "-o", fields).stdout.splitlines()

        attempt(1)
        opsctl.ok("request", "hold-queued", "--why", "a test")
        wait_until(lambda: all("Held" in row for row in pending("%r")), START_S, "the held tasks")
        opsctl.ok("request", "release-queued")
        wait_until(lambda: not any("Held" in row for row in pending("%r")), START_S, "the released tasks")
        opsctl.ok("request", "requeue")
        attempt(2)
        first, second = training.recorded()[:2]
        assert first["reason"] == "requeued" and second["iteration_at_start"] == first["checkpoint_at_end"] > 0

        run_file.write_text(run_file.read_text().replace('time = "10:00"', 'time = "12:00"'))
        refused = opsctl("revise")
        assert refused.code == 1 and "--resubmit" in refused.err
        opsctl.ok("revise", "--resubmit")
        after = opsctl.chains()[-1]["chain"]
        assert after != chain and {int(row) for row in pending("%F")} <= {chain, after}

        lost = second["nodes"][1]
        local_cluster.kill_node(lost)
        local_cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        attempt(3)
        second, third = training.recorded()[1:3]
        assert second["reason"] == "node-failure" and lost in second["lost_nodes"]
        assert lost not in third["nodes"] and third["iteration_at_start"] == second["checkpoint_at_end"]
        assert third["revision"] != second["revision"]
        opsctl.ok("exclude", "add", lost, "--why", "it was lost")
        assert lost in opsctl.ok("exclude", "list")

        assert re.search(r"\b100,?000\b", opsctl.ok("status"))
        opsctl.ok("kill-switch", "trigger")
        for job in {chain, after}:
            training.wait_until_left(job)
        opsctl.ok("kill-switch", "deactivate")
        opsctl("watch", "all", "--alert")  # that nothing runs or is scheduled
        wait_until(lambda: messages, START_S, "an alert")
        assert any("counts" in json.dumps(one) for one in messages)
        shown = printed("attempts", opsctl.ok("attempts", "--json"))
        assert [one["reason"] for one in shown][:3] == ["requeued", "node-failure", "kill-switch"]
        assert re.search(rf"\b{lost}\b", opsctl("triage").out)
        opsctl.ok("report")
        assert (training.paths.page).exists()
        opsctl.ok("checkpoints", "verify")
        kept = {one["iteration"] for one in printed("checkpoints list", opsctl.ok("checkpoints", "list", "--json"))}
        opsctl.ok("checkpoints", "prune", "--yes")
        left = {one["iteration"] for one in printed("checkpoints list", opsctl.ok("checkpoints", "list", "--json"))}
        assert left == set(sorted(kept)[-3:])
        assert {int(one.stem.partition("-")[2]) for one in (folder / "saved").iterdir()} >= left
