from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli.carbon import command
from opsctl.transfer.hub import far_log
from opsctl.transfer.hub.far_files import FarFiles, repo_of
from opsctl.transfer.hub.far_run import FarRun, far_run
from opsctl.ui.status.hub_status import far_lines, printed_far
from tests.hub_server import Fault, Hub
from tests.unit.diagnosis.carbon.trackers import rank_file
from tests.unit.transfer.hub.far import LOG, REPO, hub, pushes
from tests.unit.transfer.hub.far_runs import PULSE, checkpoint_of, log_of

__all__ = ["hub"]
FILES = {"layer_00.pt": b"weights", "bf16_zero_pp_rank_0.pt": b"moments"}


def record(folder: Path, node: int) -> bytes:
    """A node's tracker, in a folder `carbon` too."""
    text = rank_file([(f"run-{node}", f"0{node + 1}:00:00", 1.0, 1.5 + node)])
    (folder / "carbon").mkdir(exist_ok=True)
    (folder / "carbon" / f"emissions-7-x0{node}-a.csv").write_text(text)
    return text.encode()


def look() -> FarRun:
    return far_run(FarFiles(repo_of(REPO)))


def screen(run: FarRun) -> str:
    return "\n".join(far_lines(run, 120, colour=False))


def test_progress_speed_and_loss_are_those_of_the_logs_end(hub: Hub) -> None:
    pushes(hub, log_of(300) + f"{PULSE}\n".encode())()
    told, text = printed_far(look()), screen(look())
    assert "30.0 %  iteration 300 of 1000, 9600 samples" in text
    assert "2 s/iteration, 16 samples/s, 100 TFLOPs per GPU" in text
    assert told.left_s == 700 * 2 and "23:20 " in text
    assert told.loss is not None and told.loss.lm_loss == pytest.approx(4.7) and "4.7 at iteration 300" in text
    assert told.watchdog == PULSE.partition("PULSE: ")[2] and "watchdog     tiny " in text
    assert "queue" in told.not_known


def test_how_old_the_copy_is_is_told_by_the_hubs_clock(hub: Hub) -> None:
    hub.clock_skew_s = -7200.0  # or ours is ahead of it
    pushes(hub, log_of(3))()
    hub.commit(REPO, {"README.md": b"# newer, and not the log\n"})
    hub.clock_skew_s = -3600.0
    run = look()
    assert 3590 < (printed_far(run).log_age_s or 0) < 3660
    assert " 1:00:0" in screen(run).splitlines()[0]
    assert abs(run.at - (datetime.now(UTC) - timedelta(hours=1))) < timedelta(minutes=1)


def test_a_long_logs_end_is_enough(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.far_run.TAIL_BYTES", 20_000)
    pushes(hub, b"old\n" * 100_000 + log_of(60))()
    run = look()
    assert run.measured.last_iteration is not None and run.measured.last_iteration.iteration == 60
    first, last = hub.asked("resolve")[1].headers["range"].removeprefix("bytes=").split("-")
    assert int(last) + 1 - int(first) == 20_000


def test_the_newest_checkpoint_of_which_every_file_is_there_counts(hub: Hub) -> None:
    half = checkpoint_of(30, FILES)
    del half["checkpoints/global_step30/layer_00.pt"]
    cut = checkpoint_of(40, FILES) | {"checkpoints/global_step40/layer_00.pt": b"wei"}
    unfinished = {"checkpoints/global_step50/layer_00.pt": b"weights"}
    hub.commit(
        REPO, {LOG: log_of(55), **checkpoint_of(10, FILES), **checkpoint_of(20, FILES), **half, **cut, **unfinished}
    )
    run = look()
    assert run.checkpoint is not None and run.checkpoint.manifest.iteration == 20
    assert [one.partition(" files")[0] for one in run.incomplete] == [
        "checkpoints/global_step40: 1 of 2",
        "checkpoints/global_step30: 1 of 2",
    ]
    assert "checkpoint   iteration 20, complete in checkpoints/global_step20, sent 0:00:0" in screen(run)


def test_a_checkpoint_of_another_iteration_or_a_damaged_manifest_is_none(hub: Hub) -> None:
    wrong = {
        f"checkpoints/global_step30/{path.rsplit('/')[-1]}": data for path, data in checkpoint_of(20, FILES).items()
    }
    hub.commit(REPO, {**wrong, "checkpoints/global_step40/manifest.json": b"{", **checkpoint_of(10, FILES)})
    run = look()
    assert run.checkpoint is not None and run.checkpoint.manifest.iteration == 10
    assert "global_step40: " in run.incomplete[0] and re.search("global_step30: .*iteration 20", run.incomplete[1])


@pytest.mark.parametrize("kind", ["branches", "tags"])
def test_a_checkpoint_with_a_branch_or_tag_of_its_own_is_found(hub: Hub, kind: str) -> None:
    hub.commit(REPO, {LOG: log_of(20), **checkpoint_of(10, FILES)})
    oid = hub._committed(REPO, "main", "there", "", dict(hub.files(REPO)))
    repo = hub.repos[REPO]
    kept = dict(hub.files(REPO))
    hub.commit(REPO, checkpoint_of(20, FILES, folder=""))
    getattr(repo, kind)["global_step20"] = repo.branches["main"]
    repo.branches["main"] = oid
    assert hub.files(REPO) == kept
    run = look()
    assert run.checkpoint is not None and run.checkpoint.where.endswith(" global_step20")


def test_an_empty_repository_says_so(hub: Hub) -> None:
    run = look()
    text = screen(run)
    assert far_log.MAIN_LOG in text
    told = printed_far(run)
    assert (told.log_commit, told.log_age_s, told.loss, told.checkpoint) == (None, None, None, None)


def test_a_finished_training_has_nothing_left(hub: Hub) -> None:
    pushes(hub, log_of(50, total=50))()
    assert "left         nothing" in screen(look())
    assert printed_far(look()).left_s == 0


def test_one_of_weights_alone_is_complete_and_says_so(hub: Hub) -> None:
    hub.commit(REPO, {LOG: log_of(20), **checkpoint_of(10, FILES), **checkpoint_of(20, FILES, optimizer="none")})
    run = look()
    assert "iteration 20, without optimizer" in screen(run) and "checkpoints/global_step20" in screen(run)
    assert (saved := printed_far(run).checkpoint) is not None and not saved.with_optimizer and not run.incomplete


def test_energy_is_what_a_report_of_the_same_records_says(hub: Hub, tmp_path: Path) -> None:
    records = {f"emissions-7-x0{node}-a.csv": record(tmp_path, node) for node in range(3)}
    hub.commit(REPO, {LOG: log_of(20), **{f"codecarbon/{name}": data for name, data in records.items()}})
    hub.commit(REPO, {"elsewhere/emissions-7-x09-a.csv": records["emissions-7-x00-a.csv"]})
    run = look()
    report = CliRunner().invoke(command, ["report", "--folder", str(tmp_path / "carbon"), "--json"])
    assert run.energy is not None and run.energy.kwh == json.loads(report.output)["carbon"]["kwh"] > 0
    assert f"carbon       {run.energy.told}" in screen(run) and printed_far(run).carbon == run.energy


def test_records_that_cannot_be_fetched_leave_the_rest_to_be_told(hub: Hub, tmp_path: Path) -> None:
    hub.commit(REPO, {LOG: log_of(20), "codecarbon/emissions-7-x00-a.csv": record(tmp_path, 0)})
    hub.faults = [Fault("resolve", status=503, after=2, times=None)]
    run = look()
    assert "\ncarbon " in screen(run) and printed_far(run).progress.iteration == 20


def note_of(**repos: str) -> bytes:
    return json.dumps({"run": "tiny", "run_id": "0" * 16, "repos": repos, "checkpoints": "folder"}).encode()


def test_the_repositories_of_other_kinds_are_named_and_looked_at(hub: Hub, tmp_path: Path) -> None:
    there = note_of(logs=REPO, checkpoints="lab/weights", carbon="lab/energy", tensorboard="https://host/lab/t.git")
    hub.commit(REPO, {LOG: log_of(20), "opsctl.json": there})
    hub.make_repo("lab/weights")
    hub.commit("lab/weights", checkpoint_of(10, FILES))
    hub.make_repo("lab/energy")
    hub.commit("lab/energy", {"codecarbon/emissions-7-x01-a.csv": record(tmp_path, 1)})
    run = look()
    assert "iteration 10, complete in checkpoints/global_step10 of lab/weights" in screen(run)
    assert " checkpoints in lab/weights\n" in screen(run) and "carbon in lab/energy" in screen(run)
    assert "tensorboard in https://host/lab/t.git\n" in screen(run)
    assert run.energy is not None and "3.10 kWh" in run.energy.told, "2.5 of GPUs, 0.6 of the rest"
    assert [one.repo for one in printed_far(run).elsewhere] == ["lab/weights", "lab/energy", "https://host/lab/t.git"]


@pytest.mark.parametrize("repo", ["lab/hidden", "https://host/lab/x.git", "nonsense"])
def test_one_that_cannot_be_seen_is_named_all_the_same(hub: Hub, repo: str) -> None:
    hub.make_repo("lab/hidden", private=True)
    hub.commit(REPO, {LOG: log_of(20), "opsctl.json": note_of(checkpoints=repo)})
    run = look()
    assert f"checkpoints in {repo}: " in " ".join(screen(run).split()) and run.checkpoint is None
    assert run.elsewhere[0].problem


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"run": 3, "repos": ["x"]}'])
def test_whatever_somebody_wrote_into_the_note_the_rest_is_told(hub: Hub, content: bytes) -> None:
    hub.commit(REPO, {LOG: log_of(20), "opsctl.json": content})
    assert "iteration 20 of 1000" in screen(look()) and look().elsewhere == ()
