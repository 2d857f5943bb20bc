from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import xxhash

from opsctl.transfer.object_store import etag, s3_upload
from opsctl.transfer.object_store.flow import Flow, Stopped
from opsctl.transfer.object_store.opening import open_store
from opsctl.transfer.object_store.types import ANYTHING, Access, Expected, FarFile, FileFault, StoreError
from tests.s3_server import KEY, PART_BYTES, SECRET, Fault, Proxy, environment
from tests.unit.transfer.object_store.test_folder import files_of, flip, names_in, replaced, same

PART = PART_BYTES
#: Three parts, the last one short.
LARGE = 2 * PART + 5
UPLOADS = "uploadId=.*partNumber"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than one small part goes in parts."""
    monkeypatch.setattr(etag, "_LEAST_PART_BYTES", PART)
    monkeypatch.setattr(s3_upload, "_MOST_WHOLE_BYTES", PART)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with one file of several parts and two small ones."""
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "states.pt").write_bytes(os.urandom(LARGE))
    (folder / "weights.pt").write_bytes(os.urandom(1000))
    (folder / "manifest.json").write_text("{}")
    return folder


def known(folder: Path) -> dict[str, Expected]:
    """What a manifest says of the files in a folder."""
    found = {name: (folder / name).read_bytes() for name in files_of(folder)}
    return {name: Expected(len(data), xxhash.xxh64(data).hexdigest()) for name, data in found.items()}


def unfinished(s3: Any, bucket: str) -> list[Any]:
    return list(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


def keys_in(s3: Any, bucket: str) -> set[str]:
    return {one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}


def content(s3: Any, bucket: str, key: str) -> bytes:
    return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())


def test_every_file_arrives_and_comes_back_whatever_its_name(
    here: Path, tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    (here / os.fsdecode(b"\xff 100%25.log")).write_text("x")
    with open_store(f"s3://{bucket}/pre fix") as store:
        outcome = store.put(here, files_of(here), "run 1/-step")
        assert not outcome.faults
        assert set(store.list("run 1/-step")) == set(files_of(here))
        back = tmp_path / "back"
        back.mkdir()
        store.get({name: Expected(one.bytes, one.xxh64) for name, one in outcome.moved.items()}, back, "run 1/-step")
    assert same(here, back)
    assert content(s3, bucket, "pre fix/run 1/-step/layer_01/shard 1.pt") == (here / "layer_01/shard 1.pt").read_bytes()
    assert content(s3, bucket, "pre fix/run 1/-step/line%0Abreak") == (here / "line\nbreak").read_bytes()
    assert f"pre fix/run 1/-step/{'x' * 250}" in keys_in(s3, bucket)


def test_a_file_of_many_parts_is_the_same_for_others(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large), last=["manifest.json"]).raise_faults()
    assert content(s3, bucket, "states.pt") == (large / "states.pt").read_bytes()
    assert proxy.count(UPLOADS) == 3
    assert s3.head_object(Bucket=bucket, Key="states.pt")["Metadata"]["xxh64"] == known(large)["states.pt"].xxh64
    bodies = [one for one in proxy.requests if one.startswith("PUT")]
    assert bodies[-1] == f"PUT /{bucket}/manifest.json"


@pytest.mark.parametrize("expected", [known, files_of], ids=["note", "etag"])
def test_what_is_there_is_not_sent_again(
    large: Path, proxy: Proxy, bucket: str, expected: Callable[[Path], dict[str, Expected]]
) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, expected(large)).raise_faults()
        proxy.requests.clear()
        flip(large / "weights.pt")
        moved = store.put(large, expected(large)).moved
    assert [name for name, one in moved.items() if not one.was_there] == ["weights.pt"]
    assert proxy.count("^PUT") == 1


def test_what_boto3_sent_with_other_parts_is_sent_again(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART + (PART >> 2))
    s3.upload_file(str(large / "states.pt"), bucket, "states.pt", Config=config)
    with open_store(f"s3://{bucket}") as store:
        assert not store.put(large, {"states.pt": ANYTHING}).moved["states.pt"].was_there


@pytest.mark.parametrize(
    "fault",
    [
        Fault("^PUT", "answer", 2, 503, "SlowDown"),
        pytest.param(Fault("^PUT", "answer", 2, 500), marks=pytest.mark.nightly),
        pytest.param(
            Fault("^PUT", "answer", 1, 429, "TooManyRequests", {"Retry-After": "0"}), marks=pytest.mark.nightly
        ),
        Fault("^PUT", "cut request", 2),
        Fault("^PUT", "cut answer", 2),
        Fault("^PUT", "lost answer", 2),
        Fault("^PUT", "flip", 2),
        Fault("^POST.*uploads", "lost answer"),
        Fault("^POST.*uploadId", "lost answer"),
        pytest.param(Fault("^POST.*uploadId", "answer", 1, 500), marks=pytest.mark.nightly),
        pytest.param(Fault("^GET", "answer", 3, 503, "SlowDown"), marks=pytest.mark.nightly),
        Fault("^GET", "cut answer", 2),
    ],
    ids=lambda fault: f"{fault.pattern} {fault.does} {fault.status}",
)
def test_what_passes_is_waited_for(large: Path, proxy: Proxy, bucket: str, s3: Any, fault: Fault) -> None:
    proxy.faults.append(Fault(**vars(fault)))
    with open_store(f"s3://{bucket}/a") as store:
        store.put(large, known(large), "b", last=["manifest.json"]).raise_faults()
    assert not proxy.faults[0].times
    assert {key: content(s3, bucket, key) for key in keys_in(s3, bucket)} == {
        f"a/b/{name}": (large / name).read_bytes() for name in files_of(large)
    }


def test_the_server_is_left_alone_for_as_long_as_it_says(
    large: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Flow, "pause", lambda _, wait_s: waits.append(wait_s))
    proxy.faults.append(Fault("^PUT", "answer", 1, 503, "SlowDown", {"Retry-After": "7"}))
    with open_store(f"s3://{bucket}") as store:
        store.put(large, {"weights.pt": ANYTHING}).raise_faults()
    assert max(waits) == 7.0


def test_a_file_that_arrives_otherwise_again_and_again_is_refused_by_name(
    large: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    proxy.faults.append(Fault("^PUT", "flip", 100))
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, known(large))
    assert set(outcome.faults) == {"states.pt", "weights.pt", "manifest.json"}
    assert re.search(rf"^'states.pt' .* s3://{bucket}, 3 times$", outcome.faults["states.pt"])
    assert not unfinished(s3, bucket) and "states.pt" not in keys_in(s3, bucket)


def test_reading_goes_on_where_the_answer_was_cut(large: Path, proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    back = tmp_path / "back"
    back.mkdir()
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large)).raise_faults()
        proxy.faults.append(Fault("GET .*states.pt", "cut answer", 3))
        store.get(known(large), back).raise_faults()
        assert not store.check(known(large)).faults
    assert same(large, back) and proxy.count("GET .*states.pt") >= 4


def test_an_object_that_another_replaces_between_two_answers_is_not_mixed(
    large: Path, proxy: Proxy, bucket: str, s3: Any, tmp_path: Path
) -> None:
    back = tmp_path / "back"
    back.mkdir()
    with open_store(f"s3://{bucket}") as store:
        store.put(large, files_of(large)).raise_faults()
        other = os.urandom(LARGE)
        proxy.faults.append(
            Fault(
                "GET .*states.pt",
                "cut answer",
                calls=lambda: s3.put_object(Bucket=bucket, Key="states.pt", Body=other),
            )
        )
        outcome = store.get({"states.pt": ANYTHING}, back)
    assert set(outcome.faults) == {"states.pt"} and not names_in(back)


def test_what_is_not_as_it_was_sent_is_found_by_reading(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large)).raise_faults()
        s3.put_object(Bucket=bucket, Key="weights.pt", Body=os.urandom(1000))
        s3.delete_object(Bucket=bucket, Key="manifest.json")
        assert set(store.check(known(large)).faults) == {"weights.pt", "manifest.json"}
        assert set(store.check(known(large), reading=False).faults) == {"manifest.json"}


def test_a_store_that_loses_what_it_took_is_found_before_the_last_piece(
    large: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    proxy.faults.append(
        Fault("^PUT .*weights.pt", "call", calls=lambda: s3.delete_object(Bucket=bucket, Key="weights.pt"))
    )
    (large / "third.pt").write_bytes(b"3")
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, known(large), last=["manifest.json"])
        assert [*outcome.faults] == ["weights.pt"] and f"s3://{bucket}" in outcome.faults["weights.pt"]
        assert "manifest.json" not in keys_in(s3, bucket)
        store.put(large, known(large), last=["manifest.json"]).raise_faults()
    assert keys_in(s3, bucket) == set(files_of(large))


_PUT = f"""
import sys
from pathlib import Path
from opsctl.transfer.object_store import etag, s3_upload
etag._LEAST_PART_BYTES = s3_upload._MOST_WHOLE_BYTES = {PART}
from opsctl.transfer.object_store.opening import open_store
from opsctl.transfer.object_store.types import ANYTHING
folder = Path(sys.argv[2])
with open_store(sys.argv[1]) as store:
    store.put(folder, {{path.name: ANYTHING for path in folder.iterdir()}}, last=["manifest.json"]).raise_faults()
"""


@pytest.mark.parametrize(
    ("at", "sent_parts"),
    [
        pytest.param("^POST .*uploads", 3, marks=pytest.mark.nightly),
        pytest.param("partNumber=1", 2, marks=pytest.mark.nightly),
        ("partNumber=2", 2),
        pytest.param("partNumber=3", 2, marks=pytest.mark.nightly),
        ("^POST .*uploadId", 0),
        pytest.param("^PUT .*weights", None, marks=pytest.mark.nightly),
        ("^PUT .*manifest", 0),
    ],
)
def test_killed_at_every_stage_nothing_half_there_is_called_whole_and_what_arrived_is_not_sent_again(
    large: Path, proxy: Proxy, bucket: str, s3: Any, at: str, sent_parts: int | None
) -> None:
    words = [sys.executable, "-c", _PUT, f"s3://{bucket}", str(large)]
    killed: list[subprocess.Popen[bytes]] = []
    proxy.faults.append(Fault(at, "call", calls=lambda: killed[0].send_signal(signal.SIGKILL)))
    with subprocess.Popen(words, env=environment(proxy.endpoint)) as process:
        killed.append(process)
        assert process.wait(60) == -signal.SIGKILL
    there = keys_in(s3, bucket)
    assert all(content(s3, bucket, key) == (large / key).read_bytes() for key in there)
    assert "manifest.json" not in there or there == set(files_of(large))
    proxy.requests.clear()
    with open_store(f"s3://{bucket}") as store:
        store.put(large, files_of(large), last=["manifest.json"]).raise_faults()
    assert {key: content(s3, bucket, key) for key in keys_in(s3, bucket)} == {
        name: (large / name).read_bytes() for name in files_of(large)
    }
    assert not unfinished(s3, bucket)
    if sent_parts is not None:
        assert proxy.count(UPLOADS) <= sent_parts


def left_upload(s3: Any, bucket: str, key: str, data: bytes, noted: str = "") -> str:
    """What a killed transfer leaves: the first part of a file."""
    note = {"Metadata": {"xxh64": noted}} if noted else {}
    upload = str(s3.create_multipart_upload(Bucket=bucket, Key=key, **note)["UploadId"])
    s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=data[:PART])
    return upload


def test_an_upload_of_what_the_file_was_before_is_not_mixed_with_what_it_is(
    large: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    left_upload(s3, bucket, "states.pt", os.urandom(LARGE), noted="0" * 16)
    left_upload(s3, bucket, "states.pt", os.urandom(LARGE))
    left_upload(s3, bucket, "states.pt", (large / "states.pt").read_bytes(), noted="0" * 16)
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large)).raise_faults()
    assert content(s3, bucket, "states.pt") == (large / "states.pt").read_bytes()
    assert s3.head_object(Bucket=bucket, Key="states.pt")["Metadata"]["xxh64"] == known(large)["states.pt"].xxh64
    assert not unfinished(s3, bucket)


def test_uploads_of_files_that_nobody_sends_any_more_are_ended_on_demand(proxy: Proxy, bucket: str, s3: Any) -> None:
    left_upload(s3, bucket, "run/a.pt", b"x")
    left_upload(s3, bucket, "run/deep/b.pt", b"x")
    left_upload(s3, bucket, "other/c.pt", b"x")
    with open_store(f"s3://{bucket}") as store:
        assert store.clean("run") == 2
    assert [one["Key"] for one in unfinished(s3, bucket)] == ["other/c.pt"]


def test_two_at_once_end_with_one_whole_file(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    words = [sys.executable, "-c", _PUT, f"s3://{bucket}", str(large)]
    both = [
        subprocess.Popen(words, env=environment(proxy.endpoint), stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = [one.communicate(timeout=120)[1] for one in both]
    assert 0 in [one.returncode for one in both], told
    # The server of these tests loses a part that comes anew while its object is put together: whose it was says so.
    for one, words_of_it in zip(both, told, strict=True):
        assert one.returncode == 0 or "bytes instead of" in words_of_it, words_of_it
    assert content(s3, bucket, "states.pt") == (large / "states.pt").read_bytes()
    assert keys_in(s3, bucket) == set(files_of(large)) and not unfinished(s3, bucket)


def test_an_upload_that_another_transfer_ends_is_begun_again(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    def end_it() -> None:
        for one in unfinished(s3, bucket):
            s3.abort_multipart_upload(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])

    # The server of these tests fails itself where an upload has ended; this is what S3 answers.
    proxy.faults.append(Fault(UPLOADS, "answer", 3, 404, "NoSuchUpload", calls=end_it))
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large)).raise_faults()
    assert content(s3, bucket, "states.pt") == (large / "states.pt").read_bytes() and not unfinished(s3, bucket)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: os.truncate(path, PART + 10), "shrank"),
        (lambda path: path.open("ab").write(b"x"), "grew"),
        (lambda path: replaced(path), "replaced"),
    ],
    ids=["shrinks", "grows", "replaced"],
)
def test_a_file_that_changes_while_it_is_read_is_refused_and_its_upload_ended(
    large: Path, proxy: Proxy, bucket: str, s3: Any, change: Callable[[Path], object], told: str
) -> None:
    proxy.faults.append(Fault("^POST .*uploads", "call", calls=lambda: change(large / "states.pt")))
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, {"states.pt": ANYTHING})
    assert told in outcome.faults["states.pt"]
    assert not keys_in(s3, bucket) and not unfinished(s3, bucket)


@pytest.mark.parametrize(
    ("status", "code", "told", "at"),
    [
        (403, "InvalidAccessKeyId", "access key", "^GET"),
        (403, "SignatureDoesNotMatch", "secret key", "^PUT"),
        (403, "AccessDenied", "denies access", "^GET"),
        (400, "ExpiredToken", "expired", "^PUT"),
        (403, "RequestTimeTooSkewed", "clock", "^GET"),
        (507, "XMinioStorageFull", "takes no more", "^PUT"),
    ],
)
def test_what_does_not_pass_is_one_line_at_once(
    large: Path, proxy: Proxy, bucket: str, status: int, code: str, told: str, at: str
) -> None:
    proxy.faults.append(Fault(at, "answer", 100, status, code))
    with open_store(f"s3://{bucket}") as store, pytest.raises(StoreError, match=told) as caught:
        store.put(large, known(large))
    assert re.fullmatch(rf"s3://{bucket}: [^\n]+", str(caught.value))
    assert KEY not in str(caught.value) and SECRET not in str(caught.value)
    assert len(proxy.requests) <= 20


def test_a_bucket_that_is_not_there_is_one_line(large: Path, proxy: Proxy) -> None:
    with open_store("s3://never-made/x") as store, pytest.raises(StoreError, match=r"^s3://never-made/x: [^\n]*bucket"):
        store.put(large, known(large))


def test_without_credentials_it_says_where_they_are_looked_for(
    large: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with open_store(f"s3://{bucket}") as store, pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID"):
        store.put(large, known(large))


@pytest.mark.parametrize("does", ["silent", "nobody"])
def test_a_server_that_does_not_answer_is_given_up_in_a_line(
    large: Path, proxy: Proxy, bucket: str, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if does == "nobody":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    else:
        proxy.faults.append(Fault("", "silent", 100))
    access = Access(connect_timeout_s=0.2, answer_timeout_s=0.2, patience_s=0.5)
    with open_store(f"s3://{bucket}", access) as store, pytest.raises(StoreError, match=f"^s3://{bucket}: "):
        store.put(large, known(large))


def test_access_that_is_given_goes_before_variables_and_shows_no_secret(
    large: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    access = Access(endpoint=proxy.endpoint, key=KEY, secret=SECRET)
    assert KEY not in repr(access) and SECRET not in repr(access)
    with open_store(f"s3://{bucket}", access) as store:
        store.put(large, known(large)).raise_faults()


def test_a_small_part_of_an_object_is_read_alone(large: Path, proxy: Proxy, bucket: str) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, files_of(large)).raise_faults()
        data = (large / "states.pt").read_bytes()
        assert store.read("states.pt", 5, 1005) == data[5:1005]
        assert store.read("states.pt", 7, 7) == b""
        assert store.read("manifest.json") == b"{}"
        with pytest.raises(FileFault, match="is not in"):
            store.read("never")


def test_removed_objects_are_gone(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, files_of(large), "x").raise_faults()
        store.remove([*files_of(large), "never"], "x")
    assert not keys_in(s3, bucket)


_PEAK = """
import sys
from pathlib import Path
import botocore.session
from opsctl.transfer.object_store import etag, s3_upload
from opsctl.transfer.object_store.opening import open_store
from opsctl.transfer.object_store.tars import put_tar
from opsctl.transfer.object_store.types import ANYTHING
url, folder, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
if kind != "whole":
    etag._LEAST_PART_BYTES = s3_upload._MOST_WHOLE_BYTES = 5 << 20
s3_upload._MOST_MEMORY_BYTES = 10 << 20
botocore.session.Session().create_client("s3", region_name="x")
Path("/proc/self/clear_refs").write_text("5")
def status(field): return int(Path("/proc/self/status").read_text().partition(field + ":")[2].split()[0])
before = status("VmRSS")
files = {path.name: ANYTHING for path in folder.iterdir()}
with open_store(url) as store:
    (put_tar(store, folder, files, "all.tar") if kind == "tar" else store.put(folder, files)).raise_faults()
print(status("VmHWM") - before)
"""


@pytest.mark.parametrize(
    "kind", [*(pytest.param(one, marks=pytest.mark.nightly) for one in ("folder", "whole", "tar")), "in parts"]
)
def test_memory_is_not_that_of_a_file(tmp_path: Path, there: Path, server: str, bucket: str, kind: str) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    with (folder / "one.bin").open("wb") as file:
        file.truncate(64 << 20)
    words = [sys.executable, "-c", _PEAK, str(there) if kind == "folder" else f"s3://{bucket}", str(folder), kind]
    done = subprocess.run(words, env=environment(server), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48 << 10  # KiB; what is held besides, libraries too, is about 30 MiB for a tar


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes in parts in the other tests goes whole."""
    monkeypatch.setattr(s3_upload, "_MOST_WHOLE_BYTES", LARGE)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("^PUT", "answer", 2, 503, "SlowDown"), marks=pytest.mark.nightly),
        Fault("^PUT", "answer", 2, 400, "BadDigest"),
        pytest.param(Fault("^PUT", "cut request", 2), marks=pytest.mark.nightly),
        Fault("^PUT", "lost answer", 2),
        Fault("^PUT", "flip", 2),
    ],
    ids=lambda fault: f"{fault.does} {fault.status}",
)
def test_a_file_that_goes_whole_is_read_anew_for_every_try(
    large: Path, proxy: Proxy, bucket: str, s3: Any, fault: Fault, whole: None
) -> None:
    proxy.faults.append(Fault(**vars(fault)))
    with open_store(f"s3://{bucket}") as store:
        store.put(large, {"states.pt": ANYTHING}).raise_faults()
    assert content(s3, bucket, "states.pt") == (large / "states.pt").read_bytes()
    assert not proxy.count("^POST")


def test_a_file_that_the_server_calls_changed_on_the_way_again_and_again_is_refused_by_name(
    large: Path, proxy: Proxy, bucket: str
) -> None:
    proxy.faults.append(Fault("^PUT", "answer", 100, 400, "BadDigest"))
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, {"weights.pt": ANYTHING})
    assert [*outcome.faults] == ["weights.pt"] and f"s3://{bucket}, 3 times" in outcome.faults["weights.pt"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: os.truncate(path, PART + 10), "shrank"),
        (lambda path: path.open("ab").write(b"x"), "grew"),
        (lambda path: replaced(path), "replaced"),
    ],
    ids=["shrinks", "grows", "replaced"],
)
def test_a_file_that_changes_before_it_is_sent_once_more_is_refused(
    large: Path, proxy: Proxy, bucket: str, s3: Any, change: Callable[[Path], object], told: str, whole: None
) -> None:
    proxy.faults.append(Fault("^PUT", "answer", 1, 503, "SlowDown", calls=lambda: change(large / "states.pt")))
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, {"states.pt": ANYTHING})
    assert told in outcome.faults["states.pt"] and not keys_in(s3, bucket)


class Watched(Flow):
    """A flow that does something when the second piece is about to go over the line."""

    def __init__(self, does: Callable[[], object]) -> None:
        super().__init__()
        self.counts: list[int] = []
        self._does = does

    def take(self, count: int) -> None:
        self.counts.append(count)
        if len(self.counts) == 2:
            self._does()
        super().take(count)


@pytest.mark.parametrize("limit", [PART, LARGE], ids=["in parts", "whole"])
def test_a_limit_is_kept_piece_by_piece(
    large: Path, proxy: Proxy, bucket: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_upload, "_MOST_WHOLE_BYTES", limit)
    flow = Watched(lambda: None)
    with open_store(f"s3://{bucket}") as store:
        store.put(large, {"states.pt": ANYTHING}, flow=flow).raise_faults()
    assert sum(flow.counts) == LARGE and max(flow.counts) <= 1 << 20


def test_a_file_that_shrinks_while_it_is_sent_is_refused(
    large: Path, proxy: Proxy, bucket: str, s3: Any, whole: None
) -> None:
    with open_store(f"s3://{bucket}", Access(patience_s=1.0)) as store:
        outcome = store.put(
            large, {"states.pt": ANYTHING}, flow=Watched(lambda: os.truncate(large / "states.pt", 1000))
        )
    assert "1000 bytes" in outcome.faults["states.pt"] and not keys_in(s3, bucket)


def test_who_is_told_to_stop_in_the_midst_of_a_file_stops(
    large: Path, proxy: Proxy, bucket: str, s3: Any, whole: None
) -> None:
    flow = Watched(lambda: flow.stop())
    with open_store(f"s3://{bucket}") as store, pytest.raises(Stopped):
        store.put(large, {"states.pt": ANYTHING}, flow=flow)
    assert not keys_in(s3, bucket)


def test_an_interruption_ends_it_and_the_next_goes_on(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    def reached(count: int) -> None:
        if count >= PART:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), open_store(f"s3://{bucket}") as store:
        store.put(large, {"states.pt": ANYTHING}, flow=Flow(reached=reached))
    assert not keys_in(s3, bucket)
    proxy.requests.clear()
    with open_store(f"s3://{bucket}") as store:
        store.put(large, {"states.pt": ANYTHING}).raise_faults()
    assert proxy.count(UPLOADS) < 3 and not unfinished(s3, bucket)


def test_a_listing_without_etags_has_sizes_and_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"Contents": [{"Key": "run/a", "Size": 3, "LastModified": datetime.fromtimestamp(9, UTC)}]}
    with open_store("s3://some/run") as store:
        monkeypatch.setattr(store.backend, "_calls", lambda *_arguments, **_more: listed)
        monkeypatch.setattr(store.backend, "close", lambda: None)
        assert store.list() == {"a": FarFile(3, 9.0, mark="")}
