"""The token of a sync is in the header of requests to the hub, and nowhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hub_server import TOKEN, Fault, Request
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]


def files_with(token: str, root: Path, but: Path) -> list[Path]:
    found = [one for one in root.rglob("*") if one.is_file() and not one.is_symlink() and one != but]
    return [one for one in found if token.encode() in one.read_bytes()]


def test_a_token_revoked_in_the_middle_ends_it_without_a_word_of_it_and_the_next_login_goes_on(desk: Desk) -> None:
    desk.write("tensorboard/second.tfevents", bytes(5000))
    desk.hub.faults = [Fault("info", "revoke", after=1)]
    accounts = dict(desk.hub.accounts)
    done = desk.opsctl("sync")
    assert done.returncode == 1
    assert "lab/run (401): opsctl hub login" in done.stderr
    assert TOKEN not in done.stdout + done.stderr and desk.hub.commits(REPO) == []
    assert files_with(TOKEN, desk.folder, desk.folder / "home" / "token") == []
    desk.hub.accounts.update(accounts)
    arrived = list(desk.hub.taken)
    assert not desk.sync().left and desk.hub.taken == arrived and arrived


@pytest.mark.parametrize("how", ["login", pytest.param("file", marks=pytest.mark.nightly), "env"])
def test_a_token_is_on_no_command_line_and_reaches_no_storage(desk: Desk, how: str) -> None:
    seen: list[str] = []
    kept = desk.folder / "home" / "token"
    variables = {}
    if how != "login":
        other = "hf_" + "AnotherOfOurTests" * 2
        desk.hub.accounts = {other: desk.hub.accounts[TOKEN]}
        kept = desk.folder / "kept"
        kept.write_text(other + "\n")
        kept.chmod(0o600)
        reference = f"file:{kept}" if how == "file" else "env:OF_THE_HUB"
        variables = {"OF_THE_HUB": other} if how == "env" else {}
        with (desk.folder / "run" / "run.toml").open("a") as file:
            file.write(f'token = "{reference}"\n')
    token = kept.read_text().strip()

    def look(_: Request) -> None:
        for one in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(one.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue

    desk.hub.faults = [Fault("put", "call", call=look), Fault("commit", "call", call=look)]
    done = desk.process("sync", **variables)
    assert done.returncode == 0, done.stderr
    assert any("opsctl hub sync" in line for line in seen) and not any(token in line for line in seen)
    assert token not in done.stdout + done.stderr and not desk.hub.leaked
    assert files_with(token, desk.folder, kept) == []


def test_a_token_in_the_run_file_itself_is_refused_and_not_repeated(desk: Desk) -> None:
    with (desk.folder / "run" / "run.toml").open("a") as file:
        file.write(f'token = "{TOKEN}"\n')
    done = desk.opsctl("sync")
    assert done.returncode == 2 and "[hub] token" in done.stderr and TOKEN not in done.stderr


def test_login_tries_the_token_and_keeps_it_for_its_owner_alone(desk: Desk) -> None:
    kept = desk.folder / "home" / "token"
    environment = desk.environment()
    kept.unlink()

    def login(token: str) -> subprocess.CompletedProcess[str]:
        words = [*desk.words("login")[:5]]
        return subprocess.run(words, env=environment, input=token + "\n", text=True, capture_output=True, timeout=60)

    wrong = login("hf_" + "NotKnownAtTheHub" * 2)
    assert wrong.returncode == 1 and "NotKnown" not in wrong.stdout + wrong.stderr and not kept.exists()
    done = login(TOKEN)
    assert done.returncode == 0 and "ann" in done.stdout and f"{kept}\n" in done.stdout, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert kept.read_text() == TOKEN and kept.stat().st_mode & 0o077 == 0


def test_a_login_beside_a_variable_says_which_one_counts(desk: Desk) -> None:
    words, other = [*desk.words("login")[:5]], "hf_" + "AnotherOfOurTests" * 2
    environment = desk.environment(HF_TOKEN=other)
    done = subprocess.run(words, env=environment, input=TOKEN + "\n", text=True, capture_output=True, timeout=60)
    assert "HF_TOKEN" in done.stdout and other not in done.stdout + done.stderr


def test_a_token_that_can_be_none_is_said_to_be(desk: Desk) -> None:
    done = desk.opsctl("sync", HF_TOKEN="hf_tökenOfOurs")
    assert done.returncode == 1 and "opsctl hub login" in done.stderr
    assert "OfOurs" not in done.stdout + done.stderr
