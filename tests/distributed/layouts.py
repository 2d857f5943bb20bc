"""Checkpoints of one training's state in many layouts, and what each rank of a layout has of it by its files alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training

Layout = tuple[int, int, int]  # tensor, pipeline, data

#: All of 1, 2, 4 or 8 ways in each direction on up to 8 ranks.
WAYS = (1, 2, 4, 8)
LAYOUTS: list[Layout] = [(t, p, d) for t, p, d in product(WAYS, WAYS, WAYS) if t * p * d <= 8]

#: 8 layers and heads, so that each layout takes it; a vocabulary that TP 1, 2 and 4 pad to different sizes.
MODEL: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 16,
    "num_attention_heads": 8,
    "ffn_hidden_size": 24,
    "vocab_size": 64,
    "make_vocab_size_divisible_by": 3,
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "position_embedding_type": "absolute",
    "embed_layernorm": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
}
STEPS = 2


def ranks_of(layout: Layout) -> int:
    return layout[0] * layout[1] * layout[2]


def laid_out(layout: Layout) -> dict[str, Any]:
    return {"tensor_model_parallel_size": layout[0], "pipeline_model_parallel_size": layout[1]}


def trained(pool: Pool, layout: Layout, options: dict[str, Any]) -> list[Seen]:
    """Return a whole training in this layout, every rank of which left with status 0."""
    ranks = pool.run(ranks_of(layout), run_training, {**MODEL, **laid_out(layout), **options})
    assert [rank.status for rank in ranks] == [0] * len(ranks), [rank.errors for rank in ranks]
    return ranks


def saved_in_all(pool: Pool, root: Path, data: str, layouts: list[Layout], **options: Any) -> dict[Layout, Path]:
    """Save the same state by real trainings: train in the first layout, then load and save in each other one."""
    given = {"data_path": [data], "train_iters": STEPS, **options}
    first, *others = layouts
    trained(pool, first, {**given, "save": str(root / name_of(first))})
    for layout in others:
        folders = {"load": str(root / name_of(first)), "save": str(root / name_of(layout))}
        trained(pool, layout, {**given, **folders})
    return {layout: root / name_of(layout) / f"global_step{STEPS}" for layout in layouts}


def name_of(layout: Layout) -> str:
    return "TP{}-PP{}-DP{}".format(*layout)


def differences(pairs: list[tuple[str, str]]) -> list[str]:
    """Return the differences between the files of a rank of the second folder's layout and what it takes from the
    first, bitwise.

    Runs in any process. What the second folder has is told by DeepSpeed's own records in it, not by our arithmetic.
    """
    found = []
    for source, target in pairs:
        found += [f"{source} -> {target}: {problem}" for problem in _differences(Path(source), Path(target))]
    return found


def _differences(source: Path, target: Path) -> Iterator[str]:
    import torch
    from torch.nn import Parameter

    from trainer.checkpoint.into_engine import Own, fill_run
    from trainer.checkpoint.saved_state import SavedState
    from trainer.formats.checkpoint.manifest import read_manifest
    from trainer.formats.checkpoint.partitions import engine_name

    manifest = read_manifest(target)
    tensor, data = int(manifest.layout["tensor"]), int(manifest.layout["data"])
    state = SavedState(source, read_manifest(source))
    saved = {engine_name(one): one for one in state.parameters.values()}
    compared = 0
    for file in sorted(target.glob("layer_*")):
        layer, rank = int(file.name[6:8]), int(file.name[15:17])
        for name, weight in torch.load(file, weights_only=True).items():
            one = next(p for p in state.parameters.values() if (p.layer, p.name_in_layer) == (layer, name))
            out = torch.full_like(weight, torch.nan)
            fill_run(state, Own(one, Parameter(weight), rank, 0), None, 0, out.view(-1))
            compared += 1
            if not torch.equal(out, weight):
                yield f"{file.name} {name}"
    for model_rank in range(tensor * int(manifest.layout["pipeline"])):
        shapes = torch.load(target / f"mp_rank_{model_rank:02d}_model_states.pt", weights_only=False)["param_shapes"]
        places: dict[str, int] = {}
        for data_rank in range(data):
            (file,) = target.glob(f"*zero_pp_rank_{data_rank}_mp_rank_{model_rank:02d}_optim_states.pt")
            states = torch.load(file, weights_only=False)["optimizer_state_dict"]
            for number, mapping in enumerate(states["param_slice_mappings"]):
                kept = dict(states["base_optimizer_state"]["state"][number])
                step = kept.pop("step", None)
                for name, address in mapping.items():
                    own = Own(saved[name], Parameter(torch.empty(shapes[number][name])), model_rank % tensor, 0)
                    first = places.get(name, 0)
                    places[name] = first + address.numel
                    for which, flat in {"fp32": states["single_partition_of_fp32_groups"][number], **kept}.items():
                        out = torch.full((address.numel,), torch.nan)
                        fill_run(state, own, which, first, out)
                        compared += 1
                        if not torch.equal(out, flat[address.start : address.start + address.numel]):
                            yield f"{file.name} {name} {which}"
                    if step is not None and state.step(saved[name].name) != step.item():
                        yield f"{file.name} {name} step"
        complete = {name: shape.numel() for group in shapes for name, shape in group.items()}
        if places != complete:
            yield f"model rank {model_rank} has {places}, {complete} belong there"
    if compared < 2 * len(saved):
        yield f"only {compared} comparisons"
