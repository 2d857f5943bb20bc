"""A checkpoint as parameters: whatever cut it is in, any part comes back; what disagrees is refused by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.unit.trainer.checkpoint.small_checkpoint import FACTS, PARAMETERS, STEP, publish_small, value, write_small
from tests.unit.trainer.checkpoint.test_read import Calls
from trainer.checkpoint import saved_state
from trainer.checkpoint.saved_state import SavedState
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.partitions import Cut, saved_parameters
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_shape import ModelShape

BY_BLOCK = "type:transformer"
CUT = Cut(2, 2, 2, BY_BLOCK)
NAME = "layers.1.mlp.dense_4h_to_h.weight"


@pytest.mark.parametrize(
    ("cut", "precision"),
    [
        (Cut(1, 1, 1, BY_BLOCK), "bf16"),
        (CUT, "fp32"),
        (CUT, "bf16"),
        (Cut(4, 1, 3, "type:transformer|embedding"), "fp32"),
    ],
)
def test_every_parameter_comes_back_whole_and_in_parts(tmp_path: Path, cut: Cut, precision: str) -> None:
    state = SavedState(tmp_path / "one", write_small(tmp_path / "one", cut, precision))
    assert list(state.parameters) == [one.name for one in PARAMETERS]
    for one in PARAMETERS:
        part = (slice(1, 13), slice(3, None))[: len(one.shape)]
        for which in ("fp32", "exp_avg", "exp_avg_sq"):
            whole = value(one.name, which, one.shape)
            assert torch.equal(state.optimizer(one.name, which), whole)
            assert torch.equal(state.optimizer(one.name, which, part), whole[part])
            if which == "fp32":
                dtype = torch.bfloat16 if precision == "bf16" else torch.float32
                assert torch.equal(state.weight(one.name), whole.to(dtype))
                out = torch.empty(whole[part].shape, dtype=torch.float64)
                assert state.weight(one.name, part, out) is out
                assert torch.equal(out, whole[part].to(dtype).double())
        assert state.step(one.name) == STEP
    assert state.client_state()["global_steps"] == STEP


def test_of_a_file_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SavedState(tmp_path / "one", write_small(tmp_path / "one", CUT))
    state.optimizer(NAME, "exp_avg")
    asked, usual = [], os.preadv

    def watched(fd: int, views: list[memoryview], place: int) -> int:
        asked.append(len(views[0]))
        return usual(fd, views, place)

    monkeypatch.setattr(os, "preadv", watched)
    state.optimizer(NAME, "exp_avg", (slice(2, 4), slice(0, 12)))
    assert sum(asked) == 2 * 12 * 4, "the first tensor rank has columns 0 to 11: whole rows of its part"


def test_without_moments_there_are_none_and_of_sgd_there_is_its_own(tmp_path: Path) -> None:
    bare = SavedState(tmp_path / "bare", write_small(tmp_path / "bare", CUT, optimizer="none"))
    assert not bare.has_optimizer
    with pytest.raises(CheckpointError, match="/bare"):
        bare.optimizer(NAME, "fp32")
    sgd = SavedState(tmp_path / "sgd", write_small(tmp_path / "sgd", CUT, optimizer="sgd"))
    assert sgd.step(NAME) == 0
    assert torch.equal(sgd.optimizer(NAME, "momentum_buffer"), value(NAME, "momentum_buffer", (16, 24)))
    with pytest.raises(CheckpointError, match=r"/sgd\b.*exp_avg\b.*fp32, momentum_buffer"):
        sgd.optimizer(NAME, "exp_avg")


def test_a_checkpoint_of_the_first_schema_names_its_parameters_by_its_model(tmp_path: Path) -> None:
    write_small(tmp_path / "one", CUT)
    old = publish_small(tmp_path / "one", CUT, schema_version=1, parameters=())
    assert torch.equal(SavedState(tmp_path / "one", old).weight(NAME), value(NAME, "fp32", (16, 24)))
    facts = {name: fact for name, fact in FACTS.items() if name != "padded_vocab_size"}
    with pytest.raises(CheckpointError, match="padded_vocab_size"):
        SavedState(tmp_path / "one", publish_small(tmp_path / "one", CUT, parameters=(), model=facts))


def edited(path: Path, change: Callable[[Any], Any]) -> None:
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


def first_mapping(state: Any) -> Any:
    return state["optimizer_state_dict"]["param_slice_mappings"][0]


OPTIMIZER = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
LAYER = "layer_04-model_00-model_states.pt"
#: file, the damage, the facts of the message besides the file's path
DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "missing": (LAYER, Path.unlink, "No such file"),
    "short": (LAYER, lambda path: path.write_bytes(path.read_bytes()[:-2000]), "layer_04"),
    "hostile": (LAYER, lambda path: torch.save(Calls(os.system, "touch ran"), path), r"posix\.system"),
    "a list": (LAYER, lambda path: torch.save([1], path), "layer_04"),
    "another layer's": (
        LAYER,
        lambda path: path.write_bytes((path.parent / "layer_08-model_00-model_states.pt").read_bytes()),
        r"input_layernorm\.weight.*\(16,\)",
    ),
    "another precision": (
        LAYER,
        lambda path: edited(path, lambda state: state.update({n: t.half() for n, t in state.items()})),
        r"192 elements of torch\.float16.*192 elements of torch\.float32",
    ),
    "another layout": (
        OPTIMIZER,
        lambda path: edited(path, lambda state: state["optimizer_state_dict"].update(partition_count=[4, 4])),
        r"\[4, 4\].*\[2, 2\]",
    ),
    "wrong mapping": (
        OPTIMIZER,
        lambda path: edited(
            path, lambda state: setattr(first_mapping(state)["4.mlp.dense_4h_to_h.weight"], "start", 1)
        ),
        r"4\.mlp\.dense_4h_to_h\.weight.*\(1, 192\).*\(",
    ),
    "no mapping": (
        OPTIMIZER,
        lambda path: edited(path, lambda state: state["optimizer_state_dict"].pop("param_slice_mappings")),
        "param",
    ),
    "short partition": (
        OPTIMIZER,
        lambda path: edited(
            path,
            lambda state: state["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(
                exp_avg=torch.zeros(5)
            ),
        ),
        r"exp_avg of group 0\b.*\b5 elements\b",
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """Return a checkpoint to copy, and its manifest."""
    folder = tmp_path_factory.mktemp("sound") / "one"
    return folder, write_small(folder, CUT)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_the_manifests_is_refused_in_one_line_with_both_values(
    sound: tuple[Path, Manifest], tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, (name, act, said) = tmp_path / "one", DAMAGES[damage]
    manifest = sound[1]
    shutil.copytree(sound[0], folder)
    act(folder / name)
    with pytest.raises(CheckpointError, match=said) as refused:
        state = SavedState(folder, manifest)
        state.weight(NAME)
        state.optimizer(NAME, "exp_avg")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists(), "what a member put there runs nothing as the next user"
    assert str(folder / name) in str(refused.value)


def with_ffn(manifest: Manifest, size: int) -> Manifest:
    model = {**manifest.model, "ffn_hidden_size": size}
    return msgspec.structs.replace(manifest, model=model, parameters=saved_parameters(ModelShape.of_facts(model)))


def test_a_manifest_whose_parameters_disagree_with_the_files_is_refused_with_both_values(tmp_path: Path) -> None:
    manifest = write_small(tmp_path / "one", CUT)
    with pytest.raises(CheckpointError, match=r"\(12, 16\).*\(16, 16\)"):
        SavedState(tmp_path / "one", with_ffn(manifest, 32)).weight(NAME)
    with pytest.raises(CheckpointError, match=r"\(\d+, \d+\).*\(\d+, \d+\)"):
        SavedState(tmp_path / "one", with_ffn(manifest, 32)).optimizer(NAME, "fp32")
    with pytest.raises(CheckpointError, match=r"\b25\b.*\bTP 2\b"):
        SavedState(tmp_path / "one", with_ffn(manifest, 25))
    with pytest.raises(CheckpointError, match=r"\banother\b"):
        SavedState(tmp_path / "one", manifest).weight("another")
    layout = {**manifest.layout, "pipeline": 3}
    with pytest.raises(CheckpointError, match=r"\b4 layers\b.*\b3\b"):
        SavedState(tmp_path / "one", msgspec.structs.replace(manifest, layout=layout))


def test_before_the_first_step_moments_are_zeros_and_no_step_is_counted(tmp_path: Path) -> None:
    manifest = write_small(tmp_path / "one", CUT)
    for path in (tmp_path / "one").glob("zero_pp_rank_*"):
        edited(path, lambda state: state["optimizer_state_dict"]["base_optimizer_state"].update(state={}))
    state = SavedState(tmp_path / "one", manifest)
    out = torch.full((16, 24), torch.nan)
    assert state.optimizer(NAME, "exp_avg", out=out).count_nonzero() == 0 and state.step(NAME) == 0
    assert torch.equal(state.optimizer(NAME, "fp32"), value(NAME, "fp32", (16, 24)))


def test_of_what_each_tensor_rank_had_whole_the_copy_that_is_asked_for_comes(tmp_path: Path) -> None:
    """So that a training with copies that have drifted goes on as it was."""
    name, folder = "layers.0.input_layernorm.weight", tmp_path / "one"
    manifest = write_small(folder, Cut(2, 1, 1, BY_BLOCK))
    edited(folder / "layer_03-model_01-model_states.pt", lambda state: state["input_layernorm.weight"].fill_(3))
    edited(
        folder / "zero_pp_rank_0_mp_rank_01_optim_states.pt",
        lambda state: [one.fill_(4) for one in state["optimizer_state_dict"]["single_partition_of_fp32_groups"]],
    )
    state, usual = SavedState(folder, manifest), value(name, "fp32", (16,))
    assert torch.equal(state.weight(name), usual) and torch.equal(state.optimizer(name, "fp32"), usual)
    assert state.weight(name, copy=1).tolist() == [3] * 16
    assert state.optimizer(name, "fp32", copy=1).tolist() == [4] * 16


@pytest.mark.parametrize("step", [float("nan"), float("inf"), -1.0])
def test_a_step_count_that_is_none_is_refused(tmp_path: Path, step: float) -> None:
    manifest = write_small(tmp_path / "one", Cut(1, 1, 1, BY_BLOCK))
    edited(
        tmp_path / "one" / "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        lambda state: state["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(step=torch.tensor(step)),
    )
    with pytest.raises(CheckpointError, match=f"group 0.*{step}"):
        SavedState(tmp_path / "one", manifest).step(NAME)


def test_more_files_than_are_kept_open_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "_OPEN_FILES", 1)
    state = SavedState(tmp_path / "one", write_small(tmp_path / "one", CUT))
    for _ in range(2):
        for name in (NAME, "layers.3.mlp.dense_4h_to_h.weight"):
            assert torch.equal(state.weight(name), value(name, "fp32", (16, 24)))
            assert torch.equal(state.optimizer(name, "exp_avg"), value(name, "exp_avg", (16, 24)))
