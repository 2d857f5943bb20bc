from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.transfer.hub.far_files import FarFiles, repo_of
from opsctl.transfer.hub.far_run import MAIN_LOG, FarRun, far_run
from opsctl.ui.status.hub_status import far_lines, printed_far
from tests.hub_server import Hub
from tests.unit.transfer.hub.far import LOG, REPO, hub, pushes
from tests.unit.transfer.hub.far_runs import PULSE, checkpoint_of, log_of

__all__ = ["hub"]
FILES = {"layer_00.pt": b"weights", "bf16_zero_pp_rank_0.pt": b"moments"}


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
    assert MAIN_LOG in text
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
