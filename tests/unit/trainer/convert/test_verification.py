"""Reading every byte of checkpoints against their manifests."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import cast

import pytest

from tests.unit.jobs.control.checkpoint_runs import save
from tests.users import as_user
from trainer.convert import verification
from trainer.convert.verification import main, verify

WEIGHTS, SHARD = "layer_01-model_00-model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"


def verified(capsys: pytest.CaptureFixture[str], *folders: Path) -> dict[str, list[str]]:
    assert main(["--workers=2", *map(str, folders)]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(one["files"] == 2 and one["bytes"] > 0 for one in told if one["files"])
    return {Path(one["folder"]).name: one["problems"] for one in told}


def test_each_file_that_is_missing_short_or_flipped_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [save(tmp_path, step) for step in (10, 20, 30, 40)]
    (folders[1] / WEIGHTS).unlink()
    data = bytearray((folders[1] / SHARD).read_bytes())
    data[7] ^= 1
    (folders[1] / SHARD).write_bytes(data)
    (folders[2] / SHARD).write_bytes(bytes(data[:-1]))
    found = verified(capsys, *folders)
    assert found["global_step10"] == found["global_step40"] == []
    missing, flipped = found["global_step20"]
    assert missing == f"{WEIGHTS} is missing" and flipped.startswith(f"{SHARD} has checksum ")
    assert found["global_step30"] == [f"{SHARD} has {len(data) - 1} bytes instead of {len(data)}"]


def test_a_manifest_that_is_none_or_anothers_is_wrong_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, copied = save(tmp_path, 10), save(tmp_path, 20)
    (damaged / "manifest.json").write_text("{")
    moved = copied.rename(copied.with_name("global_step25"))
    found = verified(capsys, damaged, moved)
    assert "manifest.json" in found["global_step10"][0]
    assert "global_step20" in found["global_step25"][0]


@pytest.mark.skipif(os.getuid() != 0, reason="another user's files need root")
def test_a_file_that_the_user_may_not_read_is_a_problem_and_no_damage() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        closed, damaged = save(folder, 10), save(folder, 20)
        for one in (closed, damaged):
            (one / WEIGHTS).chmod(0o600)
        (damaged / SHARD).write_bytes(b"short")
        found = as_user("nobody", lambda: [one.as_json() for one in verify([closed, damaged], 1)])
    assert [len(cast(list[str], one["problems"])) for one in found] == [1, 2]
    proven = [cast(list[str], one["damage"]) for one in found]
    assert proven[0] == [] and len(proven[1]) == 1 and proven[1][0].startswith(f"{SHARD} has 5 bytes")


@pytest.mark.parametrize(("code", "is_damage"), [(errno.EIO, True), (errno.ESTALE, False), (errno.ENOTCONN, False)])
def test_a_server_that_does_not_answer_proves_no_damage_and_a_bad_sector_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_damage: bool
) -> None:
    def unreadable(path: Path) -> str:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(verification, "checksum", unreadable)
    (found,) = verify([save(tmp_path, 10)], 1)
    assert len(found.problems) == 2 and {one.is_damage for one in found.problems} == {is_damage}
