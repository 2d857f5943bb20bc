from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from opsctl.slurm.rows import (
    ACCOUNTING_FIELDS,
    END_FIELDS,
    FIELD_END,
    QUEUE_FIELDS,
    ROW_END,
    RowReader,
    ends_of,
    job_of,
    new_row_end,
    parse_accounting,
    queue_format,
    rows,
)
from opsctl.slurm.types import Job, JobEnd

RUNNING = {
    "JobID": "39",
    "ArrayJobID": "38",
    "ArrayTaskID": "1",
    "Name": "tiny",
    "UserName": "alice",
    "Partition": "gpu",
    "State": "RUNNING",
    "Reason": "None",
    "NodeList": "x[1-2]",
    "NumNodes": "2",
    "TimeUsed": "1-02:03:04",
    "TimeLimit": "4-04:00:00",
    "SubmitTime": "2023-11-14T22:13:20",
    "StartTime": "2023-11-14T22:14:20",
    "EndTime": "2023-11-19T02:14:20",
    "Dependency": "(null)",
    "Comment": "opsctl run=ab submit=cd",
    "WorkDir": "/home/alice",
    "exit_code": "0",
}
AFTERWARDS = datetime.fromtimestamp(1_700_400_000, UTC)


def row(**changes: str) -> str:
    return FIELD_END.join({**RUNNING, **changes}[field] for field in END_FIELDS) + ROW_END + "\n"


def parse_queue(text: str, piece: int = 7) -> list[Job]:
    """As squeue would print it, a few bytes at a time."""
    reader, data = RowReader(END_FIELDS, job_of), text.encode()
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    return reader.found


def parse_ends(text: str, now: datetime) -> dict[int, JobEnd]:
    return ends_of(rows(text, len(END_FIELDS)), now)


def test_a_running_task_reads_as_squeue_printed_it() -> None:
    (job,) = parse_queue(row())
    assert (job.job_id, job.array_job_id, job.array_task, job.display_id) == (39, 38, "1", "38_1")
    assert job.elapsed_s == ((24 + 2) * 60 + 3) * 60 + 4
    assert job.time_limit_s == 100 * 3600
    assert job.submitted_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert job.started_at is not None and job.started_at.tzinfo is not None
    assert job.dependency == ""
    assert job.comment == "opsctl run=ab submit=cd"


def test_the_rest_of_an_array_is_one_row() -> None:
    (job,) = parse_queue(row(JobID="38", ArrayTaskID="2-3%1", State="PENDING", StartTime="N/A", NodeList=""))
    assert job.display_id == "38_[2-3%1]"
    assert job.started_at is None
    assert job.nodes == ""


def test_a_job_without_an_array_has_no_task() -> None:
    (job,) = parse_queue(row(JobID="7", ArrayJobID="7", ArrayTaskID="N/A", TimeLimit="UNLIMITED"))
    assert job.array_task == "" and job.display_id == "7"
    assert job.time_limit_s is None


@given(st.text(st.characters(exclude_characters="\x1e\x1f", exclude_categories=["Cs"]), min_size=1))
def test_no_name_or_comment_shifts_a_field(hostile: str) -> None:
    first, second = parse_queue(row(Name=hostile, Comment=hostile) + row(JobID="40"))
    assert first.name == hostile
    assert first.work_dir == "/home/alice"
    assert second.job_id == 40


def test_a_row_that_somebody_wrote_into_a_name_is_no_job() -> None:
    row_end = new_row_end()
    victim = FIELD_END.join({**RUNNING, "JobID": "777"}[field] for field in END_FIELDS)
    name = FIELD_END.join(["a", *["0"] * len(END_FIELDS)]) + ROW_END + victim + ROW_END + FIELD_END.join(["1"] * 3)
    printed = (row(Name=name) + row(JobID="40")).replace(ROW_END + "\n", row_end + "\n")
    reader = RowReader(END_FIELDS, job_of, row_end)
    for start in range(0, len(printed), 7):
        reader.feed(printed[start : start + 7].encode())
    assert [job.job_id for job in reader.found] == [40]
    assert new_row_end() != row_end and queue_format(END_FIELDS, row_end).endswith(row_end)


@given(st.integers(1, 400))
def test_however_an_answer_comes_in_pieces_its_rows_are_the_same_and_a_torn_last_one_is_none(piece: int) -> None:
    text = "".join(row(JobID=str(number), Name="größe") for number in range(10))
    assert [(job.job_id, job.name) for job in parse_queue(text, piece)] == [(n, "größe") for n in range(10)]
    assert len(parse_queue(text[: -len(ROW_END) - 2], piece)) == 9


def test_no_field_has_a_width_that_could_cut_it() -> None:
    parts = queue_format(QUEUE_FIELDS).split(",")
    assert [part.split(":")[0] for part in parts] == list(QUEUE_FIELDS)
    assert all(part.split(":")[1] in (FIELD_END, ROW_END) for part in parts)


def test_the_controllers_memory_gives_exit_code_and_signal_of_what_has_ended() -> None:
    text = row() + row(JobID="5", State="FAILED", exit_code=str(3 << 8)) + row(JobID="6", State="FAILED", exit_code="9")
    ends = parse_ends(text, AFTERWARDS)
    assert sorted(ends) == [5, 6]
    assert (ends[5].exit_code, ends[5].signal) == (3, 0)
    assert (ends[6].exit_code, ends[6].signal) == (0, 9)


def test_newer_slurms_write_code_and_signal_apart() -> None:
    text = row(State="FAILED", exit_code="3:0") + row(JobID="6", State="FAILED", exit_code="0:9")
    ends = parse_ends(text, AFTERWARDS)
    assert [(end.exit_code, end.signal) for end in ends.values()] == [(3, 0), (0, 9)]


def test_accounting_rows_say_how_jobs_ended() -> None:
    accounted = [
        (
            "5",
            "CANCELLED by 1000",
            "0:15",
            "1700000000",
            "1700000009",
            "x1",
            "tiny",
            "ann",
            "/r",
            "1699999000",
            "see it",
        ),
        ("6", "RUNNING", "0:0", "1700000000", "Unknown", "x1", "tiny", "ann", "/r", "1699999000", ""),
        ("7", "NODE_FAIL", "1:0", "1700000000", "1700000009", "None assigned", "a\nb", "ann", "/r", "1699999000", ""),
    ]
    assert len(accounted[0]) == len(ACCOUNTING_FIELDS)
    ends = parse_accounting("".join(FIELD_END.join(one) + "\n" for one in accounted), AFTERWARDS)
    assert sorted(ends) == [5, 7]
    assert (ends[5].state, ends[5].exit_code, ends[5].signal) == ("CANCELLED", 0, 15)
    assert ends[5].ended_at == datetime.fromtimestamp(1_700_000_009, UTC)
    assert ends[7].nodes == ""


def test_a_state_that_nobody_knows_is_an_end_only_once_its_end_has_passed() -> None:
    during = datetime.fromtimestamp(1_700_000_100, UTC)
    assert parse_ends(row(State="EXPEDITING"), during) == {}
    assert parse_ends(row(State="EXPEDITING", EndTime="N/A"), AFTERWARDS) == {}
    assert parse_ends(row(State="VAPORISED"), AFTERWARDS)[39].state == "VAPORISED"
    accounted = FIELD_END.join(("7", "EXPEDITING", "0:0", "1700000000", "{end}", "x1")) + "\n"
    assert parse_accounting(accounted.format(end="Unknown"), AFTERWARDS) == {}
    assert parse_accounting(accounted.format(end="1700000009"), AFTERWARDS)[7].state == "EXPEDITING"
