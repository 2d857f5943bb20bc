"""The members of DeepSpeed, private or not meant for others, that the trainer depends on."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
PIPELINE = "deepspeed.runtime.pipe.engine:PipelineEngine"
BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
ZERO = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
#: (module or module:class, member): an attribute of it, or a name in its source where only instances have it.
MEMBERS = [
    *((PIPELINE, name) for name in ("_INSTRUCTION_MAP", "_exec_optimizer_step", "_send_tensor_meta", "pipe_buffers")),
    *((PIPELINE, name) for name in ("_aggregate_total_loss", "_scale_loss_by_gas", "total_loss", "first_output_send")),
    *((PIPELINE, name) for name in ("reset_activation_shape", "next_stage", "prev_stage", "grid", "micro_batches")),
    ("deepspeed.runtime.engine:DeepSpeedEngine", "_copy_recovery_script"),
    ("deepspeed.runtime.engine:DeepSpeedEngine", "checkpoint_engine"),
    ("deepspeed.runtime.engine:DeepSpeedEngine", "save_zero_checkpoint"),
    ("deepspeed.runtime.engine:DeepSpeedEngine", "_global_grad_norm"),
    *((BF16, name) for name in ("_global_grad_norm", "_lazy_init_hp_params_optimizer_state", "bf16_groups_flat")),
    *((BF16, name) for name in ("_hp_optimizer_states_linked", "_restore_from_bit16_weights", "bf16_groups")),
    *((BF16, name) for name in ("fp32_groups_gradients", "fp32_groups_has_gradients", "_hp_grad", "_hp_mapping")),
    *((BF16, name) for name in ("fp32_groups_gradient_flat_partition", "bf16_partitioned_groups", "clear_lp_grads")),
    *((BF16, name) for name in ("get_grads_for_norm", "clear_hp_grads", "real_dp_process_group", "clip_grad")),
    *((ZERO, name) for name in ("_global_grad_norm", "_lazy_init_hp_params_optimizer_state", "bit16_groups_flat")),
    *((ZERO, name) for name in ("_hp_optimizer_states_linked", "_restore_from_bit16_weights", "bit16_groups")),
    *((ZERO, name) for name in ("_update_scale", "_update_model_bit16_weights", "scaled_global_norm", "overflow")),
    *((ZERO, name) for name in ("averaged_gradients", "all_grad_tensors", "params_in_partition", "micro_step_id")),
    *((ZERO, name) for name in ("params_not_in_partition", "parallel_partitioned_bit16_groups", "_zero_padding")),
    *((ZERO, name) for name in ("free_grad_in_param_list", "get_param_gradient_attribute", "_hp_mapping")),
    *((ZERO, name) for name in ("use_grad_accum_attribute", "contiguous_gradients", "buffered_reduce_fallback")),
    *((ZERO, name) for name in ("real_dp_process_group", "nccl_start_alignment_factor", "allgather_bucket_size")),
    ("deepspeed.runtime.bf16_optimizer", "get_global_norm_of_tensors"),
    ("deepspeed.runtime.utils", "all_gather_dp_groups"),
    ("deepspeed.runtime.utils", "is_invalid_grad_norm"),
    ("deepspeed.runtime.zero.utils", "ZERO_SUPPORTED_OPTIMIZERS"),
    ("deepspeed.utils.mixed_precision_linkage", "_hp_mapping"),
    *(
        ("deepspeed.utils.tensor_fragment:tensor_fragment", name)
        for name in ("hp_fragment_address", "param_group_index")
    ),
    ("deepspeed.utils.tensor_fragment:tensor_fragment", "lp_fragment_address"),
    ("deepspeed.comm.comm", "cdb"),
    ("deepspeed.ops", "__compatible_ops__"),
    ("deepspeed.runtime.compiler", "compile"),
    ("deepspeed.runtime.checkpoint_engine.checkpoint_engine:CheckpointEngine", "preserves_storage_sharing"),
]


@pytest.mark.parametrize(("owner", "member"), MEMBERS, ids=lambda value: value.rpartition(":")[2])
def test_deepspeed_has_what_the_trainer_takes_of_it(owner: str, member: str) -> None:
    module, _, name = owner.partition(":")
    found: Any = importlib.import_module(module)
    found = getattr(found, name) if name else found
    classes = inspect.getmro(found)[:-1] if inspect.isclass(found) else (found,)
    has = hasattr(found, member) or any(member in inspect.getsource(one) for one in classes)
    version = importlib.import_module("deepspeed").__version__
    assert has, f"DeepSpeed {version} has no {owner} {member}: see trainer/engine for what it is used for"


def private_accesses(source: Path) -> set[str]:
    """Private names that are read or set on anything but `self` and `cls`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
        and re.match(r"_(?!_)", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def test_every_private_member_that_is_used_is_listed() -> None:
    used = set().union(*(private_accesses(file) for file in (ROOT / "trainer" / "engine").glob("*.py")))
    assert used - {member for _, member in MEMBERS} == set()


def test_only_the_engine_package_uses_them() -> None:
    private = {member for _, member in MEMBERS if member.startswith("_")}
    elsewhere = {
        str(file.relative_to(ROOT)): names
        for file in (ROOT / "trainer").rglob("*.py")
        if "engine" not in file.parts and (names := private_accesses(file) & private)
    }
    assert elsewhere == {}
