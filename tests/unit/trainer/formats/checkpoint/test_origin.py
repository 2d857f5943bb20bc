"""The user, host and job of saves and starts."""

from __future__ import annotations

import os
import pwd
import socket

from trainer.formats.checkpoint.history import saved_now, started_now


def test_a_save_names_account_host_job_and_revision() -> None:
    saved = saved_now({"OPSCTL_ATTEMPT_FOLDER": "/out/logs/attempts/4711", "OPSCTL_REVISION": "3", "USER": "claims"})
    assert saved.user == pwd.getpwuid(os.geteuid()).pw_name and saved.host == socket.gethostname()
    assert (saved.attempt, saved.revision) == ("4711", 3)
    assert saved.at.tzinfo is not None


def test_outside_of_opsctl_the_job_is_slurms_or_none() -> None:
    assert saved_now({"SLURM_JOB_ID": "12"}).attempt == "12"
    assert (saved_now({}).attempt, saved_now({"OPSCTL_REVISION": "x"}).revision) == (None, None)


def test_a_start_has_what_its_caller_knows() -> None:
    start = started_now({"SLURM_JOB_ID": "12"}, kind="imported", iteration=0, loaded_from="bloom")
    assert (start.kind, start.loaded_from, start.attempt, start.changes) == ("imported", "bloom", "12", ())
