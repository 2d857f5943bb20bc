from __future__ import annotations

import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.transfer.hub.far_files import FarFiles, Look, repo_of
from opsctl.transfer.hub.hub_errors import NotNow
from tests.hub_server import Hub
from tests.unit.transfer.hub.far import LOG, REPO, hub, log_in, pushes

__all__ = ["hub"]


def content(files: FarFiles, start: int = 0) -> bytes:
    look = files.look(LOG)
    assert look is not None
    return b"".join(files.read(LOG, look, start, look.size_bytes))


def test_only_what_is_asked_for_travels(hub: Hub) -> None:
    pushes(hub, b"0123456789" * 1000)()
    assert content(FarFiles(repo_of(REPO)), 9_995) == b"56789"
    (only,) = [one.headers.get("range") for one in hub.asked("resolve") if one.method == "GET"]
    assert only == "bytes=9995-9999"


def test_a_log_in_the_large_files_storage_is_read_there_without_the_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch)
    hub.lfs_from_bytes = 0
    from huggingface_hub import HfApi

    api = HfApi()
    api.upload_file(path_or_fileobj=b"a\nb\n", path_in_repo=LOG, repo_id=REPO)
    assert hub.files(REPO)[LOG].lfs
    assert content(FarFiles(repo_of(REPO))) == b"a\nb\n"
    assert hub.asked("fetch") and not hub.leaked


def test_a_private_repository_is_read_with_a_token_and_unseen_without(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO].private = True
    pushes(hub, b"a\n")()
    with pytest.raises(OpsctlError, match=r"lab/run .*opsctl hub login"):
        content(FarFiles(repo_of(REPO)))
    log_in(monkeypatch)
    assert content(FarFiles(repo_of(REPO))) == b"a\n"


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
