"""The watchdog's lines: the original ones as printed, and our own parsed again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.logs.pulse import FORMS, alert_line, parse_pulse, pulse_line, words_of
from opsctl.run.logs.records import Alert, Pulse, WatchdogState
from opsctl.slurm.durations import format_duration

STAMP = "[2021-10-02 05:00:03] PULSE: "


def pulse_of(text: str) -> Pulse:
    record = parse_pulse(STAMP + text)
    assert isinstance(record, Pulse), text
    return record


@pytest.mark.parametrize("end", [")", "))"])
def test_a_running_line_is_read_with_and_without_its_last_parenthesis(end: str) -> None:
    found = pulse_of(
        f"tr1-13B is running for 2:10:00 since 2021-10-02T02:50:03 (1528763_4 on 'gpu_p13' partition (r6i4n[0-3,5]{end}"
    )
    assert (found.name, found.state, found.job_id, found.partition, found.nodes, found.elapsed, found.starts_at) == (
        "tr1-13B",
        "running",
        "1528763_4",
        "gpu_p13",
        "r6i4n[0-3,5]",
        "2:10:00",
        "2021-10-02T02:50:03",
    )


@pytest.mark.parametrize(
    ("text", "state", "starts_at"),
    [
        (
            "is waiting for the previous Job Array job to finish before scheduling a new one"
            " (1528874_[1-3%1] on 'gpu_p13' partition)",
            "array-limit",
            "",
        ),
        (
            "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
            " (1528874_[1-3%1] on 'gpu_p13' partition)",
            "dependency",
            "",
        ),
        ("is waiting to be scheduled (1528874_[1-3%1] on 'gpu_p13' partition)", "pending", ""),
        (
            "is scheduled to start in 1 day, 2:10:00 (at 2021-10-03T07:10:03) (1528874_[1-3%1] on 'gpu_p13' partition)",
            "scheduled",
            "2021-10-03T07:10:03",
        ),
        (
            "is unknown - fix me: (at 2021-10-03T07:10:03) (1528874_[1-3%1] on 'gpu_p13' partition) ((null))",
            "unknown",
            "2021-10-03T07:10:03",
        ),
    ],
)
def test_the_originals_other_forms_are_read(text: str, state: str, starts_at: str) -> None:
    found = pulse_of(f"tr1-13B-round3.slurm {text}")
    assert (found.name, found.state, found.job_id, found.partition, found.starts_at) == (
        "tr1-13B-round3.slurm",
        state,
        "1528874_[1-3%1]",
        "gpu_p13",
        starts_at,
    )
    assert found.at == datetime(2021, 10, 2, 5, 0, 3)  # noqa: DTZ001


@pytest.mark.parametrize("before", ["", STAMP])
def test_an_alert_is_read_alone_and_after_its_stamp(before: str) -> None:
    found = parse_pulse(before + "***ALERT: tr11-176B-ml is not RUNNING or SCHEDULED! Alert someone at Eng WG***")
    assert isinstance(found, Alert)
    assert (found.name, found.team) == ("tr11-176B-ml", "Eng WG")
    assert (found.at is None) == (before == "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "PULSE: x is waiting to be scheduled",
        "[2021-99-02 05:00:03] PULSE: x is waiting to be scheduled",
        STAMP + "nothing that we know",
        "[2021-10-02 05:00:03] something else",
        "***ALERT: half of it",
    ],
)
def test_other_lines_are_no_pulse(line: str) -> None:
    assert parse_pulse(line) is None


#: The words of every form, of which a training's name may be made up as well.
WORDS = [form.partition("{")[0].strip() for form in FORMS.values()]
PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), min_size=1, max_size=30)
NAMES = st.one_of(
    PRINTABLE,
    st.lists(st.one_of(PRINTABLE, st.sampled_from([*WORDS, "(12_1 on 'gpu' partition)"])), min_size=1, max_size=4).map(
        " ".join
    ),
).filter(str.strip)
CLOCK = st.one_of(st.just("N/A"), st.datetimes().map(lambda at: at.strftime("%Y-%m-%dT%H:%M:%S")))
DURATION = st.one_of(
    st.timedeltas(timedelta(0), timedelta(days=400)).map(
        lambda left: str(timedelta(seconds=int(left.total_seconds())))
    ),
    st.integers(0, 10**7).map(format_duration),
)
DETAILS = {
    "finished": st.tuples(st.integers(0), st.integers(0)).map(lambda at: f"iteration {at[0]}, {at[1]} samples"),
    "rests": st.just("the kill switch is triggered by ann at 2026-11-22T12:00:00+01:00: the loss is stuck"),
    "blind": st.just("Slurm does not answer (squeue: no answer within 8 s)"),
}
JOBLESS = {"finished", "blind", "absent", "rests"}


@st.composite
def sayings(draw: st.DrawFn, states: Iterable[str]) -> WatchdogState:
    """Generate states of a training, each with only the fields of its form."""
    state = draw(st.sampled_from(sorted(states)))
    asked = {name: f"{{{name}}}" in FORMS[state] for name in ("elapsed", "starts_at", "reason")}
    job = {}
    if state not in JOBLESS:
        rest = draw(st.sampled_from(["", "_7", "_[2-3%1]", "_[1,5-9]"]))
        job = {
            "job_id": f"{draw(st.integers(1, 10**9))}{rest}",
            "partition": draw(st.from_regex(r"[\w-]+", fullmatch=True)),
        }
        job["nodes"] = draw(st.sampled_from(["", "node1", "r6i4n[0-3,5],iam[12-14]"]))
    return WatchdogState(
        name=draw(NAMES),
        state=state,
        elapsed=draw(DURATION) if asked["elapsed"] else "",
        starts_at=draw(CLOCK) if asked["starts_at"] else "",
        reason=draw(st.from_regex(r"[A-Za-z][\w ]*\w", fullmatch=True)) if asked["reason"] else "",
        detail=draw(DETAILS[state]) if state in DETAILS else "",
        **job,
    )


AT = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(AT, sayings(FORMS.keys() - {"absent"}))
def test_whatever_is_said_of_a_job_is_read_back_whatever_the_trainings_name(at: datetime, said: WatchdogState) -> None:
    read = parse_pulse(pulse_line(at, words_of(said)))
    assert isinstance(read, Pulse)
    assert WatchdogState(**{name: getattr(read, name) for name in WatchdogState.__struct_fields__}) == said
    assert (read.at, read.text) == (at.replace(microsecond=0), words_of(said))
    assert read.at.tzinfo is not None


@given(AT, sayings(FORMS), st.from_regex(r"[\w ,.-]*\w", fullmatch=True))
def test_whatever_is_called_out_is_read_back_with_whom_it_calls(at: datetime, said: WatchdogState, team: str) -> None:
    read = parse_pulse(pulse_line(at, words_of(said), team))
    assert isinstance(read, Alert)
    assert (read.name, read.team) == (said.name, team)
    assert read.at == at.replace(microsecond=0) and read.at.tzinfo is not None


def test_the_forms_that_other_tools_look_for_are_letter_for_letter_the_originals() -> None:
    job = WatchdogState(
        name="tr1-13B",
        state="running",
        job_id="1528763_4",
        partition="gpu_p13",
        nodes="r6i4n[0-3,5]",
        elapsed="2:10:00",
        starts_at="2021-10-02T02:50:03",
    )
    # The original left its last parenthesis open.
    assert words_of(job) == (
        "tr1-13B is running for 2:10:00 since 2021-10-02T02:50:03 (1528763_4 on 'gpu_p13' partition (r6i4n[0-3,5]))"
    )
    absent = words_of(WatchdogState(name="tr1-13B", state="absent"))
    at = datetime(2021, 10, 2, 5, 0, 3).astimezone()
    line = pulse_line(at, absent, "Eng WG")
    zone = at.isoformat()[-6:]
    assert line == f"{STAMP}***ALERT: tr1-13B is not RUNNING or SCHEDULED! Alert someone at Eng WG*** [{zone}]"


@given(st.text(st.characters(codec="utf-8", exclude_characters="*!"), min_size=1).map(str.strip).filter(bool))
def test_what_a_job_calls_out_is_read_back_as_an_alert(words: str) -> None:
    assert parse_pulse(alert_line(f"tr1-13B: {words}")) == Alert(None, "", "", f"tr1-13B: {words}")
