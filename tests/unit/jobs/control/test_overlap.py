import re

import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.jobs.control.overlap import (
    warn_of_nothing_to_wait_for,
    warn_of_waiting_unseen,
    warn_of_what_is_fixed_unseen,
    what_to_wait_for,
)
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE, Unseen
from opsctl.slurm.types import Job


def job(job_id: int, array: int, task: str, state: str, user: str = "alice", dependency: str = "") -> Job:
    return Job(
        job_id=job_id,
        array_job_id=array,
        array_task=task,
        name="whatever",
        user=user,
        partition="gpu",
        state=state,
        reason="None",
        nodes="",
        node_count=1,
        elapsed_s=0,
        time_limit_s=600,
        submitted_at=None,
        started_at=None,
        ends_at=None,
        dependency=dependency,
        comment="",
        work_dir="/",
    )


RUNNING = job(12, 11, "1", "RUNNING")
REST = job(11, 11, "2-3%1", "PENDING")
SECOND = job(20, 20, "1-3%1", "PENDING", "bob", "afterany:11_*(unfulfilled)")
THIRD = job(30, 30, "1-3%1", "PENDING", "bob", "afterany:20_*(unfulfilled)")


def test_nothing_live_means_nothing_to_wait_for() -> None:
    assert what_to_wait_for([], None, "tiny") == ()
    assert what_to_wait_for([], "auto", "tiny") == ()


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "SUSPENDED"])
def test_a_live_job_in_any_state_refuses_a_plain_submit_and_says_whose_it_is(state: str) -> None:
    with pytest.raises(OpsctlError, match=rf"tiny.* 11_1 {state} \(alice\).*--after auto"):
        what_to_wait_for([job(12, 11, "1", state)], None, "tiny")


def test_after_auto_waits_for_whole_arrays() -> None:
    assert what_to_wait_for([RUNNING, REST], "auto", "tiny") == ("11",)
    assert what_to_wait_for([SECOND, RUNNING, REST], "auto", "tiny") == ("11", "20")


def test_after_a_chain_is_enough_when_it_waits_for_the_others() -> None:
    assert what_to_wait_for([RUNNING, REST, SECOND, THIRD], "30", "tiny") == ("30",)


def test_after_a_chain_that_does_not_wait_for_the_others_is_refused() -> None:
    with pytest.raises(OpsctlError, match=r"--after 11 .*20_\[1-3%1\] PENDING \(bob\).*--after auto"):
        what_to_wait_for([RUNNING, REST, SECOND], "11", "tiny")


def test_after_a_job_that_is_not_the_runs_waits_for_it_only_when_nothing_is_live() -> None:
    assert what_to_wait_for([], "99", "tiny") == ("99",)
    with pytest.raises(OpsctlError, match=r"--after 99 .*11_1"):
        what_to_wait_for([RUNNING], "99", "tiny")


@pytest.mark.parametrize("after", ["soon", "12_1", "", "-1", "1:2"])
def test_after_takes_auto_or_one_id(after: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--after {after}: ")):
        what_to_wait_for([], after, "tiny")


BOBS = Unseen(40, "bob", ("11",))


def test_beside_a_chain_that_cannot_be_seen_nothing_is_submitted_without_waiting() -> None:
    with pytest.raises(OpsctlError, match=rf"tiny.*{CANNOT_SEE}.*40 of bob.*--after auto"):
        what_to_wait_for([], None, "tiny", [BOBS])
    assert what_to_wait_for([RUNNING, SECOND], "auto", "tiny", [BOBS]) == ("11", "20", "40")
    assert what_to_wait_for([], "40", "tiny", [BOBS]) == ("40",)
    # Records say that it waits for what is live: anyone who waits for it waits for both.
    assert what_to_wait_for([RUNNING], "40", "tiny", [BOBS]) == ("40",)
    with pytest.raises(OpsctlError, match=r"--after 11 .*40 of bob.*--after auto"):
        what_to_wait_for([RUNNING], "11", "tiny", [BOBS])


def test_a_hidden_submission_that_was_cut_off_is_its_owners_to_settle() -> None:
    for after in (None, "auto", "11"):
        with pytest.raises(OpsctlError, match=rf"tiny.*{CANNOT_SEE}.*of bob.*bob .*opsctl submit"):
            what_to_wait_for([RUNNING], after, "tiny", [Unseen(0, "bob")])


def test_it_is_said_that_what_is_waited_for_may_have_ended() -> None:
    assert warn_of_waiting_unseen([]) == [] == warn_of_what_is_fixed_unseen([], ["[slurm] nodes"])
    (waits,) = warn_of_waiting_unseen([BOBS])
    assert CANNOT_SEE in waits and "40 of bob" in waits
    (fixed,) = warn_of_what_is_fixed_unseen([BOBS], ["[slurm] nodes"])
    assert fixed.startswith("[slurm] nodes ") and "40 of bob" in fixed
    assert warn_of_what_is_fixed_unseen([BOBS], []) == []


def test_a_job_that_the_queue_does_not_show_is_warned_of() -> None:
    (warning,) = warn_of_nothing_to_wait_for("99", [RUNNING])
    assert "job 99" in warning
    assert warn_of_nothing_to_wait_for("40", [], [BOBS]) == [] == warn_of_nothing_to_wait_for("auto", [])
