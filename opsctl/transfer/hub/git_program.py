"""git and git-lfs for one remote: run in a folder of their own, with the token where nobody else can read it.

The token is in the environment of these processes alone, which only their owner can read (`/proc/PID/environ`): in no
argument, no URL, no file. git asks for it through a helper that is set in the environment too and answers for the
remote's own host and nobody else's. What an account has configured for itself is left out: a helper that writes
passwords into a file, an address that is rewritten, a hook.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from opsctl.core.errors import OpsctlError
from opsctl.core.process import Overdue, find_program, run_program
from opsctl.run.config.secrets import Redactor
from opsctl.transfer.hub.hub_errors import NotNow, Refused
from opsctl.transfer.hub.retry_policy import OutOfTime, Patience

_TOKEN = "OPSCTL_GIT_TOKEN"
_USER = "OPSCTL_GIT_USER"
#: Printed by the shell itself, so that not even a moment shows it among the processes' arguments.
_HELPER = f'!f() {{ test "$1" = get && printf "username=%s\\npassword=%s\\n" "${_USER}" "${_TOKEN}"; }}; f'
#: How one gets out: no secrets in them, by their names.
_KEPT = re.compile(
    r"PATH|LD_LIBRARY_PATH|TMPDIR|(?:https?|all|no)_proxy|SSL_CERT_\w+|GIT_SSL_\w+|CURL_CA_BUNDLE|GIT_CONFIG_(?:NO)?SYSTEM",
    re.I,
)


class NoRepository(Exception):
    """The server has none of this name, or hides it from us."""


class MovedOn(Exception):
    """Somebody else's push was there first."""


class Unclear(OpsctlError):
    """It came to nothing, and nobody can tell from its words whether it would again; the text has them."""


class Unwanted(Exception):
    """The server does not take a content: other bytes came than were said, or it is damaged there."""


@dataclass(frozen=True)
class Git:
    """git for the repository at `url`, run in `folder`."""

    url: str
    folder: Path
    patience: Patience
    token: str = field(repr=False)
    program: str = field(default_factory=lambda: _found("git"))

    def run(self, *words: str, stdin: bytes | None = None, **more: str) -> bytes:
        """What it prints. more: further variables. Raises what `_failure` makes of it, OutOfTime."""
        try:
            ended = run_program(
                [self.program, *words],
                {**self._environment(), **more},
                self.patience.left_s or 0.001,
                stdin,
                folder=str(self.folder),
            )
        except Overdue:
            raise OutOfTime(f"{self.url}: git {words[0]} took longer than there is time") from None
        except OSError as error:
            raise OpsctlError(f"git cannot be started: {error.strerror}") from None
        if ended.code:
            raise self._failure(words[0], ended.err.decode(errors="replace") + ended.out.decode(errors="replace"))
        return ended.out

    def _environment(self) -> dict[str, str]:
        parts = urlsplit(self.url)
        host = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        settings = (
            ("credential.helper", ""),  # those of the system's configuration, which may write down what they hear
            (f"credential.{host}.helper", _HELPER),
            ("http.followRedirects", "initial"),
            ("lfs.locksverify", "false"),
            ("lfs.concurrenttransfers", "4"),
            ("lfs.transfer.maxretries", "2"),  # our own patience goes by the time that there is
            ("lfs.transfer.maxretrydelay", "1"),
            ("gc.auto", "0"),
            ("maintenance.auto", "false"),
            ("protocol.version", "2"),
        )
        configured = {"GIT_CONFIG_COUNT": str(len(settings))}
        for number, (key, value) in enumerate(settings):
            configured |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return {
            **{name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)},
            **configured,
            _USER: _user_of(self.url),
            _TOKEN: self.token,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "LC_ALL": "C",
        }

    def _failure(self, what: str, said: str) -> Exception:
        """What git's words mean. Only those that are known, and the server's own without any secret, are repeated."""
        for pattern, failure in _FAILURES:
            if re.search(pattern, said, re.IGNORECASE):
                return failure(self.url)
        basic = base64.b64encode(f"{_user_of(self.url)}:{self.token}".encode()).decode()
        lines = [line for line in Redactor([self.token, basic])(said).splitlines() if line.strip()]
        of_note = [line for line in lines if line.startswith(("remote:", "fatal:", "error:", "batch response:"))]
        told = (of_note or lines[-1:] or ["it does not say why"])[0]
        return Unclear(f"{self.url}: git {what} failed: {told}")


def _user_of(url: str) -> str:
    """Hosts that know accounts by their token take any name with it."""
    return urlsplit(url).username or "opsctl"


def _refused_token(url: str) -> Exception:
    return Refused(f"{url} does not take the token (401): put a new one where [hub] token says, or opsctl hub login")


def _refused_right(url: str) -> Exception:
    return Refused(f"{url}: this token may not do that (403): put one that may write where [hub] token says")


#: What git and git-lfs say -> what it means; the first that is found.
_FAILURES: tuple[tuple[str, Callable[[str], Exception]], ...] = (
    (r"Authentication failed|Authentication required|could not read (?:User|Pass)|error: 401|HTTP 401", _refused_token),
    (
        r"error: 403|HTTP 403|status code 403|Forbidden|not authori[sz]ed|lacks permission|Authorization error",
        _refused_right,
    ),
    (r"\[rejected\]|\[remote rejected\].*(?:cannot lock|failed to (?:update|lock))|stale info", MovedOn),
    (r"repository .* not found|error: 404|Repository or object not found", NoRepository),
    (r"wrong checksum|status code 4(?:00|22)|Client error: .* 4(?:00|22)", Unwanted),
    (r"error: 429|HTTP 429|rate.?limit", lambda _: NotNow("it answers 429")),
    (r"error: 5\d\d|HTTP 5\d\d|Server error|Internal (?:server )?error", lambda _: NotNow("it has trouble of its own")),
    (
        r"Could not resolve|Failed to connect|Connection|timed out|hung up|early EOF|RPC failed|unexpected disconnect"
        r"|Empty reply|Recv failure|\bEOF\b|broken pipe|no such host|i/o timeout",
        lambda _: NotNow("no answer"),
    ),
)


def lfs_pointer(sha256: str, size: int) -> bytes:
    """What git has of a content that lies beside it, in git-lfs's words."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def quoted(path: str) -> str:
    """A name as git reads it in a list of its own: in quotes, bytes that it could trip over as octal numbers."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in os.fsencode(path)
    )
    return f'"{escaped}"'


def attribute_line(path: str) -> str:
    """The line of `.gitattributes` that has git-lfs look after just this file."""
    literal = re.sub(r"([*?\[\]\\])", r"\\\1", path)
    return f"{quoted(f'/{literal}')} filter=lfs diff=lfs merge=lfs -text"


def _found(name: str) -> str:
    path = find_program(name, os.environ)
    if path is None:
        raise OpsctlError(f"{name} is not installed here: load or install git and git-lfs to sync with a git remote")
    return path
