"""Test what stands in [alerts] as a channel: its secrets are known, and neither repeated nor followed for others."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from opsctl.monitoring.alerts.channels import Channel, channel_name, target_of
from opsctl.run.config.secret_references import secret_in, written_problem
from opsctl.run.config.secrets import SecretRefused
from opsctl.run.state.alert_log import CHANNELS
from tests.unit.run.state.planted_secrets import SLACK, TOKEN, profile, secret_file

__all__ = ["profile"]


@pytest.mark.parametrize("reference", ["file:slack.url", "env:SLACK", "command:echo x", "hook:/bin/true"])
def test_nothing_is_followed_that_others_could_have_written(tmp_path: Path, profile: Path, reference: str) -> None:
    secret_file(tmp_path)
    profile.chmod(0o666)
    channel = Channel("x", reference, profile, (CHANNELS,))
    with pytest.raises(SecretRefused, match=re.escape(str(profile))):
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
    assert problem and TOKEN not in problem


def test_a_channels_name_has_no_secret_and_stays_the_same(profile: Path) -> None:
    texts = [SLACK, "mailto://ann:hunter22@host?to=x@y.org", f"command:echo {TOKEN}", f"hook:/bin/tell {TOKEN}"]
    names = [channel_name(text, profile) for text in texts]
    assert names == [channel_name(text, profile) for text in texts] and len(set(names)) == 4
    assert not any(secret in name for name in names for secret in (TOKEN, "hunter22"))
    assert channel_name("file:slack.url", profile) == f"file:{profile.parent}/slack.url"
