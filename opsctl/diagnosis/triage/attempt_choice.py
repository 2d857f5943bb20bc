"""Which attempt is meant: a job's, one by its number, or the last one that ended badly. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.triage.on_close import is_bad_end
from opsctl.run.attempts.events import Attempt


def choose(attempts: Sequence[Attempt], word: str | None) -> Attempt:
    """The attempt that `word` means, as `attempts` shows it: a job (`12`, `12_3`) before a number (`4`).

    The newest one of a job; without a word the last bad end. Raises OpsctlError where there is none.
    """
    ended = [one for one in attempts if not one.is_open]
    if word is None:
        bad = [one for one in ended if is_bad_end(one)]
        if not bad:
            what = "no attempt has ended badly" if ended else "no attempt has ended yet"
            raise OpsctlError(f"{what}: opsctl attempts lists them; opsctl triage --log FILE reads any log")
        return bad[-1]
    of_job = [one for one in attempts if word in (one.display_id, str(one.job_id))]
    by_number = [one for one in attempts if word.removeprefix("#") == str(one.number)]
    found = (by_number if word.startswith("#") else of_job or by_number)[-1:]
    if not found:
        known = f"1 to {attempts[-1].number}" if attempts else "none"
        raise OpsctlError(f"no attempt and no job {word}: attempts are {known} (opsctl attempts)")
    if found[0].is_open:
        raise OpsctlError(f"attempt {found[0].number}, job {found[0].display_id}, has not ended: opsctl status")
    return found[0]
