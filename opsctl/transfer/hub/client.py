"""huggingface_hub, set up for us: no Xet, no telemetry, no progress bars, a time-out for every request.

It is imported here and only where something is asked, for it costs more than a sync that has nothing to do. Xet is
switched off: its client waits minutes for a server that does not answer and has no time-out, and remembers in the home
folder what a server has that may have lost it. Over LFS the hub reports for each content whether it has it. Who
downloads sees no difference.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opsctl.core.errors import OpsctlError
from opsctl.transfer.hub.hub_errors import LOG_IN, Refused, RetryPolicy, understood
from trainer.formats.distribution import install_command

if TYPE_CHECKING:
    from pathlib import Path

    from opsctl.transfer.hub.settings import HubSettings

#: Read by the client when it is imported, and never again.
SWITCHES = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_EXPERIMENTAL_WARNING": "1",
}
_CONNECT_S = 15.0


def import_client() -> Any:
    """Return the module huggingface_hub, as it is wanted here. Raises OpsctlError where it is not."""
    os.environ.update(SWITCHES)
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors, utils  # noqa: F401 - a name of the package once imported
    except ImportError:
        raise OpsctlError(f"huggingface_hub is not installed here: {install_command('hub')}") from None
    if not constants.HF_HUB_DISABLE_XET:
        raise OpsctlError("huggingface_hub was imported with Xet before: set HF_HUB_DISABLE_XET=1 and start again")
    utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return huggingface_hub


def set_timeouts(hub: Any, retry: RetryPolicy) -> None:
    """Give every request of the client's an end: its answer within what is left, and no wait beyond that."""
    from huggingface_hub.utils import _http

    def client() -> Any:
        made = _http.default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {"request": [*hooks["request"], begin], "response": [*hooks["response"], end]}
        return made

    def begin(request: Any) -> None:
        retry.check()
        most_s = retry.answer_s
        request.extensions["timeout"] = {
            "connect": min(_CONNECT_S, most_s),
            "read": most_s,
            "write": most_s,
            "pool": most_s,
        }

    def end(response: Any) -> None:
        if response.status_code not in (429, 500, 502, 503, 504):
            return
        from opsctl.transfer.hub.hub_errors import asked_wait_s

        wait_s = asked_wait_s(response.headers)
        if wait_s is not None and wait_s >= retry.left_s:
            retry.wait(wait_s, f"it answers {response.status_code}")

    hub.set_client_factory(client)


def token_of(settings: HubSettings | None) -> str:
    """Return the token that the settings refer to, else the account's own. Raises OpsctlError, without it."""
    from opsctl.run.config.secrets import SecretRefused, follow

    reference = settings.table.token if settings else None
    if settings is not None and reference is not None and settings.token_from is not None:
        try:
            return follow(reference, settings.token_from, os.environ)
        except SecretRefused as refused:
            raise Refused(f"[hub] token: {refused}") from None
    found = import_client().get_token()
    if not found:
        raise Refused(f"not logged in to the hub here: {LOG_IN}")
    return str(found)


def where_token_is() -> Path:
    """Return the file in which huggingface_hub keeps the account's token."""
    from pathlib import Path

    return Path(import_client().constants.HF_TOKEN_PATH)


_MOST_S = 60.0


def log_in(token: str) -> str:
    """Try the token and keep it, where huggingface_hub does; a line for people without it. Raises OpsctlError."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise OpsctlError("that is no token: make one that may write at the hub, under Settings, Access Tokens")
    hub = import_client()
    retry = RetryPolicy(_MOST_S)
    set_timeouts(hub, retry)

    def asked() -> str:
        with understood("the account"):
            return str(hub.HfApi(token=token).whoami()["name"])

    name = retry.through(asked)
    try:
        with understood("the account"):
            hub.login(token=token, add_to_git_credential=False, skip_if_logged_in=False)
    except OSError as error:
        raise Refused(f"cannot keep the token in {where_token_is()}: {error.strerror}") from None
    other = ", but HF_TOKEN is set here and counts before it: unset it" if hub.get_token() != token else ""
    return f"logged in as {name}; the token is in {where_token_is()}{other}"
