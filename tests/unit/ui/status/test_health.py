"""The health of the cron and the alerts of a run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from opsctl.monitoring.overview import Extras
from opsctl.monitoring.snapshot import CronJob, CronSeen
from opsctl.run.state.alert_log import ChannelSeen
from opsctl.run.state.alerts import Silence
from opsctl.run.state.chains import REFILL, SUBMIT, Cancel, Chain
from opsctl.ui.status.json_output import printed_alerts, printed_cron
from opsctl.ui.status.screen import alerts_line, cron_line, refill_line
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW

ALIVE = CronSeen(
    "/c",
    True,
    "ann via slurm",
    heartbeat_at=NOW - timedelta(minutes=12),
    next_due_at=NOW + timedelta(minutes=48),
    jobs=(CronJob("hourly/refill", "done"), CronJob("daily/sync", "failed", 3, NOW - timedelta(days=2), "no quota")),
)


@pytest.mark.parametrize(
    ("cron", "facts"),
    [
        (CronSeen("/c", False, "ann via slurm"), ("stopped", "ann via slurm", "opsctl cron start")),
        (CronSeen("/c", True, problem="permission denied"), ("permission denied",)),
        (CronSeen("/c", True, "ann via slurm"), ("ann via slurm",)),
        (ALIVE, ("12 min", "ann via slurm", "48 min", "daily/sync", "3 times", "no quota")),
        (
            CronSeen("/c", True, "b", heartbeat_at=NOW - timedelta(hours=2), next_due_at=NOW - timedelta(hours=1)),
            ("2 h", "b", "1 h late"),
        ),
    ],
)
def test_the_line_of_the_cron(cron: CronSeen, facts: tuple[str, ...]) -> None:
    assert missing(cron_line(cron, NOW), *facts) == []


def test_a_cron_that_was_never_started_has_no_line() -> None:
    assert cron_line(None, NOW) == cron_line(CronSeen("/c", False), NOW) == ""


def test_alerts_that_go_through_need_no_line() -> None:
    assert alerts_line((ChannelSeen("mail"),), Extras(), NOW) == ""


def test_failing_channels_and_a_silence_are_shown() -> None:
    channels = (
        ChannelSeen("mail"),
        ChannelSeen("slack", NOW - timedelta(hours=5), "HTTP 429", 3),
        ChannelSeen("hook", waiting=1),
    )
    silence = Silence(until=NOW + timedelta(hours=2), by="ben", why="maintenance")
    line = alerts_line(channels, Extras(silence=silence), NOW)
    assert missing(line, "silenced", "ben", "maintenance", "slack", "5 h", "3 waiting", "HTTP 429", "hook") == []
    assert "mail" not in line and "no such disk" in alerts_line((), Extras(problem="no such disk"), NOW)


def test_a_paused_refill_names_the_user_who_cancelled() -> None:
    typed, kept = (
        Chain(chain=number, submitted_at=NOW, user="ann", array="1", how=how)
        for number, how in ((1, SUBMIT), (2, REFILL))
    )
    extras = Extras(cancels=(Cancel(at=NOW, by="ann", chains=1),))
    assert missing(refill_line((typed, kept), extras), "paused", "ann") == []
    assert refill_line((typed, typed), extras) == "" and refill_line((typed,), Extras()) == ""


def test_programs_get_all_of_it_always() -> None:
    cron = printed_cron(ALIVE, NOW)
    assert cron is not None and (cron.heartbeat_age_s, cron.jobs[1].failures) == (720.0, 3)
    assert printed_cron(None, NOW) is None
    alerts = printed_alerts((ChannelSeen("mail"),), Extras())
    assert (alerts.channels[0].name, alerts.silenced_until, alerts.problem) == ("mail", None, None)
