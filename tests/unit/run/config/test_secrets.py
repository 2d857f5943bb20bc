from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.run.config.secrets import Redactor, SecretRefused, follow
from tests.unit.run.state.planted_secrets import SLACK, TOKEN, profile, secret_file

__all__ = ["profile"]


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_ones_own_that_nobody_else_reads_is_followed(tmp_path: Path, profile: Path, mode: int) -> None:
    secret_file(tmp_path, mode)
    assert follow("file:slack.url", profile, {}) == SLACK


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_secret_file_that_others_can_use_is_refused_with_the_command_to_type(
    tmp_path: Path, profile: Path, mode: int
) -> None:
    path = secret_file(tmp_path, mode)
    with pytest.raises(SecretRefused, match=f"{mode:04o}.*chmod 600") as refused:
        follow(f"file:{path}", profile, {})
    assert TOKEN not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_secret_file_of_another_user_is_refused(tmp_path: Path, profile: Path) -> None:
    path = secret_file(tmp_path)
    os.chown(path, 12345, 12345)
    with pytest.raises(SecretRefused, match="12345"):
        follow(f"file:{path}", profile, {})


@pytest.mark.parametrize("what", ["fifo", "folder", "nothing", "empty"])
def test_what_is_no_file_is_refused_and_waited_for_by_nobody(tmp_path: Path, profile: Path, what: str) -> None:
    path = tmp_path / "secret"
    if what == "fifo":
        os.mkfifo(path, 0o600)
    elif what == "folder":
        path.mkdir(mode=0o700)
    elif what == "empty":
        path.touch(mode=0o600)
    with pytest.raises(SecretRefused):
        follow(f"file:{path}", profile, {})


def test_a_secret_is_read_from_a_variable_or_the_first_line_of_a_program(profile: Path) -> None:
    path = {"PATH": os.environ["PATH"]}
    assert follow("env:SLACK", profile, {"SLACK": SLACK}) == SLACK
    assert follow(f"command:printf '%s\\n' {SLACK} more", profile, path) == SLACK
    with pytest.raises(SecretRefused, match="SLACK"):
        follow("env:SLACK", profile, {})
    with pytest.raises(SecretRefused, match=r"\b1\b"):
        follow("command:false", profile, path)
    with pytest.raises(SecretRefused):
        follow("command:./here", profile, path)
    with pytest.raises(SecretRefused):
        follow("command:true", profile, path)


def test_a_program_that_hangs_is_ended(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.run.config.secrets.COMMAND_TIMEOUT_S", 0.3)
    with pytest.raises(SecretRefused, match=r"\d s"):
        follow("command:sleep 60", profile, {"PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (SLACK, [TOKEN, TOKEN[::-1], SLACK]),
        ("mailtos://ann:p%40ss%2Fw0rd@example.org", ["p%40ss%2Fw0rd", "p@ss/w0rd", "p%40ss/w0rd"]),
        ("json://user:h+nter 22@host/x", ["h+nter 22", "h%2Bnter%2022", "h%2Bnter+22"]),
    ],
)
def test_secrets_are_redacted_in_every_quoting(url: str, secrets: list[str]) -> None:
    redact = Redactor([url])
    for secret in secrets:
        assert redact(f"it said {secret} to us") == "it said *** to us"
    assert redact("refused by example.org") == "refused by example.org"
