"""Read secrets by reference (a file that only its owner reads, a variable, a program's first line), and keep them out
of all output and files.

References and programs count only if no user except root and the reader can have written them.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, urlsplit

from opsctl.core.account import account_name, is_nobody_elses
from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import kind_of as kind_of_file
from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import ProgramProblem, run_named_program
from opsctl.run.config.secret_references import kind_of

COMMAND_TIMEOUT_S = 10.0
_LARGEST_BYTES = 64 * 1024
#: Shorter pieces of a URL are words, and would make holes in every text.
_SHORTEST = 5
#: Schemes whose host is a host; elsewhere a token may stand in its place.
_WITH_HOST = frozenset(
    ("mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms", "http", "https", "ntfy", "ntfys")
)


class SecretRefused(OpsctlError):
    """A reference that cannot be followed; the text says why and what to do, never what is behind it."""


def why_not_the_readers(path: Path) -> str | None:
    """Why what this file names cannot be followed as the reader's own word; None where it can."""
    try:
        who = who_else_can_write(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if who is None:
        return None
    return (
        f"programs and secrets are taken only from a file that no other user can change, and {who}: "
        "name it in your profile (~/.config/opsctl/profile.toml)"
    )


def is_readers_alone(path: Path) -> bool:
    """Return whether only root and the reader can read the file, so that it may contain a secret."""
    try:
        found = path.stat()
    except OSError:
        return False
    by_group = bool(found.st_mode & stat.S_IRGRP) and not is_nobody_elses(found.st_gid)
    return found.st_uid in (0, os.geteuid()) and not by_group and not found.st_mode & stat.S_IROTH


def follow(reference: str, named_in: Path, environment: Mapping[str, str]) -> str:
    """Return the URL or token behind a reference. named_in: the file that names it. Raises SecretRefused."""
    problem = why_not_the_readers(named_in)
    if problem:
        raise SecretRefused(problem)
    kind, value = kind_of(reference), reference.partition(":")[2].strip()
    if kind == "file":
        found = _of_file(path_of(value, named_in))
    elif kind == "env":
        found = environment.get(value, "")
        if not found:
            raise SecretRefused(f"the variable {value} is not set here")
    else:
        found = _of_command(value, environment)
    first = next((line.strip() for line in found.splitlines() if line.strip()), "")
    if not first:
        raise SecretRefused("there is nothing behind it")
    return first


def path_of(text: str, named_in: Path) -> Path:
    """Return the file that a reference means: `~` is the reader's home, else relative to the naming file."""
    return named_in.parent / Path(text).expanduser()


def _of_file(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise SecretRefused(f"cannot read {path}: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise SecretRefused(f"{path} is {kind_of_file(found.st_mode)} where a file is expected")
        if found.st_uid not in (0, os.geteuid()):
            raise SecretRefused(
                f"{path} belongs to {account_name(found.st_uid)}: opsctl reads secrets only from your own files"
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise SecretRefused(f"others can use {path} (mode {mode:04o}): chmod 600 {shlex.quote(str(path))}")
        data = os.read(fd, _LARGEST_BYTES)
    except OSError as error:
        raise SecretRefused(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(fd)
    return data.decode(errors="replace")


def _of_command(text: str, environment: Mapping[str, str]) -> str:
    try:
        ended = run_named_program(shlex.split(text), environment, COMMAND_TIMEOUT_S)
    except ValueError:
        raise SecretRefused("its quotes do not end") from None
    except ProgramProblem as problem:
        raise SecretRefused(f"the program that has it: {problem}") from None
    if ended.code:
        raise SecretRefused(f"the program that has it ended with {ended.code}")
    return ended.out.decode(errors="replace")


class Redactor:
    """Replaces tokens, and the secrets of URLs, in any text, as written and quoted in whatever way."""

    def __init__(self, secrets: Iterable[str]) -> None:
        pieces: set[str] = set()
        for secret in secrets:
            pieces |= _secret_pieces(secret)
        forms = {form for piece in pieces for form in _forms(piece)}
        longest_first = sorted((form for form in forms if form), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if longest_first else None

    def __call__(self, text: str) -> str:
        """`text` with `***` for each."""
        return self._pattern.sub("***", text) if self._pattern else text


def _secret_pieces(url: str) -> set[str]:
    """Return the URL and its parts that may be secret: all but scheme, host and short words."""
    kind = kind_of(url)
    rest = url.partition("://")[2]
    pieces = {url, rest}
    has_host = kind in _WITH_HOST
    try:
        parts = urlsplit(url)
        password, host = parts.password, parts.hostname or ""
    except ValueError:
        password, host, has_host = None, "", False
    if password:
        pieces |= {password, unquote(password)}
    hosts = {host, *host.split("."), *host.split(":")} if has_host else set()
    for piece in re.split(r"[/:@?&=#,;]+", rest):
        for form in (piece, unquote(piece)):
            if len(form) >= _SHORTEST and form.casefold() not in hosts and not form.isdigit():
                pieces.add(form)
    return pieces


def _forms(piece: str) -> set[str]:
    plain = {piece, unquote(piece)}
    quoted = {way(one) for one in plain for way in (quote, quote_plus, lambda text: quote(text, safe=""))}
    return {*plain, *quoted, *(repr(one)[1:-1] for one in plain)}
