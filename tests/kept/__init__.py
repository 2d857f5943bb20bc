"""Run folders that earlier builds have left, each made by a real training with that build's own code.

`tests/kept/NAME.tar.xz` has the run's folder, with the modes and times that its files had. `python -m tests.kept.make`
makes them, from the commits below; a release adds its own. Before the first release the oldest and the newest suffice.
"""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Build:
    """One build of which a run folder is kept."""

    name: str
    commit: str
    what: str  # what was new to it in a run's folder

    @property
    def archive(self) -> Path:
        return FOLDER / f"{self.name}.tar.xz"

    def unpack(self, folder: Path) -> Path:
        """Its run's folder, laid into `folder` as the caller's own, as if it had been made there.

        A run found elsewhere than its identity says, without a trace there, may be moved or a copy.
        """
        with tarfile.open(self.archive) as archive:
            for member in archive.getmembers():
                member.uid, member.gid = os.getuid(), os.getgid()
                archive.extract(member, folder, numeric_owner=True)
        identity = folder / "run/output/.opsctl/identity.json"
        if identity.exists():
            said = json.loads(identity.read_text())
            identity.write_text(json.dumps({**said, "folder": str(folder / "run/output")}))
        return folder / "run"


BUILDS = (
    Build("01-first", "7324271", "revisions, chains, attempts, checkpoints with a manifest, a kill switch"),
    Build("09-triage", "852df39", "verdicts on what killed an attempt, exclusions, evidence against nodes"),
)
#: The builds as parameters of a test: `make test` tries the oldest, which differs most from today's.
PARAMETERS = tuple(
    pytest.param(build, id=build.name, marks=[pytest.mark.nightly] if number else [])
    for number, build in enumerate(BUILDS)
)
