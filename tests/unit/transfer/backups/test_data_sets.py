"""Data sets in backups: each content once, never half, and back again."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import What, read_backups
from opsctl.transfer.backups import data_sets
from opsctl.transfer.backups.data_copies import (
    FOLDER,
    NOTE,
    SentData,
    back_up_data,
    choose,
    restore_data,
)
from opsctl.transfer.backups.data_sets import named_sets
from opsctl.transfer.backups.json_output import RestoredData
from opsctl.transfer.backups.verify import verify
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from tests.killed_in_python import killed_at_every_step
from tests.s3_server import Proxy
from tests.tiny_run import write_data
from tests.unit.jobs.control.checkpoint_runs import seen
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import a_run, contents, destination

disk = backed_up_runs.disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run")


def options_of(folder: Path, *names: str, **more: object) -> dict[str, Any]:
    """Options that name pairs in `folder`, which are made."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / name, documents=4 + number)
    named = [word for name in names for word in ("1", str(folder / name))]
    return {"data_path": named[1:] if len(names) == 1 else named, "split": "100,0,0", **more}


def send(folder: Path, to: Path, options: dict[str, Any], flow: Flow | None = None, **how: bool) -> SentData:
    with destination(folder, to) as place:
        return back_up_data(replace(place, flow=flow or Flow()), named_sets(options), lambda _line: None, **how)


def whole_there(to: Path) -> set[str]:
    """The sets that are called whole, each of which is."""
    found = set()
    for note in to.glob(f"{FOLDER}/*/{NOTE}"):
        for part in json.loads(note.read_text())["parts"].values():
            assert (note.parent / part["name"]).stat().st_size == part["bytes"]
        found.add(note.parent.name.rpartition("-")[0])
    return found


def back(to: Path, into: Path | None = None) -> RestoredData:
    with open_store(str(to)) as store:
        return restore_data(store, None, into, Flow(), lambda _line: None)


def on_record(folder: Path, to: Path) -> bool:
    return any(line.what is What.DATA and line.counts for line in read_backups(seen(folder).paths))


def test_all_that_the_options_name_is_there_wherever_it_lies(folder: Path, disk: Path, tmp_path: Path) -> None:
    given = options_of(tmp_path / "scratch", "a b/corpus")
    (tmp_path / "scratch" / "a b" / "corpus.json").write_text('{"vocab_size": 300}')
    options_of(tmp_path / "blobs", "4711", "valid")
    for end in (".bin", ".idx"):  # as a cache of downloads has them
        (tmp_path / f"train{end}").symlink_to(tmp_path / "blobs" / f"4711{end}")
    groups = tmp_path / "groups.txt"
    groups.write_text(f'"v: 1 0:1 {tmp_path / "blobs" / "valid"}"')
    tokenizer = tmp_path / "tok"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "model.safetensors").write_bytes(b"weights are none of it")
    given["data_path"] = ["1", given["data_path"][0], "2", str(tmp_path / "train")]
    given |= {"valid_weighted_split_paths_path": str(groups), "tokenizer_name_or_path": str(tokenizer)}
    done = send(folder, disk, given)
    assert done.problems == [] and done.line is not None and on_record(folder, disk)
    assert whole_there(disk) == {"corpus", "train", "valid", "groups.txt", "tok"}
    sent = {path for path in disk.glob(f"{FOLDER}/*/*") if path.name != NOTE and path.parent.name != "runs"}
    wanted = [*tmp_path.glob("scratch/*/*"), *tmp_path.glob("train.*"), *tmp_path.glob("blobs/valid.*"), groups]
    by_name = {one.name: one for one in (*wanted, tokenizer / "tokenizer.json")}
    assert {one.name for one in sent} == set(by_name) and len(sent) == 9
    assert all(filecmp.cmp(one, by_name[one.name], shallow=False) for one in sent)


def test_one_content_is_sent_once_whoever_names_it_and_however(folder: Path, disk: Path, tmp_path: Path) -> None:
    first = send(folder, disk, options_of(tmp_path / "here", "corpus"), is_shared=True)
    other = a_run(tmp_path / "other")
    second = send(other, disk, options_of(tmp_path / "there", "renamed"), is_shared=True)
    assert (first.files, second.files, second.is_new) == (2, 0, True)
    assert whole_there(disk) == {"corpus"} and on_record(other, disk)
    for end in (".bin", ".idx"):
        (tmp_path / "there" / f"renamed{end}").unlink()
    with open_store(str(disk)) as store:
        restore_data(store, _id(other), None, Flow(), lambda _line: None)
        with pytest.raises(OpsctlError, match="--run"):
            choose(store, None)
    assert filecmp.cmp(tmp_path / "there" / "renamed.bin", tmp_path / "here" / "corpus.bin", shallow=False)


def _id(folder: Path) -> str:
    from opsctl.run.state.identity import read_run_id

    return read_run_id(seen(folder).paths) or ""


def test_nothing_is_read_again_where_nothing_changed_and_an_edit_is_another_set(
    folder: Path, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options_of(tmp_path / "d", "corpus")
    send(folder, disk, given)
    before = contents(disk)
    with monkeypatch.context() as patched:
        patched.setattr(data_sets, "digest_of", lambda _source: pytest.fail("it is read"))
        assert send(folder, disk, given).is_new is False
    assert contents(disk) == before
    state = (tmp_path / "d" / "corpus.bin").stat()
    with (tmp_path / "d" / "corpus.bin").open("r+b") as file:
        file.write(b"\x07")
    os.utime(tmp_path / "d" / "corpus.bin", ns=(state.st_atime_ns, state.st_mtime_ns))  # only its ctime tells
    assert send(folder, disk, given).files == 2
    assert before.items() - contents(disk).items() == {
        (name, text) for name, text in before.items() if name.startswith("data/runs/")
    }
    with open_store(str(disk)) as store:
        (now,) = choose(store, None).sets
    assert filecmp.cmp(disk / FOLDER / now.folder / "corpus.bin", tmp_path / "d" / "corpus.bin", shallow=False)


def _rewritten(data: Path) -> None:
    with data.with_suffix(".bin").open("r+b") as file:
        file.write(b"\x07\x07")


def _replaced(data: Path) -> None:
    write_data(data.with_name("new"), documents=9)
    for end in (".bin", ".idx"):
        data.with_name(f"new{end}").replace(data.with_suffix(end))


@pytest.mark.parametrize("change", [_rewritten, _replaced])
@pytest.mark.parametrize("is_there", [".opsctl-part-*", "corpus.bin"], ids=["first", "second"])
def test_a_set_that_changes_while_it_is_sent_is_never_called_whole(
    folder: Path, disk: Path, tmp_path: Path, change: Callable[[Path], None], is_there: str
) -> None:
    given = options_of(tmp_path / "d", "corpus")
    left: list[Callable[[Path], None]] = [change]

    def reached(_done: int) -> None:
        if left and any(disk.glob(f"{FOLDER}/corpus-*/{is_there}")):
            left.pop()(tmp_path / "d" / "corpus")

    done = send(folder, disk, given, Flow(reached=reached))
    assert not left and done.line is None and "corpus" in done.problems[0]
    assert whole_there(disk) == set() and not on_record(folder, disk)
    assert not list(disk.glob(f"{FOLDER}/runs/*"))
    assert send(folder, disk, given).problems == []
    (note,) = disk.glob(f"{FOLDER}/*/{NOTE}")
    for end in (".bin", ".idx"):
        assert filecmp.cmp(note.with_name(f"corpus{end}"), tmp_path / "d" / f"corpus{end}", shallow=False)


def test_killed_at_any_step_nothing_half_is_called_whole_and_the_next_goes_on(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    given, steps = options_of(tmp_path / "d", "corpus"), 0
    for steps in killed_at_every_step(lambda: send(folder, disk, given)):
        whole = whole_there(disk)
        assert not on_record(folder, disk) or whole == {"corpus"}, f"after step {steps}"
        for note in disk.glob(f"{FOLDER}/runs/*.json"):
            assert {one["folder"] for one in json.loads(note.read_text())["sets"]} == {
                one.parent.name for one in disk.glob(f"{FOLDER}/*/{NOTE}")
            }
    assert steps > 5 and whole_there(disk) == {"corpus"} and on_record(folder, disk)
    assert len(list(disk.glob(f"{FOLDER}/corpus-*"))) == 1


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_what_is_lost_there_is_found_and_sent_again(folder: Path, disk: Path, tmp_path: Path, damage: str) -> None:
    given = options_of(tmp_path / "d", "corpus", "second")
    send(folder, disk, given)
    (there,) = disk.glob(f"{FOLDER}/second-*/second.bin")
    was = there.read_bytes()
    there.write_bytes(b"\xff" + was[1:]) if damage == "flipped" else there.unlink()
    with destination(folder, disk) as place:
        found = verify(place, None, lambda _line: None)
        assert [line.what for line in found.lost] == [What.DATA] and "second.bin" in (found.lost[0].lost or "")
        assert not on_record(folder, disk)
    done = send(folder, disk, given)
    assert (done.files, done.problems, there.read_bytes()) == (1, [], was)
    with destination(folder, disk) as place:
        assert verify(place, None, lambda _line: None).lost == []


def test_what_another_run_has_sent_is_read_before_it_counts_here(folder: Path, disk: Path, tmp_path: Path) -> None:
    send(folder, disk, options_of(tmp_path / "here", "corpus"), is_shared=True)
    (there,) = disk.glob(f"{FOLDER}/corpus-*/corpus.bin")
    was = there.read_bytes()
    there.write_bytes(was[:-1] + b"\xff")
    other = a_run(tmp_path / "other")
    assert send(other, disk, options_of(tmp_path / "there", "corpus"), is_shared=True).files == 1
    assert there.read_bytes() == was


def test_a_place_that_is_not_mounted_is_no_empty_one(folder: Path, disk: Path, tmp_path: Path) -> None:
    given = options_of(tmp_path / "d", "corpus")
    send(folder, disk, given, is_shared=True)
    shutil.rmtree(disk / FOLDER)
    with pytest.raises(OpsctlError, match="mounted"):
        send(folder, disk, given, is_shared=True)
    assert send(folder, disk, given, is_shared=True, emptied=True).files == 2


def test_the_runs_own_folder_is_no_place_for_copies(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OpsctlError, match=str(seen(folder).paths.output)):
        send(folder, seen(folder).paths.output, options_of(tmp_path / "d", "corpus"), is_shared=True)
    assert not (seen(folder).paths.output / FOLDER).exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"data_path": ["/nowhere/corpus"]}, "/nowhere/corpus"),
        ({"valid_weighted_split_paths_path": "/nowhere.txt"}, "/nowhere.txt"),
        ({"tokenizer_name_or_path": "/dev"}, "/dev"),
        ({"vocab_file": "/nowhere.json"}, "/nowhere.json"),
    ],
)
def test_what_is_named_and_not_there_is_said_before_anything_is_sent(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(OpsctlError, match=why):
        named_sets({**options_of(tmp_path / "d", "corpus"), **change})


def test_they_come_back_to_where_they_were_and_what_is_there_is_left_alone(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    given = options_of(tmp_path / "d", "corpus", "second")
    send(folder, disk, given)
    was = contents(tmp_path / "d")
    (tmp_path / "d" / "second.idx").unlink()
    kept = (tmp_path / "d" / "second.bin").stat()
    assert [(one.files, one.there) for one in back(disk).sets] == [(0, 2), (1, 1)]
    assert contents(tmp_path / "d") == was and (tmp_path / "d" / "second.bin").stat().st_ino == kept.st_ino
    shutil.rmtree(tmp_path / "d")
    done = back(disk)
    assert contents(tmp_path / "d") == was and done.changes == []


def test_nothing_is_fetched_where_anything_else_is_in_a_place(folder: Path, disk: Path, tmp_path: Path) -> None:
    send(folder, disk, options_of(tmp_path / "d", "corpus", "second"))
    (tmp_path / "d" / "corpus.bin").unlink()
    (tmp_path / "d" / "second.idx").write_bytes(b"of another data set")
    with pytest.raises(OpsctlError, match=r"second\.idx"):
        back(disk)
    assert not (tmp_path / "d" / "corpus.bin").exists()


def test_killed_at_any_step_of_a_restore_an_index_is_there_only_with_its_tokens(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    send(folder, disk, options_of(tmp_path / "d", "corpus"))
    was, steps = contents(tmp_path / "d"), 0
    shutil.rmtree(tmp_path / "d")
    for steps in killed_at_every_step(lambda: back(disk)):
        there = {one.name for one in (tmp_path / "d").glob("corpus.*")}
        assert "corpus.idx" not in there or "corpus.bin" in there, f"after step {steps}"
    assert steps > 3 and contents(tmp_path / "d") == was


def test_in_another_folder_it_says_what_to_change(folder: Path, disk: Path, tmp_path: Path) -> None:
    given = options_of(tmp_path / "d", "a/corpus", "b/corpus", "valid")
    groups = tmp_path / "groups.txt"
    groups.write_text(f'"v: 1 0:1 {tmp_path / "d" / "valid"}"')
    given["data_path"] = given["data_path"][:4]
    send(folder, disk, {**given, "valid_weighted_split_paths_path": str(groups)})
    done = back(disk, tmp_path / "new")
    now = {one.was: one.path for one in done.sets}
    assert len({*now.values()}) == 4 and all(path.startswith(str(tmp_path / "new")) for path in now.values())
    for end in (".bin", ".idx"):
        for was, path in now.items():
            if not was.endswith(".txt"):
                assert filecmp.cmp(was + end, path + end, shallow=False)
    a, b, valid = (str(tmp_path / "d" / name) for name in ("a/corpus", "b/corpus", "valid"))
    key = "valid_weighted_split_paths_path"
    changes = done.changes
    places = ("[data] data_path", "[data] data_path", f"[data] {key}", now[str(groups)])
    for place, was in zip(places, (a, b, str(groups), valid), strict=True):
        assert sum(all(fact in line for fact in (place, f"{was} ", now[was])) for line in changes) == 1, was
    assert len(changes) == 4


def test_bytes_that_are_not_what_was_sent_do_not_come_back(folder: Path, disk: Path, tmp_path: Path) -> None:
    send(folder, disk, options_of(tmp_path / "d", "corpus"))
    (there,) = disk.glob(f"{FOLDER}/corpus-*/corpus.bin")
    there.write_bytes(b"\xff" + there.read_bytes()[1:])
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(OpsctlError, match="checksum"):
        back(disk)
    assert not (tmp_path / "d" / "corpus.bin").exists() and not (tmp_path / "d" / "corpus.idx").exists()


def test_a_store_that_loses_what_it_took_and_says_otherwise_is_not_believed(
    folder: Path, proxy: Proxy, bucket: str, s3: Any, tmp_path: Path
) -> None:
    given = options_of(tmp_path / "d", "corpus")

    def to_s3() -> SentData:
        with destination(folder, f"s3://{bucket}/run") as place:
            return back_up_data(place, named_sets(given), lambda _line: None)

    assert (to_s3().files, to_s3().files) == (2, 0)
    there = {one["Key"]: one for one in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    (key,) = [one for one in there if one.endswith("corpus.bin")]
    data = (tmp_path / "d" / "corpus.bin").read_bytes()
    noted = s3.head_object(Bucket=bucket, Key=key)["Metadata"]
    s3.put_object(Bucket=bucket, Key=key, Body=b"\xff" + data[1:], Metadata=noted)  # by its note it is what was sent
    with destination(folder, f"s3://{bucket}/run") as place:
        assert [line.what for line in verify(place, None, lambda _line: None).lost] == [What.DATA]
    assert to_s3().files == 1
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == data
    s3.delete_object(Bucket=bucket, Key=key)
    assert to_s3().files == 1, "what the list no longer has is sent again without a verification"
    shutil.rmtree(tmp_path / "d")
    with open_store(f"s3://{bucket}/run") as store:
        (one,) = restore_data(store, "tiny", None, Flow(), lambda _line: None).sets
    assert (tmp_path / "d" / "corpus.bin").read_bytes() == data and one.files == 2
