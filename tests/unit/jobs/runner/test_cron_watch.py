from __future__ import annotations

from datetime import UTC, datetime

from opsctl.jobs.runner.cron_watch import Death
from opsctl.run.state.scheduler import CronChain, Heartbeat, stopped

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
CHAIN = CronChain(token="a", via="slurm", period_s=100, carried_by="ann", host="x", started_at=AT)


def beat(age_s: float) -> Heartbeat:
    return Heartbeat(AT, age_s)


def said(death: Death) -> list[str]:
    lines = list(death.lines)
    death.lines.clear()
    return lines


def test_a_death_is_said_once_within_two_periods_and_its_end_once() -> None:
    death = Death()
    assert not death.seen(CHAIN, beat(170)) and said(death) == []
    assert death.seen(CHAIN, beat(176)) and len(said(death)) == 1
    assert death.seen(CHAIN, beat(500)) and said(death) == []
    assert not death.seen(CHAIN, beat(3))
    (back,) = said(death)
    assert back.startswith("opsctl: ") and "ALERT" not in back
    assert death.seen(CHAIN, beat(176)) and "ALERT" in said(death)[0]


def test_a_chain_that_somebody_stopped_or_nobody_started_is_not_dead() -> None:
    death = Death()
    assert not death.seen(stopped(CHAIN), beat(9999)) and not death.seen(None, None)
    assert said(death) == []


def test_only_its_carrier_mends_it_and_once_in_two_periods() -> None:
    death = Death()
    assert not death.may_restart(CHAIN, "ben", 0)
    assert death.may_restart(CHAIN, "ann", 0)
    assert not death.may_restart(CHAIN, "ann", 199)
    assert death.may_restart(CHAIN, "ann", 200)
