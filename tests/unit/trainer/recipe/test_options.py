"""Options: what parses, what is refused and in which words."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import missing
from trainer.recipe import options as options_module
from trainer.recipe.layout import Layout, layout_if_any
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.lengths import Lengths
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.option_help import help_text
from trainer.recipe.option_table import REFUSED
from trainer.recipe.options import BY_KEY, OPTIONS, OptionsError, check_mapping, nearest, parse, to_arguments
from trainer.recipe.schedule import BatchRamp

SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "seq_length": 32,
    "micro_batch_size": 2,
    "lr": 1e-3,
    "train_iters": 10,
    "vocab_size": 100,
}

# The argument blocks of the two runs as their launch notes have them, shell variables filled in.
TR1_13B = """
    --num-layers 40 --hidden-size 5120 --ffn-hidden-size 20480 --num-attention-heads 32
    --seq-length 2048 --max-position-embeddings 2048
    --micro-batch-size 1 --rampup-batch-size 16 16 5_000_000 --global-batch-size 1024
    --train-samples 300_000_000
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path oscar_text_document
    --seed 42 --init-method-std 0.02 --fp16
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.999 --adam-eps 1e-8
    --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-decay-samples 126_953_125 --lr-warmup-samples 216_320
    --clip-grad 1.0 --weight-decay 1e-1
    --tensorboard-dir tb --tensorboard-queue-size 5 --log-timers-to-tensorboard --log-batch-size-to-tensorboard
    --log-validation-ppl-to-tensorboard
    --codecarbon-dir codecarbon
    --deepspeed-activation-checkpointing
    --exit-duration-in-mins 1190 --exit-interval 100 --save ckpt --load ckpt --save-interval 300
"""
TR11_176B = """
    --num-layers 70 --hidden-size 14336 --num-attention-heads 112
    --pp-partition-method type:transformer|embedding
    --seq-length 2048 --max-position-embeddings 2048
    --micro-batch-size 2 --rampup-batch-size 192 16 9_765_625 --global-batch-size 2048 --train-samples 220_000_000
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8
    --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine --lr-decay-samples 200_000_000 --lr-warmup-samples 183_105
    --clip-grad 1.0 --weight-decay 1e-1
    --attention-dropout 0.1 --hidden-dropout default=0.1
    --init-method-std 0.0048 --position-embedding-type alibi --embed-layernorm --sync-tp-duplicated-parameters
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path a/tokenizer --pad-vocab-size-to 250880
    --train-weighted-split-paths-path train-splits.txt --valid-weighted-split-paths-path valid-splits.txt
    --num-workers 2 --valid-num-workers 0 --abort-on-unmet-fused-kernel-constraints
    --bf16 --deepspeed --deepspeed_config ds_config.1.json --zero-stage 1 --deepspeed-activation-checkpointing
    --exit-duration-in-mins 5990 --kill-switch-path kill-switch --save-interval 250 --save ckpt
"""


def small(**changes: Any) -> list[str]:
    return to_arguments(SMALL | changes)


def refusal(*argv: str, world_size: int | None = None, **changes: Any) -> str:
    with pytest.raises(OptionsError) as caught:
        parse([*small(**changes), *argv], world_size)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Every option that the originals' programs and branches declare for a GPT, in their own spelling.
ORIGINALS = """
    num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels max-position-embeddings onnx-safe
    bert-no-binary-head make-vocab-size-divisible-by pad-vocab-size-to layernorm-epsilon
    sync-tp-duplicated-parameters embed-layernorm openai-gelu apply-residual-connection-post-layernorm
    position-embedding-type glu-activation kill-switch-path log-level log-level-replica log-params-norm
    log-num-zeros-in-grad tensorboard-log-interval tensorboard-queue-size log-timers-to-tensorboard
    log-batch-size-to-tensorboard no-log-learnig-rate-to-tensorboard no-log-loss-scale-to-tensorboard
    log-interval log-validation-ppl-to-tensorboard attention-dropout hidden-dropout weight-decay clip-grad
    adam-beta1 adam-beta2 adam-eps sgd-momentum micro-batch-size batch-size global-batch-size rampup-batch-size
    checkpoint-activations checkpoint-num-layers distribute-checkpointed-activations train-iters train-samples
    train-tokens exit-interval exit-duration-in-mins tensorboard-dir no-masked-softmax-fusion
    no-bias-gelu-fusion no-bias-dropout-fusion optimizer use-bnb-optimizer dataloader-type cpu-optimizer
    cpu_torch_adam codecarbon-dir eval-only no-train skip-train-iteration-range inference
    abort-on-unmet-fused-kernel-constraints pp-partition-method seed init-method-std init-method-xavier-uniform
    lr lr-decay-style lr-decay-iters lr-decay-samples lr-decay-tokens lr-warmup-fraction lr-warmup-iters
    lr-warmup-samples lr-warmup-tokens warmup min-lr override-lr-scheduler use-checkpoint-lr-scheduler
    universal-checkpoint save save-interval no-save-optim no-save-rng load no-load-optim no-load-rng finetune
    fp16 bf16 loss-scale initial-loss-scale min-loss-scale loss-scale-window hysteresis fp32-residual-connection
    no-query-key-layer-scaling attention-softmax-in-fp32 accumulate-allreduce-grads-in-fp32
    fp16-lm-cross-entropy DDP-impl tensor-model-parallel-size pipeline-model-parallel-size model-parallel-size
    num-layers-per-virtual-pipeline-stage distributed-backend use-contiguous-buffers-in-ddp
    no-scatter-gather-tensors-in-pipeline local_rank lazy-mpu-init use-cpu-initialization eval-iters
    eval-interval data-path split train-weighted-split-paths valid-weighted-split-paths
    test-weighted-split-paths train-weighted-split-paths-path log-path vocab-file merge-file vocab-extra-ids
    seq-length encoder-seq-length decoder-seq-length retriever-seq-length sample-rate mask-prob short-seq-prob
    mmap-warmup num-workers valid-num-workers tokenizer-type tokenizer-name-or-path data-impl reset-position-ids
    reset-attention-mask eod-mask-loss loss-on-targets-only reweight-loss-based-on-position-frequency
    noise-density mean-noise-span-length adlr-autoresume adlr-autoresume-interval zero-stage zero-reduce-scatter
    zero-contigious-gradients zero-reduce-bucket-size zero-allgather-bucket-size remote-device use-pin-memory
    scattered-embeddings split-transformers memory-centric-tiled-linear tile-factor
    deepspeed-activation-checkpointing partition-activations contigious-checkpointing checkpoint-in-cpu
    synchronize-each-layer profile-backward deepspeed deepspeed_config reset-progress norm-target-loss prefixlm
    bitfit mup mup-input-mult mup-output-mult mup-attn-mult no-shuffle tensorboard-debug-dir
"""


def test_every_option_of_the_originals_is_real_or_refused_by_its_name() -> None:
    for name in ORIGINALS.split():
        is_refused = f"--{name.replace('_', '-')}" in REFUSED
        assert (name.replace("-", "_") in BY_KEY) != is_refused, name


def test_the_argument_block_of_the_13b_run_means_what_its_launch_notes_say() -> None:
    options = parse(TR1_13B.split(), 128)
    schedule, end = LearningRateSchedule.of(options), Lengths.of(options)
    assert (schedule.max_lr, schedule.min_lr, schedule.style) == (1e-4, 1e-5, "cosine")
    assert schedule.decay_samples * 2048 == 260_000_000_000
    assert schedule.warmup_samples == 216_320
    assert end.ramp == BatchRamp(16, 16, 5_000_000, 1024)
    assert (options.clip_grad, options.weight_decay, options.adam_beta2) == (1.0, 0.1, 0.999)
    assert (options.exit_duration_in_mins, options.fp16, options.seed) == (1190, True, 42)
    assert layout_if_any(options, 128) == Layout(128, tensor=2, pipeline=4, data=16)


def test_the_argument_block_of_the_176b_run_means_what_its_launch_notes_say() -> None:
    options = parse(TR11_176B.split(), 384)
    schedule, end = LearningRateSchedule.of(options), Lengths.of(options)
    assert f"{schedule.at(158_692_272):.3E}" == "1.150E-05"
    assert (schedule.decay_samples, schedule.warmup_samples, end.train_samples) == (200_000_000, 183_105, 220_000_000)
    assert end.ramp == BatchRamp(192, 16, 9_765_625, 2048)
    assert Vocabulary.of(250_680, options).rows == 250_880
    assert (options.adam_beta2, options.init_method_std, options.attention_dropout) == (0.95, 0.0048, 0.1)
    assert (options.position_embedding_type, options.embed_layernorm, options.bf16) == ("alibi", True, True)
    assert layout_if_any(options, 384) == Layout(384, tensor=4, pipeline=12, data=8)


@pytest.mark.parametrize(("block", "ranks"), [(TR1_13B, 128), (TR11_176B, 384)])
def test_the_argument_blocks_of_the_big_runs_parse_as_they_stand(block: str, ranks: int) -> None:
    options = parse(block.split(), ranks)
    assert options.train_samples in (300_000_000, 220_000_000)
    assert options.hidden_dropout == 0.1


def test_numbers_may_have_underscores_and_exponents() -> None:
    options = parse([*small(train_iters=None), "--train-samples", "5_000_000", "--min-lr", "6e-6"])
    assert (options.train_samples, options.min_lr) == (5_000_000, 6e-6)


def test_what_follows_from_other_options_is_filled_in() -> None:
    options = parse(small(), world_size=4)
    assert (options.ffn_hidden_size, options.kv_channels) == (256, 8)
    assert (options.max_position_embeddings, options.global_batch_size) == (32, 8)


def test_a_name_may_be_cut_short_while_one_option_fits() -> None:
    assert parse([*small(train_iters=None), "--train-iter", "7"]).train_iters == 7
    assert "--log-interval" in refusal("--log", "7")


def test_underscores_serve_for_dashes_and_equals_for_the_space() -> None:
    options = parse([*small(), "--weight_decay=0.5", "--data-path=a"])
    assert (options.weight_decay, options.data_path) == (0.5, ["a"])


def test_the_last_of_two_values_counts() -> None:
    assert parse([*small(), "--lr", "1", "--lr", "2"]).lr == 2


def test_what_stands_on_a_line_is_known_by_its_key_however_it_is_spelled_and_nothing_is_added() -> None:
    line = ["--train_sam=5_000", "--kill-switch", "/k", "--bf16", "--lr", "1", "--lr", "2"]
    found = options_module.given(line)
    assert found == {"train_samples": 5000, "kill_switch_path": "/k", "bf16": True, "lr": 2.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data_path": "alone"},
        {"data_path": [0.3, "a", 1, "b"], "lr": 1, "bf16": True, "fp16": False},
        {"train_iters": None, "train_samples": 500, "rampup_batch_size": [2, 2, 100], "global_batch_size": 8},
    ],
)
def test_a_run_files_tables_and_the_line_made_of_them_are_the_same_options(changes: dict[str, Any]) -> None:
    assert options_module.from_tables(SMALL | changes, 1) == parse(small(**changes), 1)


def test_tables_that_are_not_complete_are_options_as_far_as_they_go() -> None:
    found = options_module.from_tables({"hidden_size": 64, "micro_batch_size": 2}, 4)
    assert (found.ffn_hidden_size, found.global_batch_size, found.num_layers) == (256, 8, None)


def test_options_cannot_be_changed() -> None:
    options = parse(small())
    with pytest.raises(AttributeError):
        options.num_layers = 5
    assert options.replace(num_layers=5).num_layers == 5
    assert options.num_layers == 4
    with pytest.raises(AttributeError, match=r"\bnum_layer\b.*\bnum_layers\b"):
        _ = options.num_layer


def test_a_misspelt_option_names_the_nearest() -> None:
    assert not missing(refusal("--num-layerz", "5"), "--num-layerz", "--num-layers")
    assert nearest("hiden_size") == "--hidden-size"
    assert nearest("zzzzzz") is None


def test_what_the_trainer_cannot_do_is_refused_by_name_with_the_reason() -> None:
    for name in REFUSED:
        assert name not in {option.name for option in OPTIONS}
        assert not missing(refusal(name, "1"), name, REFUSED[name])


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["--num-layers", "4.5"], ["--num-layers 4.5"]),
        (["--num-layers", "0"], ["--num-layers 0", "1"]),
        (["--lr", "nan"], ["--lr nan"]),
        (["--seed", "5_000_000_000"], ["--seed 5000000000"]),
        (["--hidden-dropout", "1"], ["--hidden-dropout 1"]),
        (["--num-layers", "1_000_000"], ["--num-layers 1000000"]),
        (["--hidden-dropout", "default=0.2"], ["--hidden-dropout", "0.1"]),
        (["--position-embedding-type", "sine"], ["sine", "absolute, alibi, rope, rotary"]),
        (["--rampup-batch-size", "1", "2"], ["--rampup-batch-size", "3", "1 2"]),
        (["--lr"], ["--lr"]),
        (["--bf16=no"], ["--bf16"]),
        (["stray"], ["stray"]),
        (["--bf16", "true"], ["--bf16 true"]),
    ],
)
def test_a_wrong_value_is_one_line_with_what_is_allowed(argv: list[str], facts: list[str]) -> None:
    assert not missing(refusal(*argv), *facts)


def test_a_whole_number_that_64_bits_cannot_hold_is_refused_by_its_options_name() -> None:
    for option in [one for one in OPTIONS if one.type is int]:
        many = option.nargs if isinstance(option.nargs, int) else 1
        with pytest.raises(OptionsError, match=f"^{option.name} 9{{20}}"):
            options_module.given([option.name, *["9" * 20] * many])
        (wrong,) = check_mapping({option.key: [10**20] * many if option.nargs else 10**20}, None)
        assert wrong.startswith(f"{option.key} = ")


@pytest.mark.parametrize("name", ["hidden_dropout", "attention_dropout"])
@pytest.mark.parametrize("rate", [0.999999, 1 - 2.0**-18, 2.0**-18, 1e-9])
def test_a_dropout_that_masks_of_16_bits_cannot_draw_is_refused(name: str, rate: float) -> None:
    changes: dict[str, Any] = {name: rate}
    words = refusal(**changes)
    assert words.startswith(f"--{name.replace('_', '-')} {rate}: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"train_samples": 7, "global_batch_size": 8},
        {"train_samples": 7, "global_batch_size": 16, "rampup_batch_size": [8, 8, 100]},
    ],
    ids=["constant batch", "ramp"],
)
def test_a_training_shorter_than_its_first_batch_is_refused(changes: dict[str, Any]) -> None:
    assert "--train-samples 7 " in refusal(train_iters=None, **changes)
    parse(small(train_iters=None, **{**changes, "train_samples": 8}))
    parse(small(train_iters=None, **{**changes, "train_samples": None, "train_tokens": 1}))  # rounded up to a step
    parse(small(train_iters=None, **changes, eval_only=True, load="checkpoints"))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"num_attention_heads": 7}, ["--hidden-size 64", "--num-attention-heads 7"]),
        ({"tensor_model_parallel_size": 3}, ["--num-attention-heads 8", "--tensor-model-parallel-size 3"]),
        ({"pipeline_model_parallel_size": 3}, ["--num-layers 4", "--pipeline-model-parallel-size 3"]),
        (
            {"pipeline_model_parallel_size": 4, "pp_partition_method": "type:transformer|embedding"},
            ["--num-layers 4", "2 embeddings", "--pipeline-model-parallel-size 4"],
        ),
        (
            {"pipeline_model_parallel_size": 6, "pp_partition_method": "type:transformer|embedding"},
            ["--num-layers 4 + 2 embeddings", "6 pipeline stages"],
        ),
        ({"global_batch_size": 12}, ["12", "--micro-batch-size 2 x DP 4 = 8"]),
        ({"global_batch_size": 8, "rampup_batch_size": [4, 4, 10]}, ["--rampup-batch-size", "--train-samples"]),
        ({"max_position_embeddings": 16}, ["--max-position-embeddings 16", "--seq-length 32"]),
        ({"train_samples": 100}, ["--train-samples", "--train-iters"]),
        ({"lr_warmup_samples": 5}, ["--lr-warmup-samples", "--train-iters"]),
        ({"lr_warmup_fraction": 0.1, "lr_warmup_iters": 5}, ["--lr-warmup-fraction", "--lr-warmup-iters"]),
        ({"lr_warmup_iters": 10}, ["--lr-warmup-iters 10"]),
        ({"min_lr": 1.0}, ["--min-lr 1", "--lr 0.001"]),
        ({"fp16": True, "bf16": True}, ["--fp16", "--bf16"]),
        ({"initial_loss_scale": 1000}, ["--initial-loss-scale 1000"]),
        ({"pad_vocab_size_to": 64}, ["--pad-vocab-size-to 64", "--vocab-size 100"]),
        ({"pad_vocab_size_to": 200}, ["--pad-vocab-size-to 200", "--make-vocab-size-divisible-by 128"]),
        ({"vocab_file": "v.json"}, ["--vocab-file", "--merge-file"]),
        ({"tokenizer_type": "PretrainedFromHF"}, ["--tokenizer-name-or-path"]),
        ({"tokenizer_type": "GPT2BPETokenizer"}, ["--vocab-file"]),
        ({"data_path": ["a"], "valid_weighted_split_paths": ["v: 1 0:1 p"]}, ["--data-path"]),
        ({"data_path": ["1", "a", "2"]}, ["--data-path", "WEIGHT PREFIX"]),
        ({"data_path": ["-1", "a"]}, ["--data-path", "weight"]),
        ({"data_path": ["inf", "a"]}, ["--data-path", "weight"]),
        (
            {"test_weighted_split_paths": ["t: 1 0:1 p"], "test_weighted_split_paths_path": "p.txt"},
            ["--test-weighted-split-paths", "--test-weighted-split-paths-path"],
        ),
        ({"partition_activations": True}, ["--partition-activations", "--checkpoint-activations"]),
        (
            {"distribute_checkpointed_activations": True},
            ["--distribute-checkpointed-activations", "--checkpoint-activations"],
        ),
        (
            {"recompute": "attention", "partition_activations": True},
            ["--partition-activations", "--checkpoint-activations"],
        ),
        (
            {"recompute": "attention", "checkpoint_activations": True},
            ["--recompute attention", "--checkpoint-activations"],
        ),
        (
            {"recompute": "none", "deepspeed_activation_checkpointing": True},
            ["--deepspeed-activation-checkpointing", "--recompute block"],
        ),
        ({"save_interval": 5}, ["--save-interval", "--save"]),
        ({"save_schedule": ["10:100", "5"]}, ["--save-schedule", "--save"]),
        ({"save_iterations": [7], "save": None}, ["--save-iterations", "--save"]),
        ({"save_interval": 5, "save_schedule": ["5"], "save": "c"}, ["--save-interval", "--save-schedule"]),
        ({"save_schedule": ["10:100", "100:10", "5"], "save": "c"}, ["--save-schedule", "100:10"]),
        ({"lr": None}, ["--lr"]),
        ({"train_iters": None}, ["--train-iters", "--train-samples", "--train-tokens"]),
        ({"vocab_size": None}, ["--vocab-size"]),
    ],
)
def test_a_wrong_combination_is_one_line(changes: dict[str, Any], facts: list[str]) -> None:
    world_size = 4 if changes.get("pipeline_model_parallel_size", 1) < 3 else 12
    assert not missing(refusal(world_size=world_size, **changes), *facts)


@pytest.mark.parametrize(
    ("ramp", "facts"),
    [
        ([12, 8, 100], ["--rampup-batch-size", "12", "--micro-batch-size 2 x DP 4 = 8"]),
        ([8, 4, 100], ["--rampup-batch-size", "4", "--micro-batch-size 2 x DP 4 = 8"]),
        ([8, 24, 100], ["8", "64", "24"]),
        ([64, 8, 100], ["64", "--global-batch-size 64"]),
    ],
)
def test_a_ramp_must_fit_the_batch_and_the_layout(ramp: list[int], facts: list[str]) -> None:
    changes = {"train_iters": None, "train_samples": 1000, "global_batch_size": 64, "rampup_batch_size": ramp}
    assert not missing(refusal(world_size=4, **changes), *facts)


def test_ranks_must_divide_by_the_layout() -> None:
    changes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    assert not missing(refusal(world_size=6, **changes), "6 ranks", "TP 2 x PP 2")


def test_options_that_change_nothing_say_so() -> None:
    options = parse([*small(), "--deepspeed", "--no-rope-fusion"])
    assert [notice.split()[0] for notice in options.notices] == ["--deepspeed", "--no-rope-fusion"]


def test_a_run_file_is_checked_key_by_key() -> None:
    wrong = {"num_layer": 4, "lr": "fast", "bf16": 1, "seq_length": True, "universal_checkpoint": True}
    errors = check_mapping(wrong, 8)
    facts = [
        ["num_layer", "num_layers"],
        ["lr = 'fast'"],
        ["bf16 = 1"],
        ["seq_length = True"],
        ["universal_checkpoint"],
    ]
    assert [missing(error, *wanted) for error, wanted in zip(errors, facts, strict=True)] == [[]] * 5
    assert check_mapping(SMALL, 8) == []
    (batch,) = check_mapping(SMALL | {"global_batch_size": 12}, 4)
    assert not missing(batch, "--global-batch-size 12", "--micro-batch-size 2 x DP 4 = 8")


def test_a_run_file_may_mix_weights_and_prefixes() -> None:
    mapping = SMALL | {"data_path": [0.3, "a", 0.7, "b"]}
    assert check_mapping(mapping, 1) == []
    assert parse(to_arguments(mapping)).data_path == ["0.3", "a", "0.7", "b"]


def test_a_value_that_looks_like_an_option_survives_the_way_through_arguments() -> None:
    assert parse(to_arguments(SMALL | {"load": "--odd"})).load == "--odd"
    assert check_mapping(SMALL | {"data_path": ["--odd"]}, 1) != []


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "weight_decay": st.floats(0, 1),
            "seed": st.integers(0, 2**31),
            "bf16": st.booleans(),
            "load": st.text(st.characters(exclude_characters="\0"), max_size=20),
            "data_path": st.lists(st.just("prefix"), min_size=1, max_size=1),
        },
    )
)
def test_mappings_come_back_from_arguments_unchanged(mapping: dict[str, Any]) -> None:
    options = parse(to_arguments(SMALL | mapping))
    assert {key: options[key] for key in mapping} == mapping


@pytest.mark.parametrize(("key", "named"), [("batch_size", "--global-batch-size"), ("warmup", "--lr-warmup-samples")])
def test_a_removed_option_names_every_option_that_may_have_been_meant(key: str, named: str) -> None:
    assert any(named in problem for problem in check_mapping({key: 256}, None))


def test_every_option_is_described_and_belongs_to_a_table() -> None:
    assert len({option.key for option in OPTIONS}) == len(OPTIONS) == len(BY_KEY)
    for option in OPTIONS:
        assert option.help.endswith("."), option.name
        assert option.table in {"trainer", "data", "checkpoints", "opsctl"}
        assert option.default is None or option.type is float or isinstance(option.default, option.type)


def test_the_help_has_every_option() -> None:
    assert all(option.name in help_text() for option in OPTIONS)
    assert "python -m trainer.recipe.option_help" in refusal("--help")


def test_options_import_neither_torch_nor_anything_slow() -> None:
    heavy = {"torch", "numpy", "argparse", "deepspeed"}
    code = f"import trainer.recipe.options, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_help_lists_the_options_without_waiting_for_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "trainer.pretrain_gpt", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "--num-layers" in done.stdout
    assert not re.search(r"\btorch\b", done.stderr)


def test_a_country_is_three_letters_and_a_region_needs_one() -> None:
    assert "--carbon-country 'France'" in refusal("--carbon-country", "France")
    assert not missing(refusal("--carbon-region", "quebec"), "--carbon-region", "--carbon-country")
