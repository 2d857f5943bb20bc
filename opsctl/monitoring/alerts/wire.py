"""What went over the wire in one try to send, seen where apprise's plug-ins hand it to smtplib and requests.

Apprise itself says only whether it worked. Whether a server refused, asked for patience, or was cut off after it had
everything decides what may be done next, so the two libraries are listened to in this process.
"""

from __future__ import annotations

import smtplib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

#: HTTP answers that ask to come again; below 500 all others are refusals.
_LATER = frozenset((408, 423, 425, 429))


@dataclass
class Wire:
    """One try."""

    has_handed_over: bool = False  # a server has, or may have, all of the message without having answered
    accepted: int = 0  # recipients or requests that a server has confirmed
    code: int | None = None  # the last answer that was no confirmation
    protocol: str = ""  # "SMTP" or "HTTP": whose code that is
    retry_after_s: float | None = None
    words: list[str] = field(default_factory=list)  # what went wrong; not redacted

    @property
    def is_refusal(self) -> bool:
        """Whether the answer says that the same will never be taken."""
        if self.code is None:
            return False
        if self.protocol == "SMTP":
            return self.code >= 500
        return 300 <= self.code < 500 and self.code not in _LATER


def listen(wire: Wire, on_accepted: Callable[[], None]) -> None:
    """Note on `wire` what smtplib and requests do from now on in this process. It is never taken back."""
    _listen_to_smtp(wire, on_accepted)
    _listen_to_http(wire)


def _listen_to_smtp(wire: Wire, on_accepted: Callable[[], None]) -> None:
    plain: dict[str, Callable[..., Any]] = {
        name: getattr(smtplib.SMTP, name) for name in ("connect", "login", "sendmail", "data")
    }

    def data(self: smtplib.SMTP, message: Any) -> Any:
        wire.has_handed_over = True
        code, words = plain["data"](self, message)
        wire.has_handed_over = False
        if code == 250:
            # Confirmed: however the server behaves from here on, it is not sent again.
            wire.accepted += 1
            on_accepted()
        return code, words

    def noted(name: str) -> Callable[..., Any]:
        def call(self: smtplib.SMTP, *arguments: Any, **more: Any) -> Any:
            try:
                return plain[name](self, *arguments, **more)
            except smtplib.SMTPException as error:
                _note_smtp(wire, error)
                raise
            except OSError as error:
                wire.words.append(str(error) or type(error).__name__)
                raise

        return call

    smtplib.SMTP.data = data  # type: ignore[assignment, method-assign]
    for name in ("connect", "login", "sendmail"):
        setattr(smtplib.SMTP, name, noted(name))


def _note_smtp(wire: Wire, error: smtplib.SMTPException) -> None:
    answers: list[tuple[int, Any]] = []
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        answers = list(error.recipients.values())
    elif isinstance(error, smtplib.SMTPResponseException):
        answers = [(error.smtp_code, error.smtp_error)]
    else:
        wire.words.append(str(error) or type(error).__name__)
    for code, words in answers:
        if code > 0:
            wire.code, wire.protocol, wire.has_handed_over = code, "SMTP", False
        said = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
        wire.words.append(f"{code} {said}")


def _listen_to_http(wire: Wire) -> None:
    import requests
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, SSLError

    before = (ConnectTimeoutError, NewConnectionError, SSLError)
    plain = requests.adapters.HTTPAdapter.send

    def send(self: Any, request: Any, *arguments: Any, **more: Any) -> Any:
        wire.has_handed_over = True
        try:
            response = plain(self, request, *arguments, **more)
        except requests.RequestException as error:
            cause = error.args[0] if error.args else None
            reason = getattr(cause, "reason", cause)
            if isinstance(error, requests.ConnectTimeout) or isinstance(reason, before):
                wire.has_handed_over = False
            # Its text has the URL in it; what kind of failure it is does not.
            wire.words.append(type(reason if isinstance(reason, Exception) else error).__name__)
            raise
        wire.has_handed_over = False
        if 200 <= response.status_code < 300:
            wire.accepted += 1
            wire.code = None
        else:
            wire.code, wire.protocol = response.status_code, "HTTP"
            wire.retry_after_s = _seconds(response.headers.get("Retry-After"))
            wire.words.append(f"HTTP {response.status_code} {response.reason or ''}".strip())
        return response

    requests.adapters.HTTPAdapter.send = send  # type: ignore[method-assign]


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds from now; it may be a date. None for anything else."""
    if retry_after is None:
        return None
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
