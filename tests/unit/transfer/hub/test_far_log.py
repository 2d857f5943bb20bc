from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.run.logs.line_text import last_lines
from opsctl.transfer.hub import far_files, far_log
from opsctl.transfer.hub.far_files import FarFiles, Look, repo_of
from opsctl.transfer.hub.far_log import last_far_lines
from opsctl.transfer.hub.hub_errors import NotNow
from tests.hub_server import TOKEN, Fault, Hub
from tests.unit.transfer.hub.far import LOG, REPO, Script, hub, log_in, pushes

__all__ = ["hub"]


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, start + count))


def ranges(hub: Hub) -> list[str]:
    """Return what of the log was fetched."""
    return [one.headers.get("range", "") for one in hub.asked("resolve") if one.method == "GET"]


def fetched_bytes(hub: Hub) -> int:
    ends = [one.removeprefix("bytes=").split("-") for one in ranges(hub)]
    return sum(int(last) + 1 - int(first) for first, last in ends)


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
    files = FarFiles(repo_of(REPO))
    look = files.look(LOG)
    assert look is not None
    with log.open("rb") as at_hand:
        assert last_far_lines(files, look, count) == list(last_lines(at_hand.fileno(), count))


def test_of_a_long_log_only_the_end_travels(hub: Hub) -> None:
    pushes(hub, numbered(400_000))()
    assert Script().followed(3) == ["line 399997", "line 399998", "line 399999"]
    assert fetched_bytes(hub) == 64 * 1024


def test_what_comes_is_fetched_once_and_nothing_else(hub: Hub) -> None:
    first, second = numbered(20_000), numbered(20_100)
    pushes(hub, first)()
    script = Script(lambda: hub.requests.clear(), pushes(hub, second), lambda: None, lambda: None)
    assert script.followed(2) == ["line 19998", "line 19999", *second[len(first) :].decode().splitlines()]
    assert fetched_bytes(hub) == len(second) - len(first)
    assert [one.method for one in hub.asked()] == ["HEAD", "HEAD", "GET", "HEAD", "HEAD"]
    assert script.heard == []


def test_a_commit_that_leaves_the_log_alone_fetches_nothing(hub: Hub) -> None:
    pushes(hub, b"a\n")()
    Script(lambda: hub.requests.clear(), pushes(hub, b"# card\n", "README.md"), lambda: None).followed()
    assert ranges(hub) == []


def test_a_log_in_the_large_files_storage_is_read_there_without_the_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch)
    hub.lfs_from_bytes = 0
    from huggingface_hub import HfApi

    api = HfApi()
    api.upload_file(path_or_fileobj=b"a\nb\n", path_in_repo=LOG, repo_id=REPO)

    def grow() -> None:
        api.upload_file(path_or_fileobj=b"a\nb\nc\n", path_in_repo=LOG, repo_id=REPO)

    assert hub.files(REPO)[LOG].lfs
    assert Script(grow).followed(1) == ["b", "c"]
    assert hub.asked("fetch") and not hub.leaked


def test_a_half_written_line_is_given_once_and_whole(hub: Hub) -> None:
    pushes(hub, b"a\nhal")()
    assert Script(pushes(hub, b"a\nhalf"), pushes(hub, b"a\nhalf\nb")).followed() == ["a", "half"]


@pytest.mark.parametrize(
    ("content", "event"),
    [
        (b"x\n", "short"),
        (b"", "short"),
    ],
)
def test_another_log_under_the_same_name_is_read_from_its_beginning(hub: Hub, content: bytes, event: str) -> None:
    pushes(hub, b"a\nb")()
    script = Script(pushes(hub, content), lambda: None)
    assert script.followed() == ["a", "b", *content.decode().splitlines()]
    (heard,) = script.heard
    assert heard.startswith(f"{LOG} ") and event in heard


def test_a_log_that_is_not_there_yet_or_goes_away_for_a_while_is_waited_for(hub: Hub) -> None:
    script = Script(pushes(hub, b"a\n"), pushes(hub, None), lambda: None, pushes(hub, b"a\nb\n"), lambda: None)
    assert script.followed() == ["a", "b"]
    assert [one.startswith(f"{REPO}: ") for one in script.heard] == [True] * 4
    assert [LOG in one for one in script.heard] == [True, False, True, False]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("resolve", status=503, times=3), "503"),
        (Fault("resolve", status=429, times=2), "429"),
        (Fault("resolve", does="cut", times=2), "RemoteProtocolError"),
        (Fault("resolve", does="short", times=1, after=1), "RemoteProtocolError"),
    ],
)
def test_a_hub_that_does_not_answer_for_a_while_costs_no_line_and_gives_none_twice(
    hub: Hub, fault: Fault, said: str
) -> None:
    first, second = numbered(100), numbered(300)
    pushes(hub, first)()

    def trouble() -> None:
        pushes(hub, second)()
        hub.faults.append(fault)

    script = Script(trouble, *[lambda: None] * 5)
    assert script.followed(1000) == second.decode().splitlines()
    assert [(one.startswith(f"{REPO}: "), said in one) for one in script.heard] == [(True, True), (True, False)]


def test_a_download_that_ends_in_the_middle_of_a_block_goes_on_where_it_was(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_files, "BLOCK_BYTES", 100)
    pushes(hub, numbered(10))()

    def trouble() -> None:
        pushes(hub, numbered(200))()
        hub.faults.append(Fault("resolve", does="short", after=5))

    assert Script(trouble, lambda: None, lambda: None).followed(1000) == numbered(200).decode().splitlines()


def test_a_hub_that_asks_for_patience_is_left_alone_so_long(hub: Hub) -> None:
    pushes(hub, b"a\n")()
    looks: list[int] = []

    def limit() -> None:
        hub.faults.append(Fault("resolve", status=429, headers={"Retry-After": "200"}))
        hub.requests.clear()

    script = Script(limit, *[lambda: looks.append(len(hub.asked()))] * 5)
    script.followed()
    # A look is made every 60 s; after the refusal not before 200 s have passed.
    assert looks == [1, 1, 1, 1, 2]


def test_a_hub_that_cannot_be_reached_is_waited_for_too(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import close_session, constants

    pushes(hub, b"a\n")()
    there = constants.HUGGINGFACE_CO_URL_TEMPLATE

    def off() -> None:
        nowhere = there.replace(hub.endpoint, "http://127.0.0.1:9")
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere)
        close_session()

    def on() -> None:
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", there)
        pushes(hub, b"a\nb\n")()

    script = Script(off, lambda: None, on, lambda: None)
    assert script.followed() == ["a", "b"]
    assert ["ConnectError" in one for one in script.heard] == [True, False]


def test_a_token_that_is_taken_back_ends_the_following_with_what_to_type(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch)
    pushes(hub, b"a\n")()
    script = Script(hub.accounts.clear)
    with pytest.raises(OpsctlError, match=r"lab/run \(401\): opsctl hub login") as refused:
        script.followed()
    assert TOKEN not in str(refused.value)


def test_a_private_repository_is_read_with_a_token_and_unseen_without(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO].private = True
    pushes(hub, b"a\n")()
    with pytest.raises(OpsctlError, match=r"lab/run .*opsctl hub login"):
        Script().followed()
    log_in(monkeypatch)
    assert Script().followed() == ["a"]


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
        list(files.read(LOG, Look("0" * 40, "etag", 2), 0, 2))


@pytest.mark.parametrize("text", ["run", "a/b/c", "../x/y", "lab/run;rm", "", "https://hf.co/", "datasets/x"])
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="OWNER/NAME"):
        repo_of(text)


def test_a_repository_is_named_in_several_ways() -> None:
    assert repo_of("https://huggingface.co/lab/run/") == repo_of("lab/run") == repo_of("models/lab/run")
    assert str(repo_of("datasets/lab/text")) == "datasets/lab/text"
    assert repo_of("https://huggingface.co/datasets/lab/text").kind == "dataset"
