from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.run.logs.line_text import last_lines
from opsctl.transfer.hub import far_log
from opsctl.transfer.hub.far_files import FarFiles, Look, repo_of
from opsctl.transfer.hub.far_log import last_far_lines
from opsctl.transfer.hub.hub_errors import NotNow
from tests.hub_server import Hub
from tests.unit.transfer.hub.far import LOG, REPO, hub, log_in, pushes

__all__ = ["hub"]


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, start + count))


def ranges(hub: Hub) -> list[str]:
    """Return what of the log was fetched."""
    return [one.headers.get("range", "") for one in hub.asked("resolve") if one.method == "GET"]


def fetched_bytes(hub: Hub) -> int:
    ends = [one.removeprefix("bytes=").split("-") for one in ranges(hub)]
    return sum(int(last) + 1 - int(first) for first, last in ends)


def last(count: int) -> list[str]:
    files = FarFiles(repo_of(REPO))
    look = files.look(LOG)
    assert look is not None
    return last_far_lines(files, look, count)


@pytest.mark.parametrize("size", [0, 1, 200])
@pytest.mark.parametrize("count", [0, 7, 1000])
@pytest.mark.parametrize("rest", [b"", b"half"])
def test_the_last_lines_are_those_of_the_log_at_hand(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, count: int, rest: bytes
) -> None:
    monkeypatch.setattr(far_log, "_FIRST_BYTES", 64)
    content = numbered(size) + rest
    pushes(hub, content)()
    log = tmp_path / "log"
    log.write_bytes(content)
    with log.open("rb") as at_hand:
        assert last(count) == list(last_lines(at_hand.fileno(), count))


def test_of_a_long_log_only_the_end_travels(hub: Hub) -> None:
    pushes(hub, numbered(400_000))()
    assert last(3) == ["line 399997", "line 399998", "line 399999"]
    assert fetched_bytes(hub) == 64 * 1024


def test_a_log_in_the_large_files_storage_is_read_there_without_the_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch)
    hub.lfs_from_bytes = 0
    from huggingface_hub import HfApi

    api = HfApi()
    api.upload_file(path_or_fileobj=b"a\nb\n", path_in_repo=LOG, repo_id=REPO)
    assert hub.files(REPO)[LOG].lfs
    assert last(1) == ["b"]
    assert hub.asked("fetch") and not hub.leaked


def test_a_private_repository_is_read_with_a_token_and_unseen_without(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO].private = True
    pushes(hub, b"a\n")()
    with pytest.raises(OpsctlError, match=r"lab/run .*opsctl hub login"):
        last(5)
    log_in(monkeypatch)
    assert last(5) == ["a"]


def test_another_revision_is_read_as_it_stands(hub: Hub) -> None:
    first = hub.commit(REPO, {LOG: b"a\n"})
    hub.commit(REPO, {LOG: b"a\nb\n"})
    files = FarFiles(repo_of(REPO, first))
    look = files.look(LOG)
    assert look is not None and last_far_lines(files, look, 5) == ["a"]
    with pytest.raises(UsageError, match="'nowhere'"):
        FarFiles(repo_of(REPO, "nowhere")).look(LOG)


def test_a_commit_that_vanished_between_look_and_read_is_looked_at_again(hub: Hub) -> None:
    pushes(hub, b"a\n")()
    files = FarFiles(repo_of(REPO))
    with pytest.raises(NotNow):
        list(files.read(LOG, Look("0" * 40, 2), 0, 2))


@pytest.mark.parametrize("text", ["run", "a/b/c", "../x/y", "lab/run;rm", "", "https://hf.co/", "datasets/x"])
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="OWNER/NAME"):
        repo_of(text)


def test_a_repository_is_named_in_several_ways() -> None:
    assert repo_of("https://huggingface.co/lab/run/") == repo_of("lab/run") == repo_of("models/lab/run")
    assert str(repo_of("datasets/lab/text")) == "datasets/lab/text"
    assert repo_of("https://huggingface.co/datasets/lab/text").kind == "dataset"
