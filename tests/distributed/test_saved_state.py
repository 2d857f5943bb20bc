"""Saved states of real trainings, read as parameters: whole and in parts, from every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import run_training, write_corpus

pytestmark = pytest.mark.distributed

MODEL = {
    "position_embedding_type": "absolute",
    "embed_layernorm": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "adam_eps": 1e-2,  # keeps Adam from making steps of gradients that are rounding alone
}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "fp32": (4, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}),
    "bf16": (4, {"tensor_model_parallel_size": 2, "bf16": True}),
    "sgd": (2, {"optimizer": "sgd"}),
    "bare": (2, {"pipeline_model_parallel_size": 2, "no_save_optim": True}),
}


def read_whole(folder: str) -> dict[str, Any]:
    """In a rank: what a checkpoint has of each parameter, whole, and where a part was not that of the whole."""
    import torch

    from trainer.checkpoint.saved_state import SavedState
    from trainer.formats.checkpoint.manifest import read_manifest
    from trainer.recipe.model_shape import ModelShape
    from trainer.recipe.parameters import parameter_table

    state = SavedState(Path(folder), read_manifest(Path(folder)))
    table = {one.full_name: one.shape for one in parameter_table(ModelShape.of_facts(state.manifest.model))}
    assert {name: one.shape for name, one in state.parameters.items()} == table
    assert state.manifest.parameters, "a manifest names them"
    found: dict[str, Any] = {"precision": state.manifest.precision, "moments": state.moments, "different": []}
    for name, parameter in state.parameters.items():
        weight = state.weight(name)
        part = (slice(3, 9), slice(2, 5))[: len(parameter.shape)]
        wholes = {"weight": weight}
        if state.has_optimizer:
            wholes |= {which: state.optimizer(name, which) for which in ("fp32", *state.moments)}
            found["different"] += [name] * (not torch.equal(wholes["fp32"].to(weight.dtype), weight))
            found["step"] = state.step(name)
        for which, whole in wholes.items():
            again = state.weight(name, part) if which == "weight" else state.optimizer(name, which, part)
            found["different"] += [f"{name} {which}"] * (not torch.equal(again, whole[part]))
        found[name] = {which: whole.double().numpy() for which, whole in wholes.items()}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint_gives_what_one_process_has(pool: Pool, tmp_path: Path, kind: str) -> None:
    world_size, changes = KINDS[kind]
    options = {**MODEL, "data_path": [write_corpus(tmp_path)], "train_iters": 1, "micro_batch_size": 1, **changes}
    layout = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    alone = {name: value for name, value in options.items() if name not in layout}
    for ranks, given, folder in ((world_size, options, "laid out"), (1, alone, "alone")):
        seen = pool.run(ranks, run_training, {**given, "pad_vocab_size_to": 72, "save": str(tmp_path / folder)})
        assert [one.status for one in seen] == [0] * ranks, seen[0].errors
    ours, theirs = (pool.run(1, read_whole, str(tmp_path / one / "global_step1"))[0] for one in ("laid out", "alone"))
    assert ours["different"] == theirs["different"] == []
    assert ours["moments"] == {"sgd": ("momentum_buffer",), "bare": ()}.get(kind, ("exp_avg", "exp_avg_sq"))
    assert ours.get("step") == {"sgd": 0.0, "bare": None}.get(kind, 1.0)
    for name in ours.keys() - {"precision", "moments", "different", "step"}:
        for which, whole in ours[name].items():
            difference, size = abs(whole - theirs[name][which]).mean(), abs(theirs[name][which]).mean()
            assert difference <= (0.1 if kind == "bf16" else 1e-3) * size + 1e-9, (name, which, difference, size)
