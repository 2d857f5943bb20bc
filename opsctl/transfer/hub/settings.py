"""`[hub]` as it counts for a run: what of it goes to which repository."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS
from opsctl.run.config.profile import profile, profile_files
from opsctl.run.config.schema import HubTable
from opsctl.run.config.toml_file import read_toml
from opsctl.run.state.run_view import RunView
from opsctl.slurm.durations import parse_duration_s


@dataclass(frozen=True)
class HubSettings:
    """The table; `token_from` is the file that names the token."""

    table: HubTable = field(default_factory=HubTable)
    token_from: Path | None = None

    def repo(self, kind: str) -> str | None:
        """Return where a kind goes; None where nowhere."""
        if kind == CHECKPOINTS and self.table.checkpoints is None:
            return None
        own: str | None = getattr(self.table, f"{kind}_repo")
        return own or self.table.repo

    @property
    def repos(self) -> dict[str, str]:
        """Kind -> where it goes, of those that go anywhere."""
        found = {kind: self.repo(kind) for kind in KINDS}
        return {kind: repo for kind, repo in found.items() if repo is not None}

    def patterns(self, kind: str) -> tuple[str, ...]:
        """Return the patterns of the names under the kind's folder."""
        found: tuple[str, ...] = getattr(self.table, kind)
        return found

    @property
    def give_up_after_s(self) -> float:
        """Return how long one sync may take."""
        return float(parse_duration_s(self.table.give_up_after))


def hub_settings(run: RunView, environment: Mapping[str, str] = os.environ) -> HubSettings | None:
    """Return the run file's table over the profiles'; None for a run without `[hub]`, or with an unreadable run file.

    Raises RunFileError for a wrong profile.
    """
    if run.loaded is None or not run.loaded.file.hub:
        return None
    own = run.loaded.file.hub
    named_in = {key: path for path in profile_files(environment) for key in read_toml(path).get("hub", {})}
    named_in.update(dict.fromkeys(own, run.loaded.path))
    table = msgspec.convert({**profile(environment).get("hub", {}), **own}, HubTable)
    return HubSettings(table, named_in.get("token"))


def required_settings(run: RunView) -> HubSettings:
    """Return the run's [hub]. Raises RunFileError if it has none."""
    settings = hub_settings(run)
    if settings is None:
        where = run.loaded.path if run.loaded else run.problem
        raise RunFileError(f'{where}: no [hub] in it: write [hub] with repo = "OWNER/NAME"')
    return settings
