from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.alerts.channels import Channel, channel_name, target_of
from opsctl.alerts.secrets import Redactor, SecretRefused, follow
from opsctl.records.alert_log import CHANNELS
from opsctl.runs.alert_urls import secret_in, written_problem

TOKEN = "T0K3N9aZ8sQ7wX6eC5rV4"
SLACK = f"slack://{TOKEN}/B1JUA29Q7/{TOKEN[::-1]}/#ops"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.toml"
    path.touch(mode=0o600)
    return path


def secret_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "slack.url"
    path.write_text(f"\n{SLACK}\nmore\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_ones_own_that_nobody_else_reads_is_followed(tmp_path: Path, profile: Path, mode: int) -> None:
    secret_file(tmp_path, mode)
    assert follow("file:slack.url", profile, {}) == SLACK


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_file_that_others_can_use_is_refused_by_name_with_what_to_do(
    tmp_path: Path, profile: Path, mode: int
) -> None:
    path = secret_file(tmp_path, mode)
    with pytest.raises(SecretRefused, match=f"others can use .*mode {mode:04o}.: chmod 600") as refused:
        follow(f"file:{path}", profile, {})
    assert TOKEN not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_file_of_somebody_elses_is_refused(tmp_path: Path, profile: Path) -> None:
    path = secret_file(tmp_path)
    os.chown(path, 12345, 12345)
    with pytest.raises(SecretRefused, match="belongs to uid 12345"):
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


def test_a_variable_and_a_programs_first_line_are_followed(profile: Path) -> None:
    path = {"PATH": os.environ["PATH"]}
    assert follow("env:SLACK", profile, {"SLACK": SLACK}) == SLACK
    assert follow(f"command:printf '%s\\n' {SLACK} more", profile, path) == SLACK
    with pytest.raises(SecretRefused, match="the variable SLACK is not set"):
        follow("env:SLACK", profile, {})
    with pytest.raises(SecretRefused, match="ended with 1"):
        follow("command:false", profile, path)
    with pytest.raises(SecretRefused, match="no such program"):
        follow("command:./here", profile, path)
    with pytest.raises(SecretRefused, match="nothing behind it"):
        follow("command:true", profile, path)


def test_a_program_that_hangs_is_ended(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.alerts.secrets.COMMAND_TIMEOUT_S", 0.3)
    with pytest.raises(SecretRefused, match="no answer within"):
        follow("command:sleep 60", profile, {"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("reference", ["file:slack.url", "env:SLACK", "command:echo x", "hook:/bin/true"])
def test_nothing_is_followed_that_others_could_have_written(tmp_path: Path, profile: Path, reference: str) -> None:
    secret_file(tmp_path)
    profile.chmod(0o666)
    channel = Channel("x", reference, profile, (CHANNELS,))
    with pytest.raises(SecretRefused, match="nobody else can change"):
        target_of(channel, {"SLACK": SLACK, "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    "reading",
    [
        "mailto://host?to=a@b.org&pgppub=/home/ann/.ssh/id",
        "mailto://host?to=a@b.org&%70%67ppub=/home/ann/.ssh/id",
        "ntfy://host/topic?%2561ttach=/home/ann/.ssh/id",
        "ntfy://host/topic/#?attach=/home/ann/.ssh/id",
    ],
)
def test_a_literal_url_that_reads_files_is_refused_where_others_could_have_written_it(
    profile: Path, reading: str
) -> None:
    profile.chmod(0o666)
    plain = "mailto://host?to=a@b.org"
    assert target_of(Channel("x", plain, profile, (CHANNELS,)), {}).url == plain
    with pytest.raises(SecretRefused):
        target_of(Channel("x", reading, profile, (CHANNELS,)), {})


@pytest.mark.parametrize(
    "url",
    [
        SLACK,
        "mailtos://ann:hunter22@example.org",
        "json://ann:hunter22@host/path",
        "json://host/path?+Authorization=Bearer",
        f"jsons://host/services/{TOKEN}",
        f"https://host/{TOKEN}",
        f"json://host/?x={TOKEN}",
        "pagerduty://a@b",
        "tgram://123456789:abcdefg/5",
        f"json://{TOKEN}@host/",
        "mailto://host?to=a@b.org&pass=abc",
        "json://[bad",
    ],
)
def test_a_url_with_a_secret_is_known_without_being_repeated(url: str, profile: Path) -> None:
    assert secret_in(url)
    problem = written_problem(url, may_have_secret=False)
    assert problem and "file:PATH" in problem and TOKEN not in problem and "hunter22" not in problem
    assert written_problem(url, may_have_secret=True) is None
    profile.chmod(0o644)
    with pytest.raises(SecretRefused) as refused:
        target_of(Channel("x", url, profile, (CHANNELS,)), {})
    assert str(profile) in str(refused.value) and TOKEN not in str(refused.value)
    profile.chmod(0o600)
    assert target_of(Channel("x", url, profile, (CHANNELS,)), {}).url == url


@pytest.mark.parametrize(
    "url",
    [
        "mailto://mail.example.org?from=desk@example.org&to=ann@example.org",
        "json://host:8080/alerts",
        "ntfy://host/ops",
    ],
)
def test_a_url_without_a_secret_may_stand_anywhere(url: str) -> None:
    assert secret_in(url) is None and written_problem(url, may_have_secret=False) is None


@pytest.mark.parametrize("text", ["", "slack", TOKEN, "file:", "mailto:ann@example.org", "a\nb://c", "hook:"])
def test_what_is_no_channel_is_refused_without_being_repeated(text: str) -> None:
    problem = written_problem(text, may_have_secret=True)
    assert problem and TOKEN not in problem and "allowed is" in problem


def test_a_channels_name_has_no_secret_and_stays_the_same(profile: Path) -> None:
    texts = [SLACK, "mailto://ann:hunter22@host?to=x@y.org", f"command:echo {TOKEN}", f"hook:/bin/tell {TOKEN}"]
    names = [channel_name(text, profile) for text in texts]
    assert names == [channel_name(text, profile) for text in texts] and len(set(names)) == 4
    assert not any(secret in name for name in names for secret in (TOKEN, "hunter22"))
    assert channel_name("file:slack.url", profile) == f"file:{profile.parent}/slack.url"


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (SLACK, [TOKEN, TOKEN[::-1], SLACK]),
        ("mailtos://ann:p%40ss%2Fw0rd@example.org", ["p%40ss%2Fw0rd", "p@ss/w0rd", "p%40ss/w0rd"]),
        ("json://user:h+nter 22@host/x", ["h+nter 22", "h%2Bnter%2022", "h%2Bnter+22"]),
    ],
)
def test_secrets_are_taken_out_however_they_are_quoted(url: str, secrets: list[str]) -> None:
    redact = Redactor([url])
    for secret in secrets:
        assert redact(f"it said {secret} to us") == "it said *** to us"
    assert redact("Connection refused by example.org at host") == "Connection refused by example.org at host"
