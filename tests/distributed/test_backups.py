"""A training that resumes from a backup, with nothing left in its original place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable
from opsctl.transfer.backups.destination import Destination, Wish, back_up
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_folder
from opsctl.transfer.backups.restore_run import Asked, restore_run
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from tests.distributed.pool import Pool
from tests.distributed.test_hf_export import program, tensors_in
from tests.distributed.whole_training import Seen, run_training, write_corpus
from tests.unit.transfer.backups import backed_up_runs
from trainer.formats.checkpoint.manifest import Manifest, read_manifest, tag_of

pytestmark = pytest.mark.distributed
disk = backed_up_runs.disk
RANKS = 2


def options(corpus: str, checkpoints: Path, **more: Any) -> dict[str, Any]:
    places = {"data_path": [corpus], "save": str(checkpoints), "load": str(checkpoints)}
    return {**places, "train_iters": 8, "save_interval": 4, "bf16": True, "embed_layernorm": True, **more}


def train(pool: Pool, wanted: dict[str, Any]) -> list[Seen]:
    seen: list[Seen] = pool.run(RANKS, run_training, wanted)
    assert [one.status for one in seen] == [0] * RANKS, seen[0].errors
    return seen


def weights_and_states(folder: Path) -> dict[str, str]:
    """Every file's checksum but of those that hold times and places."""
    manifest: Manifest = read_manifest(folder)
    return {name: file.xxh64 for name, file in manifest.files.items() if not name.startswith("mp_rank_")}


def test_a_run_restored_on_an_empty_machine_trains_on_bitwise_as_if_nothing_had_happened(
    pool: Pool, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    corpus, there = write_corpus(tmp_path), RunPaths(tmp_path / "there" / "output")
    there.output.mkdir(parents=True, mode=0o700)
    through = train(pool, options(corpus, there.checkpoints, exit_interval=4))
    run_file = there.output.parent / "run.toml"
    run_file.write_text('[run]\nname = "tiny"\n[slurm]\nnodes = 1\ngpus_per_node = 2\ntime = "10"\n')
    with open_store(str(disk)) as store:
        place = Destination(there, "tiny", str(disk), store, Flow())
        sent = back_up(place, BackupTable(full_every=4), Wish(), lambda _line: None)
        assert ([one.iteration for one in sent.lines], sent.problems) == ([4], [])
        back_up_rest(place, BackupTable(), run_file)
        back_up(place, BackupTable(), Wish((4,), weights_only=True), lambda _line: None)
    reference = train(pool, options(corpus, there.checkpoints))
    wanted = weights_and_states(there.checkpoints / tag_of(8))
    shutil.rmtree(there.output.parent)

    with open_store(str(disk)) as store:
        restore_run(store, tmp_path / "here", Asked(), Flow(), lambda _line: None)
        weights = restore_to_folder(store, choose(store, 4, weights_only=True), tmp_path / "weights", Flow())
    here = RunPaths(tmp_path / "here" / "output")
    again = train(pool, options(corpus, here.checkpoints))
    assert [one.losses for one in again] == [one.losses for one in reference]
    assert len(through[0].losses) == len(again[0].losses) == 4
    assert weights_and_states(here.checkpoints / tag_of(8)) == wanted

    alone = options(corpus, tmp_path / "weights")
    (Path(weights.folder).parent / "latest").write_text(Path(weights.folder).name)
    refused = pool.run(RANKS, run_training, alone)
    assert refused[0].status == 1 and "without optimizer states" in refused[0].errors
    assert train(pool, {**alone, "no_load_optim": True})[0].losses[0] == reference[0].losses[0]
    # Its weights are those of the whole one: for another training, and for another program.
    places = (tmp_path / "weights", here.checkpoints)
    tuned = {"save": None, "save_interval": None, "finetune": True}
    light, whole = (train(pool, {**options(corpus, begun_at_4(place)), **tuned}) for place in places)
    assert [one.losses for one in light] == [one.losses for one in whole] and len(light[0].losses) == 8
    exports = [pool.run(1, exported, place, tmp_path / f"of_{place.name}")[0] for place in places]
    assert exports[0] == exports[1] and exports[0]


def begun_at_4(checkpoints: Path) -> Path:
    (checkpoints / "latest").write_text(tag_of(4))
    return checkpoints


def exported(checkpoints: Path, folder: Path) -> dict[str, bytes]:
    """Return the export of the fourth iteration's checkpoint, by tensor, in a rank."""
    program("export_program", str(checkpoints), "--step", "4", "--output", str(folder))
    return {name: tensor.float().numpy().tobytes() for name, tensor in tensors_in(folder).items()}
