"""Which protocol reaches a repository: the one place that knows them all."""

from __future__ import annotations

from urllib.parse import urlsplit

from opsctl.run.config.hub_values import is_git_url
from opsctl.run.config.secrets import why_not_the_readers
from opsctl.transfer.hub.client import import_client, token_of
from opsctl.transfer.hub.git_remote import GitRemote
from opsctl.transfer.hub.hub_errors import Refused
from opsctl.transfer.hub.hub_remote import HubRemote
from opsctl.transfer.hub.remote import Remote
from opsctl.transfer.hub.retry_policy import Patience
from opsctl.transfer.hub.settings import HubSettings


def open_remote(settings: HubSettings, repo: str, patience: Patience) -> Remote:
    """The repository, with the token that the settings refer to. Raises OpsctlError where there is none."""
    if is_git_url(repo):
        return GitRemote(repo, _token_for(settings, repo), patience)
    return HubRemote(repo, token_of(settings), patience)


def _token_for(settings: HubSettings, url: str) -> str:
    """The token for a server that a file names: nobody else may say where it goes, and the hub's goes to the hub."""
    named_by = settings.named_by(url)
    if not named_by:
        raise Refused(f"no token goes to {url}, which [hub] does not name")
    for path in named_by:
        problem = why_not_the_readers(path)
        if problem:
            raise Refused(f"{path} names {url} to send a token to: {problem}")
    if settings.table.token is None and urlsplit(url).netloc != urlsplit(import_client().constants.ENDPOINT).netloc:
        raise Refused(
            f'no token for {url}: keep one in a file of your own (chmod 600) and write [hub] token = "file:PATH"'
        )
    return token_of(settings)
