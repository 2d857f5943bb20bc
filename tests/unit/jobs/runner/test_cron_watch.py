from __future__ import annotations

from datetime import UTC, datetime

from opsctl.jobs.runner.cron_watch import Death
from opsctl.run.state.scheduler import CronChain, Heartbeat, stopped

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
CHAIN = CronChain(token="a", via="slurm", period_s=100, carried_by="ann", host="x", started_at=AT)


def beat(age_s: float) -> Heartbeat:
    return Heartbeat(AT, age_s)


def test_a_death_is_reported_once_within_two_periods_and_its_end_once() -> None:
    death = Death()
    assert death.news(CHAIN, beat(170)) == [] and not death.is_told
    (line,) = death.news(CHAIN, beat(176))
    assert "ALERT" in line and death.is_told
    assert death.news(CHAIN, beat(500)) == [] and death.is_told
    (back,) = death.news(CHAIN, beat(3))
    assert back.startswith("opsctl: ") and "ALERT" not in back and not death.is_told
    assert "ALERT" in death.news(CHAIN, beat(176))[0]


def test_a_chain_that_was_stopped_or_never_started_is_not_dead() -> None:
    death = Death()
    assert death.news(stopped(CHAIN), beat(9999)) == [] == death.news(None, None) and not death.is_told


def test_only_its_carrier_mends_it_and_once_in_two_periods() -> None:
    death = Death()
    assert not death.may_restart(CHAIN, "ben", 0)
    assert death.may_restart(CHAIN, "ann", 0)
    assert not death.may_restart(CHAIN, "ann", 199)
    assert death.may_restart(CHAIN, "ann", 200)
