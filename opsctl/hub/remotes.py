"""Which protocol reaches a repository: the one place that knows them all."""

from __future__ import annotations

from opsctl.hub.client import token_of
from opsctl.hub.hub_remote import HubRemote
from opsctl.hub.patience import Patience
from opsctl.hub.remote import Remote
from opsctl.hub.settings import HubSettings


def open_remote(settings: HubSettings, repo: str, patience: Patience) -> Remote:
    """The repository, with the token that the settings refer to. Raises OpsctlError where there is none."""
    return HubRemote(repo, token_of(settings), patience)
