"""References to a secret, which other users may read: a private file, a variable, a program. Pure."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

REFERENCES = ("file", "env", "command")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=:)", re.IGNORECASE)


def kind_of(text: str) -> str:
    """Return the scheme of a reference or URL in lower case; empty if it has none."""
    found = _SCHEME.match(text)
    return found.group().lower() if found else ""


def is_reference(text: str) -> bool:
    """Return whether the text refers to a secret stored elsewhere."""
    return kind_of(text) in REFERENCES


#: A program of the reader's own that is handed each message.
HOOK = "hook"
#: Schemes of apprise that can be without a secret. All others have a key or a token somewhere in them.
OPEN_SCHEMES = frozenset(
    ("mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms", "ntfy", "ntfys", "http", "https")
)
#: Long and of letters and digits, as keys are and words are not.
_TOKEN = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[A-Za-z0-9_~=+.-]{16,}")
_SECRET_KEY = re.compile(r"pass|pwd|token|secret|key|auth|cookie|signature|^sig$", re.IGNORECASE)
RULE = 'a URL without a secret in it, as "mailto://...", or "file:PATH", "env:NAME", "command:...", "hook:PROGRAM"'


def form_problem(text: str) -> str | None:
    """Why this is no channel at all, without repeating it: it may be a secret that lost its beginning."""
    kind, rest = kind_of(text), text.partition(":")[2]
    if not text.isprintable() or not kind or not rest.strip():
        return f"no channel; expected {RULE}"
    if kind not in (*REFERENCES, HOOK) and not rest.startswith("//"):
        return f"no channel; expected {RULE}"
    return None


def secret_in(url: str) -> str | None:
    """Return the part of a literal URL that is, or may be, a secret; None if there is none."""
    kind = kind_of(url)
    if kind not in OPEN_SCHEMES:
        return f"a {kind}:// URL has its key in it"
    try:
        parts = urlsplit(url)
        password = parts.password
        queries = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return f"a {kind}:// URL that cannot be read"
    if password:
        return "a password"
    for key, value in queries:
        if value and _SECRET_KEY.search(key):
            return "a password or key among its options"
        if _TOKEN.fullmatch(value) and "@" not in value:
            return "a probable key among its options"
    user = parts.username or ""
    for segment in (*parts.path.split("/"), user):
        if _TOKEN.fullmatch(unquote(segment)):
            return "a probable key in its path"
    return None


def written_problem(text: str, may_have_secret: bool) -> str | None:
    """Why a file cannot have this channel in it; None where it can. Never with the text itself."""
    problem = form_problem(text)
    if problem or may_have_secret or kind_of(text) in (*REFERENCES, HOOK):
        return problem
    secret = secret_in(text)
    if secret is None:
        return None
    return (
        f"{secret}, and others read this file: keep the URL in a file of your own (chmod 600) and write "
        '"file:PATH" here, or "env:NAME", or "command:..."'
    )
