"""What the energy records in a repository add up to, read as those of a run at hand."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from opsctl.diagnosis.carbon.brief import MOST_FILES, EnergySeen, TooMany, energy_in
from opsctl.run.config.file_kinds import FOLDERS
from opsctl.run.config.schema import CarbonTable
from opsctl.transfer.hub.far_files import FarFiles, Look
from opsctl.transfer.hub.hub_errors import NotNow
from trainer.formats.attempt.carbon import FILES

#: Where a sync puts them.
FOLDER = FOLDERS["carbon"]
_LARGEST_BYTES = 32 << 20
_AT_ONCE = 8


def far_energy(files: FarFiles, sizes: Mapping[str, int]) -> EnergySeen | None:
    """Their sum, without the PUE of a run file that is not there; None where there are none. Raises OpsctlError.

    sizes: every file of the repository with its bytes.
    """
    records = {path: size for path, size in sizes.items() if _is_record(path)}
    if not records:
        return None
    if len(records) > MOST_FILES or sum(records.values()) > _LARGEST_BYTES:
        return EnergySeen(told=str(TooMany()))
    with tempfile.TemporaryDirectory(prefix="opsctl-carbon-") as folder, ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            found = pool.map(lambda one: files.read_all(one[0], Look(files.repo.revision, "", one[1])), records.items())
            for path, data in zip(records, found, strict=True):
                (Path(folder) / Path(path).name).write_bytes(data)
        except NotNow as late:
            return EnergySeen(told=f"not told now: {late}")
        return energy_in(Path(folder), CarbonTable())


def _is_record(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == FOLDER and not name.startswith(".") and any(fnmatch(name, pattern) for pattern in FILES)
