"""The meaning of a failed request to the hub, and repeating it within a time limit.

No text of the server's is shown: it may have in it what was sent.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar

from opsctl.core.errors import UsageError
from opsctl.transfer.object_store.types import StoreError

#: The longest that a server's word makes us wait before we ask again.
LONGEST_WAIT_S = 3600.0
LOG_IN = "opsctl hub login, or export HF_TOKEN"
#: As `"api";r=0;t=55`: nothing left, and for how long.
_RATE_LIMIT = re.compile(r";\s*r\s*=\s*(?P<remaining>\d+)\s*;\s*t\s*=\s*(?P<reset_s>\d+)")
Value = TypeVar("Value")


class NotNow(Exception):
    """The hub cannot answer at the moment; the text says why in a few words."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s  # what the server asks for; None: it says nothing


class Absent(Exception):
    """The repository is there and this file, or this commit, is not."""


class Refused(StoreError):
    """The hub says no, and will say so until a person does what the text says."""


@contextlib.contextmanager
def understood(repo: str) -> Iterator[None]:
    """Errors of huggingface_hub as `NotNow`, `Absent`, or an OpsctlError of one line that says what to type."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise Refused(f"{repo} is gated: ask for access on its page, then {LOG_IN}") from None
    except errors.RepositoryNotFoundError:
        raise Refused(f"this account sees no repository {repo} on the hub: if it is private, {LOG_IN}") from None
    except errors.RevisionNotFoundError:
        raise Absent(f"{repo} has no such revision") from None
    except errors.EntryNotFoundError:
        raise Absent(f"{repo} has no such file") from None
    except errors.HFValidationError:
        raise UsageError(f"{repo!r} is no repository's name: OWNER/NAME, or datasets/OWNER/NAME") from None
    except errors.OfflineModeIsEnabled:
        raise Refused("HF_HUB_OFFLINE is set, so opsctl does not contact the hub: unset it") from None
    except errors.HfHubHTTPError as error:
        raise _of_status(repo, error.response.status_code, error.response.headers) from None
    except _transport_errors() as error:
        raise NotNow(f"no answer ({type(error).__name__})") from None
    except UnicodeEncodeError:  # headers are ASCII, and ours all are but for the token
        raise Refused(f"the token that counts here is none, by its characters: {LOG_IN}") from None
    except (ValueError, KeyError, TypeError) as error:
        said = f"{repo}: what answered is not the hub ({type(error).__name__}): see HF_ENDPOINT and the proxy"
        raise Refused(said) from None


def _of_status(repo: str, status: int, headers: Mapping[str, str]) -> Exception:
    if status == 401:
        return Refused(f"the hub does not take the token for {repo} (401): {LOG_IN}")
    if status == 403:
        return Refused(f"this account's token may not do that with {repo} (403): {LOG_IN}")
    if status in (408, 425, 429) or status >= 500:
        return NotNow(f"it answers {status}", asked_wait_s(headers))
    return Refused(f"the hub answers {status} for {repo}")


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks for, by its rate limit or `Retry-After` and by its own clock."""
    limit = _RATE_LIMIT.search(headers.get("ratelimit") or "")
    if limit is not None and int(limit["remaining"]) == 0:
        return min(float(limit["reset_s"]) + 1.0, LONGEST_WAIT_S)
    after = (headers.get("retry-after") or "").strip()
    if after.isdigit():
        return min(float(after), LONGEST_WAIT_S)
    try:
        wait_s = (parsedate_to_datetime(after) - parsedate_to_datetime(headers.get("date") or "")).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(wait_s, 0.0), LONGEST_WAIT_S)


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what the client's HTTP library raises where no answer came: which one it is depends on its version."""
    return tuple(sys.modules[name].HTTPError for name in ("httpx", "httpx2") if name in sys.modules)


#: Waits where the other side names none, the last one again and again.
WAITS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: One request may take no longer, even where there is more time.
LONGEST_ANSWER_S = 300.0
#: The time for a check or a look from afar.
LOOK_S = 60.0


class OutOfTime(StoreError):
    """The other side did not take it within the time that there was; what has arrived has arrived."""


@dataclass
class RetryPolicy:
    """The time that there is for all requests together, from when it is made."""

    most_s: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda _line: None
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.most_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left; never negative."""
        return max(0.0, self._end - self.clock())

    @property
    def answer_s(self) -> float:
        """Return the time-out of one answer."""
        return max(1.0, min(LONGEST_ANSWER_S, self.left_s))

    def check(self) -> None:
        """Raise OutOfTime where there is no time left."""
        if not self.left_s:
            raise OutOfTime(f"the time for it is over ({self.most_s:.0f} s)")

    def wait(self, seconds: float, why: str) -> None:
        """Sleep so long. Raises OutOfTime, at once, where less time is left."""
        if seconds >= self.left_s:
            raise OutOfTime(
                f"the hub: {why}; the next try would be in {seconds:.0f} s, and only {self.left_s:.0f} s are left"
            )
        if seconds >= WAITS_S[3]:
            self.say(f"the hub: {why}; asking again in {seconds:.0f} s")
        self.sleep(seconds)

    def through(self, ask: Callable[[], Value]) -> Value:
        """Return what `ask` returns; call it again while it raises NotNow and there is time. Raises OutOfTime."""
        tries = 0
        while True:
            self.check()
            try:
                return ask()
            except NotNow as later:
                usual_s = WAITS_S[min(tries, len(WAITS_S) - 1)]
                self.wait(usual_s if later.wait_s is None else later.wait_s, str(later))
            tries += 1
