"""Checkpoints to a hub: whole or nowhere called so, whatever happens to them meanwhile."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from opsctl.run.state.checkpoint_readers import being_read
from tests.hub_server import Fault
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]
FILES = {
    "mp_rank_00_model_states.pt": random.Random(1).randbytes(30_000),
    "zero_pp_rank_0_mp_rank_00_optim_states.pt": random.Random(2).randbytes(50_000),
    "layer_01-model_00-model_states.pt": b"",
}


def whole(desk: Desk, below: str, revision: str) -> dict[str, bytes]:
    """Return what the client's download has under `below`, its manifest taken out and believed: every file is in it."""
    found = {path.removeprefix(below): of for path, of in desk.downloaded(revision).items() if path.startswith(below)}
    said = json.loads(found.pop("manifest.json"))["files"]
    assert {name: of["bytes"] for name, of in said.items()} == {name: len(of) for name, of in found.items()}
    return found


def called_whole(desk: Desk) -> list[int]:
    """Return how many files each commit of main has beside a manifest, of those that have one."""
    return [len(one.files) for one in desk.hub.commits(REPO) if any("manifest" in path for path in one.files)]


@pytest.mark.parametrize(
    ("how", "below", "revision"),
    [("folder", "checkpoints/global_step10/", "main"), ("branch", "", "global_step10")],
)
def test_a_checkpoint_comes_back_byte_for_byte(desk: Desk, how: str, below: str, revision: str) -> None:
    desk.checkpoint(10, FILES)
    assert not desk.asks(checkpoints=how).sync().left
    assert whole(desk, below, revision) == FILES
    assert set(desk.hub.repos[REPO].branches) == {"main", *(["global_step10"] if how == "branch" else [])}
    desk.fresh()
    assert desk.sync().commits == [] and desk.hub.requests == []


def test_only_complete_ones_that_are_asked_for_go(desk: Desk) -> None:
    for iteration in (10, 15, 20):
        desk.checkpoint(iteration, FILES)
    (desk.paths.checkpoints / "global_step20" / "mp_rank_00_model_states.pt").write_bytes(b"cut")
    (desk.paths.checkpoints / "global_step30").mkdir()
    outcome = desk.asks(checkpoints="branch", checkpoints_every=10).sync()
    assert set(desk.hub.repos[REPO].branches) == {"main", "global_step10"}
    assert not outcome.left and sorted(one.split(" is not")[0] for one in outcome.notes) == [
        "global_step20",
        "global_step30",
    ]


def test_without_the_key_none_goes(desk: Desk) -> None:
    desk.checkpoint(10, FILES)
    desk.sync()
    assert not any("global_step" in path for path in desk.hub.files(REPO))


def test_weights_alone_are_whole_and_say_that_they_are_all_there_is(desk: Desk) -> None:
    desk.checkpoint(10, FILES)
    assert not desk.asks(checkpoints="branch", weights_only=True).sync().left
    weights = {name: data for name, data in FILES.items() if not name.endswith("optim_states.pt")}
    assert whole(desk, "", "global_step10") == weights and len(weights) == len(FILES) - 1
    assert json.loads(desk.downloaded("global_step10")["manifest.json"])["layout"]["optimizer"] == "none"
    desk.fresh()
    assert desk.sync().commits == [] and desk.hub.requests == []
    desk.paths.hub_ledger.unlink()
    assert not desk.sync().left and desk.sent("put", "commit") == []


@pytest.mark.parametrize("how", ["folder", "branch"])
def test_the_optimizers_states_follow_when_they_are_wanted_after_all(desk: Desk, how: str) -> None:
    desk.checkpoint(10, FILES)
    desk.asks(checkpoints=how, weights_only=True).sync()
    desk.fresh()
    assert not desk.asks(checkpoints=how, weights_only=False).sync().left
    below, revision = ("checkpoints/global_step10/", "main") if how == "folder" else ("", "global_step10")
    assert whole(desk, below, revision) == FILES
    assert desk.sync().commits == []


def test_the_manifest_goes_after_all_files_and_a_checkpoint_is_marked_as_being_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    desk.checkpoint(10, FILES)
    marks: list[set[int]] = []
    desk.hub.faults = [Fault("put", "call", call=lambda _: marks.append(set(being_read(desk.paths))), times=None)]
    desk.asks(checkpoints="folder").sync(["checkpoints"])
    assert [len(one.files) for one in desk.hub.commits(REPO)] == [1, 2, 3, 4, 5], "the note first"
    assert called_whole(desk) == [5]
    assert marks == [{10}] * 2 and being_read(desk.paths) == {}


def test_one_that_goes_while_it_is_sent_is_not_whole_over_there(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    folder = desk.checkpoint(10, FILES)
    desk.hub.faults = [Fault("put", "call", call=lambda _: shutil.rmtree(folder))]
    outcome = desk.asks(checkpoints="folder").sync(["checkpoints"])
    assert "global_step10" in outcome.left[0]
    assert called_whole(desk) == []


def test_one_that_is_saved_again_while_it_is_sent_is_never_a_mixture(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    desk.checkpoint(10, FILES)
    again = {name: content[::-1] + b"!" for name, content in FILES.items()}

    def save_again(_: object) -> None:
        desk.checkpoint(10, again)
        shutil.rmtree(desk.paths.checkpoints / ".old-global_step10")

    desk.hub.faults = [Fault("put", "call", call=save_again)]
    assert desk.asks(checkpoints="folder").sync(["checkpoints"]).left
    assert called_whole(desk) == []
    assert not desk.sync(["checkpoints"]).left
    assert whole(desk, "checkpoints/global_step10/", "main") == again


@pytest.mark.parametrize("how", ["folder", "branch"])
def test_one_that_was_saved_again_takes_the_place_of_the_old_one_whole(
    desk: Desk, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    desk.checkpoint(10, FILES)
    desk.asks(checkpoints=how).sync()
    again = {"mp_rank_00_model_states.pt": b"new weights", "another.pt": b"of another layout"}
    desk.checkpoint(10, again)
    assert not desk.sync().left
    below, revision = ("checkpoints/global_step10/", "main") if how == "folder" else ("", "global_step10")
    assert whole(desk, below, revision) == again
    for commit in desk.hub.repos[REPO].commits.values():
        files = {path.removeprefix(below): of for path, of in commit.files.items() if path.startswith(below)}
        if "manifest.json" in files:
            said = json.loads(desk.hub.object_path(files["manifest.json"].sha256).read_bytes())["files"]
            assert {name: len(FILES.get(name, b"")) for name in said} == {
                name: of.size for name, of in files.items() if name != "manifest.json"
            } or set(said) == set(again)


PLACES = {
    "folder": ("checkpoints/global_step10/", "main"),
    "branch": ("", "global_step10"),
}


@pytest.mark.parametrize("how", [pytest.param("folder", marks=pytest.mark.nightly), "branch"])
def test_one_that_was_saved_again_with_the_same_files_is_whole_too(desk: Desk, how: str) -> None:
    desk.checkpoint(10, FILES)
    desk.asks(checkpoints=how).sync()
    manifest = desk.checkpoint(10, FILES) / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    assert not desk.sync().left
    below, revision = PLACES[how]
    assert whole(desk, below, revision) == FILES


@pytest.mark.parametrize("how", ["folder", "branch"])
def test_what_somebody_removed_there_before_the_manifest_went_is_sent_again(
    desk: Desk, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    desk.checkpoint(10, FILES)
    below, revision = PLACES[how]
    desk.hub.faults = [Fault("commit", status=403, after=3)]
    assert desk.asks(checkpoints=how).sync(["checkpoints"]).left
    desk.hub.faults = []
    desk.hub.commit(REPO, {below + "mp_rank_00_model_states.pt": None}, branch=revision)
    assert not desk.sync(["checkpoints"]).left
    assert whole(desk, below, revision) == FILES


def test_no_manifest_goes_to_files_that_the_storage_has_lost(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    desk.checkpoint(10, FILES)
    lost = "checkpoints/global_step10/mp_rank_00_model_states.pt"
    desk.hub.faults = [Fault("commit", "call", after=3, call=lambda _: desk.hub.lose(REPO, lost))]
    outcome = desk.asks(checkpoints="folder").sync(["checkpoints"])
    assert lost.rpartition("/")[2] in outcome.left[0] and called_whole(desk) == []
    assert not desk.sync(["checkpoints"]).left
    assert whole(desk, "checkpoints/global_step10/", "main") == FILES


def test_a_repository_that_ignores_its_files_is_never_said_to_have_them(desk: Desk) -> None:
    desk.checkpoint(10, FILES)
    desk.hub.make_repo(REPO)
    desk.hub.commit(REPO, {".gitignore": b"*_states.pt\n*.txt\n"})
    outcome = desk.asks(checkpoints="folder").sync()
    assert ".gitignore" in outcome.left[0] and "logs/main_log.txt" in outcome.left[0] and called_whole(desk) == []
    desk.hub.commit(REPO, {".gitignore": None})
    assert not desk.sync().left
    assert whole(desk, "checkpoints/global_step10/", "main") == FILES


def test_a_file_whose_contents_are_not_the_manifests_never_goes(desk: Desk) -> None:
    folder = desk.checkpoint(10, FILES)
    damaged = folder / "mp_rank_00_model_states.pt"
    damaged.write_bytes(bytes(len(FILES[damaged.name])))
    outcome = desk.asks(checkpoints="folder").sync(["checkpoints"])
    assert "has checksum" in outcome.left[0] and called_whole(desk) == []


def test_what_has_arrived_of_one_is_not_sent_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 1)
    desk.checkpoint(10, FILES)
    desk.hub.faults = [Fault("commit", status=403, after=1)]
    assert desk.asks(checkpoints="branch").sync(["checkpoints"]).left
    assert not desk.sync(["checkpoints"]).left
    puts = [path.rsplit("/", 1)[-1] for path in desk.sent("put")]
    assert len(puts) == len(set(puts)) == 2
    assert whole(desk, "", "global_step10") == FILES


def test_files_of_the_same_content_are_sent_once_and_all_are_there(desk: Desk) -> None:
    same = random.Random(3).randbytes(2_000_000)
    files = FILES | {f"layer_08-model_0{rank}-model_states.pt": same for rank in range(8)}
    desk.checkpoint(10, files)
    assert not desk.asks(checkpoints="branch").sync(["checkpoints"]).left
    puts = [path.rsplit("/", 1)[-1] for path in desk.sent("put")]
    assert len(puts) == len(set(puts)) == 3
    assert whole(desk, "", "global_step10") == files


def test_without_the_ledger_a_whole_one_is_found_and_nothing_is_sent(desk: Desk) -> None:
    desk.checkpoint(10, FILES)
    desk.asks(checkpoints="branch").sync()
    desk.paths.hub_ledger.unlink()
    desk.fresh()
    assert not desk.sync().left
    assert desk.sent("put", "commit") == []
    desk.fresh()
    assert desk.sync().commits == [] and desk.hub.requests == []


def test_a_link_in_the_place_of_a_file_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    folder = desk.checkpoint(10, FILES)
    name = "mp_rank_00_model_states.pt"
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert desk.asks(checkpoints="folder").sync(["checkpoints"]).left
    assert called_whole(desk) == []
