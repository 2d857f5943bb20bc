"""A published model becomes a checkpoint and is published again, bit for bit; what comes between is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.convert.hf.conftest import TOKENS, Publish
from trainer.convert.hf import export, export_program, import_program
from trainer.formats.checkpoint.manifest import fault_of, latest_checkpoint


def tensors_in(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: one for file in folder.glob("*.safetensors") for name, one in load_file(file).items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return set(one) == set(other) and all(
        value.dtype == other[name].dtype
        and torch.equal(value.view(bits[value.itemsize]), other[name].view(bits[value.itemsize]))
        for name, value in one.items()
    )


def imported(published: Path, to: Path, *words: str) -> Path:
    assert import_program.main([str(published), "--output", str(to), *words]) == 0
    return to


def exported(checkpoints: Path, to: Path, *words: str) -> Path:
    assert export_program.main([str(checkpoints), "--output", str(to), *words]) == 0
    return to


@pytest.mark.parametrize(
    ("family", "dtype", "changes"),
    [
        ("bloom", "float32", {"apply_residual_connection_post_layernorm": True, "layer_norm_epsilon": 1e-3}),
        ("bloom", "float16", {}),
        ("gpt2", "bfloat16", {"n_inner": 48}),
        ("gpt2", "float32", {"activation_function": "gelu", "n_positions": 24, "layer_norm_epsilon": 1e-3}),
        ("llama", "bfloat16", {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}),
        ("llama", "float32", {"num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
        ("llama", "float32", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"}),
    ],
)
def test_published_imported_and_exported_it_is_the_same_bit_for_bit(
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    dtype: str,
    changes: dict[str, Any],
) -> None:
    published = publish(family, dtype, shard="20KB", **changes)
    checkpoints = imported(published, tmp_path / "checkpoints", "--make-vocab-size-divisible-by", "64")
    found = latest_checkpoint(checkpoints)
    assert found is not None and fault_of(found.folder) is None
    assert (found.manifest.model["vocab_size"], found.manifest.model["padded_vocab_size"]) == (TOKENS, 64)
    monkeypatch.setattr(export, "FILE_BYTES", 30_000)
    again = exported(checkpoints, tmp_path / "again")
    assert len(list(again.glob("*.safetensors"))) > 1
    assert same(tensors_in(published), tensors_in(again))
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (again, published))
    # What theirs has beside is what transformers takes for granted, or does not concern the model.
    shared = {name: theirs[name] for name in ours if name in theirs}
    assert {name: ours[name] for name in shared} == shared
    layers = "num_hidden_layers" if family == "llama" else "n_layer"
    assert {*changes, "vocab_size", "architectures", layers} <= set(shared)
    back = imported(again, tmp_path / "back", "--make-vocab-size-divisible-by", "64")
    assert native_weights(back) == native_weights(checkpoints)


def native_weights(checkpoints: Path) -> dict[str, bytes]:
    import torch

    files = sorted((checkpoints / "global_step0").glob("layer_*"))
    return {
        f"{file.name} {name}": value.contiguous().view(torch.uint8).numpy().tobytes()
        for file in files
        for name, value in torch.load(file, weights_only=True).items()
    }


def test_files_of_other_makers_are_read_alike(publish: Publish, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    published = publish("gpt2")
    tensors = tensors_in(published)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(published / "config.json", other)
    # As the first GPT-2 was published: without the prefix, with the mask, the output layer next to it.
    named = {name.removeprefix("transformer."): one for name, one in tensors.items()}
    named |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "lm_head.weight": named["wte.weight"].clone()}
    save_file(named, other / "model.safetensors")
    again = exported(imported(other, tmp_path / "checkpoints"), tmp_path / "again")
    assert same(tensors, tensors_in(again))


def test_the_printed_options_parse_and_are_the_model(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tomllib

    from trainer.formats.checkpoint.changes import Identity
    from trainer.recipe.model_options import Vocabulary
    from trainer.recipe.options import check_mapping, from_tables

    checkpoints = imported(publish("bloom"), tmp_path / "checkpoints", "--make-vocab-size-divisible-by", "16")
    tables = tomllib.loads(capsys.readouterr().out)
    given = {name: value for table in tables.values() for name, value in table.items()}
    whole = {**given, "micro_batch_size": 1, "lr": 1e-3, "train_iters": 1}
    assert check_mapping(whole, 1) == []
    options = from_tables(whole, 1)
    found = latest_checkpoint(checkpoints)
    assert found is not None
    assert Identity.of(options, 1, Vocabulary.of(options["vocab_size"], options)).model == found.manifest.model


def changed_config(published: Path, **changes: Any) -> None:
    file = published / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        (
            "gpt2",
            {"activation_function": "relu"},
            "activation_function .*relu.*gelu_new",
        ),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx .*true.*false"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights .*false.*true"),
        ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings .*false.*true"),
        ("gpt2", {"model_type": "mamba"}, "model_type .*'mamba'.*bloom, gpt2, llama"),
        ("gpt2", {"n_embd": "wide\x1b[2J"}, r"n_embd .*'wide\\x1b\[2J'"),
        ("gpt2", {"n_head": 5}, "--hidden-size 32 .*--num-attention-heads 5"),
        ("bloom", {"n_layer": 3}, r"transformer.h.2.input_layernorm.weight .*config.json.*\(32,\)"),
        ("bloom", {"vocab_size": 60}, r"word_embeddings.weight .*\(61, 32\).*config.json.*\(60, 32\)"),
        ("bloom", {"n_layer": 1}, "'transformer.h.1.input_layernorm.bias'"),
        ("bloom", {"quantization_config": {"bits": 4}}, "quantized"),
        ("llama", {"hidden_act": "tanh"}, "hidden_act .*tanh.*silu"),
        ("llama", {"head_dim": 16}, r"q_proj.weight .*\(32, 32\).*config.json.*\(64, 32\)"),
        ("llama", {"attention_bias": True}, "mlp_bias .*false.*true"),
        ("llama", {"num_key_value_heads": 3}, "--num-attention-heads 4 .*--num-query-groups 3"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters .*'longrope'"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "high_freq_factor": 2.0}}, "high_freq_factor .*2.*4"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, "mscale .*0.7.*missing"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling .*'linear'"),
        ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor .*\b0\.5\b"),
        ("llama", {"num_key_value_heads": 4}, r"k_proj.weight .*\(16, 32\).*config.json.*\(32, 32\)"),
        ("llama", {"tie_word_embeddings": True}, "lm_head.weight .*model.embed_tokens.weight"),
    ],
)
def test_what_the_trainer_has_not_is_refused_by_name(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, changes: Any, said: str
) -> None:
    published = publish(family)
    changed_config(published, **changes)
    assert import_program.main([str(published), "--output", str(tmp_path / "checkpoints")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and re.search(said, errors[0]), errors
    assert not (tmp_path / "checkpoints").exists()


def test_an_index_that_leads_out_of_its_folder_is_refused(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = publish("bloom", shard="20KB")
    index = published / "model.safetensors.index.json"
    map_ = json.loads(index.read_text())
    map_["weight_map"]["transformer.ln_f.bias"] = "../secret.safetensors"
    index.write_text(json.dumps(map_))
    assert import_program.main([str(published), "--output", str(tmp_path / "checkpoints")]) == 1
    assert "'../secret.safetensors'" in capsys.readouterr().err


def test_another_output_layer_than_the_embedding_is_refused(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    published = publish("bloom")
    tensors = tensors_in(published)
    tensors["lm_head.weight"] = tensors["transformer.word_embeddings.weight"] + 1
    save_file(tensors, published / "model.safetensors")
    assert import_program.main([str(published), "--output", str(tmp_path / "checkpoints")]) == 1
    assert re.search(r"lm_head\.weight .*transformer\.word_embeddings\.weight", capsys.readouterr().err)
    assert not (tmp_path / "checkpoints").exists()


def test_a_folder_with_checkpoints_is_left_alone(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = publish("bloom")
    checkpoints = imported(published, tmp_path / "checkpoints")
    assert import_program.main([str(published), "--output", str(checkpoints)]) == 1
    assert "has global_step0 already: give another --output" in capsys.readouterr().err
