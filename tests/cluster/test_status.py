"""`opsctl status` beside a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.conftest import RunningCluster
from tests.cluster.watched_runs import make_run
from tests.printed_json import printed
from tests.tiny_run import ready


def test_status_joins_the_queue_the_log_and_the_checkpoints(local_cluster: RunningCluster, tmp_path: Path) -> None:
    run = make_run(local_cluster, tmp_path)
    run.write_log(100)
    run.write_checkpoint(80)
    local_cluster.wait_for_state(run.sbatch(), "RUNNING")
    status = printed("status", run.opsctl.ok("status", "--json"))
    assert status["state"] == "running" and status["job"]["own"]
    assert status["progress"] | {"percent": 0} == {
        "iteration": 100,
        "total_iterations": 160,
        "consumed_samples": 3200,
        "total_samples": None,
        "percent": 0,
    }
    assert status["speed"] == {"seconds_per_iteration": 0.5, "samples_per_second": 64.0, "tflops_per_gpu": 1.5}
    assert status["left_s"] == 30.0  # 60 iterations of half a second
    assert (status["loss"]["lm_loss"], status["checkpoint"]["iteration"]) == (6.0, 80)
    screen = run.opsctl.ok("status")
    assert "demo  RUNNING for 0:00:" in screen and "iteration 100 of 160" in screen and "iteration 80, saved" in screen


def test_a_drained_node_of_the_running_job_is_shown_with_its_reason(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = make_run(local_cluster, tmp_path)
    local_cluster.wait_for_state(run.sbatch("--nodelist=node2"), "RUNNING")
    assert printed("status", run.opsctl.ok("status", "--json"))["findings"] == []
    for node in ("node2", "node3"):
        local_cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=bad GPU 3; ask, then fix")
    found = printed("status", run.opsctl.ok("status", "--json"))["findings"]
    (only,) = found
    assert (only["check"], only["severity"]) == ("nodes", "warning")
    assert re.search(r"\bnode2\b.*: bad GPU 3; ask, then fix$", only["text"])


def test_an_empty_queue_is_an_empty_list_for_programs_and_a_sentence_for_people(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = make_run(local_cluster, tmp_path)
    assert printed("queue", run.opsctl.ok("queue", "--json")) == []
    answer = run("queue")
    assert (answer.code, answer.out) == (0, "") and "no jobs of" in answer.err
    assert printed("attempts", run.opsctl.ok("attempts", "--json")) == []


def test_a_finished_training_is_said_to_be_so_and_no_alarm(local_cluster: RunningCluster, tmp_path: Path) -> None:
    from opsctl.run.config.load import load_run_file
    from opsctl.run.state.revisions import publish

    run = make_run(local_cluster, tmp_path)
    file = tmp_path / "run.toml"
    data = '[data]\ndata_path = "corpus"\nvocab_size = 1024\n'
    file.write_text(file.read_text() + TRAINER + data)
    publish(ready(load_run_file(file)))
    run.write_checkpoint(159)
    answer = run("watch", "training")
    assert answer.code == 2 and "not RUNNING or SCHEDULED" in answer.out
    run.write_checkpoint(160)
    answer = run("watch", "training")
    assert answer.code == 0
    assert re.search(r"PULSE: demo is finished: iteration 160, 5120 samples \[[+-]\d\d:\d\d\]\n$", answer.out)
    assert printed("status", run.opsctl.ok("status", "--json"))["state"] == "finished"
    assert "opsctl revise" not in run.opsctl.ok("status")
    file.write_text(file.read_text().replace("5_120", "6_000"))
    assert "opsctl revise" in run.opsctl.ok("status")


TRAINER = """
[trainer]
num_layers = 2
hidden_size = 64
num_attention_heads = 4
seq_length = 64
max_position_embeddings = 64
micro_batch_size = 1
global_batch_size = 32
train_samples = 5_120
lr = 1e-3
"""


def test_a_jobs_name_steers_no_terminal(local_cluster: RunningCluster, tmp_path: Path) -> None:
    run = make_run(local_cluster, tmp_path)
    job = run.sbatch("--hold", name="a\x1b[2J\x9bb")
    out = run.opsctl.ok("queue")
    assert r"a\x1b[2J\x9bb" in out and str(job) in out
    assert all(character.isprintable() or character == "\n" for character in out)
