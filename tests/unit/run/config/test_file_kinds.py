from __future__ import annotations

from pathlib import Path

from opsctl.run.config.file_kinds import CHECKPOINTS, FOLDERS, KINDS, KINDS_OF_FILES, kind_in
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable, HubTable


def test_every_kind_has_its_keys_in_the_tables_and_its_folder() -> None:
    assert {f"{kind}_repo" for kind in KINDS} | {*KINDS} <= set(HubTable.__struct_fields__)
    switches = {name for name in BackupTable.__struct_fields__ if getattr(BackupTable(), name) is True}
    assert switches - {"spikes", "state"} == set(KINDS_OF_FILES) - {"report"}, "the page is made of the others"
    assert BackupTable().report is False
    assert [*KINDS_OF_FILES, CHECKPOINTS] == list(KINDS)
    paths = RunPaths(Path("/run"))
    assert [paths.folder_of(kind) for kind in KINDS] == [
        paths.logs,
        paths.tensorboard,
        paths.codecarbon,
        paths.page.parent,
        paths.checkpoints,
    ]
    assert {kind_in(folder) for folder in FOLDERS.values()} == set(KINDS) and kind_in("elsewhere") is None
