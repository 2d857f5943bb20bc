"""Logging an account in: the client's own login, after the hub has said whose token it is."""

from __future__ import annotations

from opsctl.core.errors import OpsctlError
from opsctl.transfer.hub.client import be_patient, import_client, where_token_is
from opsctl.transfer.hub.hub_errors import Refused, understood
from opsctl.transfer.hub.retry_policy import Patience

_MOST_S = 60.0


def log_in(token: str) -> str:
    """Try the token and keep it, where huggingface_hub does; a line for people without it. Raises OpsctlError."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise OpsctlError("that is no token: make one that may write at the hub, under Settings, Access Tokens")
    hub = import_client()
    patience = Patience(_MOST_S)
    be_patient(hub, patience)

    def asked() -> str:
        with understood("the account"):
            return str(hub.HfApi(token=token).whoami()["name"])

    name = patience.through(asked)
    try:
        with understood("the account"):
            hub.login(token=token, add_to_git_credential=False, skip_if_logged_in=False)
    except OSError as error:
        raise Refused(f"cannot keep the token in {where_token_is()}: {error.strerror}") from None
    other = ", but HF_TOKEN is set here and counts before it: unset it" if hub.get_token() != token else ""
    return f"logged in as {name}; the token is in {where_token_is()}{other}"
