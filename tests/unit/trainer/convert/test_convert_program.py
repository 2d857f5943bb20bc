from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.made_checkpoint import make_checkpoint
from trainer.convert.convert_program import main

MODEL: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "seq_length": 8,
    "vocab_size": 13,
    "make_vocab_size_divisible_by": 4,
    "position_embedding_type": "alibi",
}


class Said(NamedTuple):
    status: int
    output: str
    error: str


@pytest.fixture
def convert(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(folder: Path, output: Path, to: str, *words: str) -> Said:
        status = main([str(folder), f"--to={to}", f"--output={output}", "--workers=1", *words])
        return Said(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("made") / "native", data=2, bf16=True, **MODEL)


@pytest.fixture
def universal(native: Path, tmp_path: Path, convert: Callable[..., Said]) -> Path:
    assert convert(native, tmp_path / "universal", "universal").status == 0
    return tmp_path / "universal"


def refused(said: Said, *parts: str) -> None:
    """In one line that has these parts, with status 1."""
    assert said.status == 1 and said.output == ""
    assert said.error.startswith("opsctl: ") and said.error.count("\n") == 1
    for part in parts:
        assert part in said.error


def test_json_says_what_was_done(native: Path, tmp_path: Path, convert: Callable[..., Said]) -> None:
    said = convert(native, tmp_path / "new" / "universal", "universal", "--json")
    found = json.loads(said.output)["converted"]
    written = [path for path in (tmp_path / "new" / "universal").rglob("*") if path.is_file()]
    assert found["to"] == "universal" and found["source"] == str(native) and not found["dry_run"]
    assert found["output"] == str(tmp_path / "new" / "universal")
    assert found["files"] == len(written) - 1  # the manifest counts itself not
    assert (tmp_path / "new" / "latest_universal").read_text() == "universal"


def test_a_folder_of_checkpoints_stands_for_its_latest(native: Path, tmp_path: Path, convert: Any) -> None:
    assert str(native) in convert(native.parent, tmp_path / "universal", "universal").output


def test_a_dry_run_writes_nothing_and_says_what_room_is_needed(native: Path, tmp_path: Path, convert: Any) -> None:
    found = json.loads(convert(native, tmp_path / "u", "universal", "--dry-run", "--json").output)["converted"]
    assert found["dry_run"] and found["files"] == 0 and not list(tmp_path.iterdir())
    convert(native, tmp_path / "u", "universal")
    written = sum(path.stat().st_size for path in (tmp_path / "u").rglob("*.pt"))
    assert 0.5 * found["bytes"] < written <= found["bytes"]


def test_the_manifest_goes_there_and_back(universal: Path, native: Path, tmp_path: Path, convert: Any) -> None:
    assert convert(universal, tmp_path / "native", "native", "--data-parallel=2").status == 0
    before, after = (
        json.loads((folder / "manifest.json").read_text()) for folder in (native, tmp_path / "native" / native.name)
    )
    assert [start["kind"] for start in after["history"]] == ["converted", "converted"]
    for part in ("iteration", "consumed_train_samples", "layout", "model", "learning_rate", "training", "settings"):
        assert after[part] == before[part], part


def test_nothing_is_written_over(native: Path, tmp_path: Path, convert: Any) -> None:
    (tmp_path / "there").mkdir()
    refused(convert(native, tmp_path / "there", "universal"), f"{tmp_path}/there exists already", "another --output")


def test_too_little_room_is_refused_before_anything_is_written(
    native: Path, tmp_path: Path, convert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    for to in ("universal", "native"):
        refused(convert(native, tmp_path / "new", to), "0.0 GiB free", "are needed")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_optimizer_states_is_refused(tmp_path: Path, convert: Any) -> None:
    bare = make_checkpoint(tmp_path / "bare", no_save_optim=True, **MODEL)
    refused(convert(bare, tmp_path / "universal", "universal"), str(bare), "without optimizer states (--no-save-optim)")
    assert convert(bare, tmp_path / "native", "native", "--tensor-parallel=2").status == 0


def test_a_checkpoint_half_written_is_refused(native: Path, tmp_path: Path, convert: Any) -> None:
    half = shutil.copytree(native, tmp_path / "global_step7")
    short = half / "layer_03-model_00-model_states.pt"
    short.write_bytes(short.read_bytes()[:-5])
    refused(convert(half, tmp_path / "universal", "universal"), f"{short} has", "bytes instead of")
    (half / "manifest.json").unlink()
    refused(convert(half, tmp_path / "universal", "universal"), f"{half} has neither a native")


def without_manifest(folder: Path) -> Path:
    """As DeepSpeed's own conversion leaves it."""
    (folder / "universal.json").unlink()
    return folder


@pytest.mark.parametrize(
    "missing",
    [
        "zero/3.mlp.dense_h_to_4h.bias/exp_avg_sq.pt",
        "zero/3.mlp.dense_h_to_4h.bias/step.pt",
        "zero/optimizer_state.pt",
        "mp_rank_00_model_states.pt",
    ],
)
@pytest.mark.parametrize("whose", ["ours", "deepspeed's"])
def test_a_universal_checkpoint_half_written_is_refused_naming_what_is_missing(
    universal: Path, tmp_path: Path, convert: Any, missing: str, whose: str
) -> None:
    if whose == "deepspeed's":
        without_manifest(universal)
    (universal / missing).unlink()
    refused(convert(universal, tmp_path / "native", "native"), f"{universal}/{missing} is missing")
    assert not (tmp_path / "native").exists()


def test_a_universal_checkpoint_that_deepspeed_has_not_ended_is_refused(
    universal: Path, tmp_path: Path, convert: Any
) -> None:
    (without_manifest(universal) / "tmp").mkdir()
    refused(convert(universal, tmp_path / "native", "native"), "DeepSpeed's conversion", "incomplete")


def test_a_short_file_of_a_universal_checkpoint_is_named(universal: Path, tmp_path: Path, convert: Any) -> None:
    short = universal / "zero/3.mlp.dense_h_to_4h.weight/fp32.pt"
    short.write_bytes(short.read_bytes()[:-5])
    refused(convert(universal, tmp_path / "native", "native"), str(short), "bytes instead of")


def test_a_universal_checkpoint_of_another_model_is_named_by_its_first_other_shape(
    universal: Path, tmp_path: Path, convert: Any
) -> None:
    zero = without_manifest(universal) / "zero"
    shutil.copy(zero / "3.mlp.dense_4h_to_h.weight/fp32.pt", zero / "4.mlp.dense_h_to_4h.weight/fp32.pt")
    said = convert(universal, tmp_path / "native", "native")
    refused(said, "4.mlp.dense_h_to_4h.weight/fp32.pt has param of shape (8, 32), the model's is (32, 8)")
    assert not (tmp_path / "native").exists()


def test_what_a_universal_checkpoint_does_not_say_is_refused_by_name(
    universal: Path, tmp_path: Path, convert: Any
) -> None:
    import torch

    path = without_manifest(universal) / "mp_rank_00_model_states.pt"
    state = torch.load(path, weights_only=True)
    torch.save({key: value for key, value in state.items() if key != "consumed_train_samples"}, path)
    refused(convert(universal, tmp_path / "native", "native"), str(path), "lacks consumed_train_samples")
    torch.save({key: value for key, value in state.items() if key != "args"}, path)
    refused(convert(universal, tmp_path / "native", "native"), str(path), "has no args")


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("--pipeline-parallel=3", "3 pipeline stages"),
        ("--tensor-parallel=3", "TP 3"),
    ],
)
def test_a_layout_that_does_not_fit_the_model_is_refused(
    native: Path, tmp_path: Path, convert: Any, layout: str, why: str
) -> None:
    refused(convert(native, tmp_path / "native", "native", layout), why, "choose another layout")


def test_a_universal_checkpoint_is_not_made_universal_again(universal: Path, tmp_path: Path, convert: Any) -> None:
    refused(convert(universal, tmp_path / "again", "universal"), "is a universal checkpoint already")


@pytest.mark.parametrize("words", [["--tensor-parallel=2"], ["--workers=0"]])
def test_wrong_usage_is_said_as_such(native: Path, tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(native), "--to=universal", f"--output={tmp_path / 'new'}", *words])
