"""Suggest a run file from a few answers: a model of about the size, its batch and rate, a layout that fits. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from opsctl.core.errors import UsageError
from opsctl.run.config.schema import ExpectTable, GpuTable, SlurmTable
from opsctl.run.init.draft import Draft
from opsctl.run.planning.gpus import gpu_of
from opsctl.run.planning.plan import FittingLayout
from opsctl.run.planning.search import layout_search
from opsctl.run.planning.section import billions
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.recipe.model_options import NONE
from trainer.recipe.options import from_tables

#: Kinds of GPU whose memory and speed are known, by their usual names.
GPU_KINDS = ("V100-16", "V100-32", "A100-40", "A100-80", "H100", "H200", "GH200", "B200", "GB200", "MI300X", "L40S")
#: Tokens for each parameter by default: Hoffmann et al., arXiv 2203.15556.
TOKENS_PER_PARAMETER = 20
#: Share of the stated peak that a training usually reaches, and the days that the first suggestion aims at.
_USUAL, _DAYS = 0.4, 14.0
_LENGTH, _VOCABULARY = 2048, 32_000
#: Tokens of a training after which the rate has its full height, and checkpoints in the whole of it.
_WARM_UP_TOKENS, _CHECKPOINTS = 375_000_000, 200


@dataclass(frozen=True)
class Size:
    """A model's shape, its batch and its rate: after table 2.1 of Brown et al., arXiv 2005.14165."""

    layers: int
    hidden: int
    heads: int
    batch: int  # samples of _LENGTH tokens
    lr: float

    @property
    def ffn(self) -> int:
        """Return the width with which three matrices have the size of two of 4 x hidden; a multiple of 256."""
        return math.ceil(8 * self.hidden / 3 / 256) * 256

    @property
    def block(self) -> int:
        """Return the parameters of one layer."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Return the number of parameters, with both embeddings untied."""
        return self.layers * self.block + 2 * _VOCABULARY * self.hidden + self.hidden


#: A shape with another share of parameters more or less than wanted is refused.
_FURTHEST = 0.1
_SIZES = (
    Size(12, 768, 12, 256, 6e-4),
    Size(24, 1024, 16, 256, 3e-4),
    Size(24, 1536, 24, 256, 2.5e-4),
    Size(24, 2048, 16, 512, 2e-4),
    Size(32, 2560, 32, 512, 1.6e-4),
    Size(32, 4096, 32, 1024, 1.2e-4),
    Size(40, 5120, 40, 1024, 1e-4),
    Size(60, 6656, 52, 2048, 8e-5),
    Size(80, 8192, 64, 2048, 6e-5),
    Size(96, 12288, 96, 2048, 6e-5),
)


@dataclass(frozen=True)
class Wanted:
    """The answers of the user, or their defaults."""

    parameters: float
    tokens: float
    gpus: int
    gpus_per_node: int
    gpu: str  # one of GPU_KINDS, or a name that Slurm has for it
    time: str = "20:00:00"  # each job's limit
    partition: str | None = None
    account: str | None = None
    gpu_type: str | None = None
    cpus_per_node: int = 0  # 0: not known
    data_path: str = "data/corpus_text_document"


def size_near(parameters: float) -> Size:
    """Return the nearest usual size, with half to twice its layers so that it is within 10 % of `parameters`.

    The layers are a multiple of 2, from hidden size 4096 on of 4. From 100M to 200B there is a shape within 10 %.
    """
    usual = min(_SIZES, key=lambda one: abs(math.log(one.parameters / parameters)))
    step = 2 if usual.hidden < 4096 else 4
    exact = usual.layers + (parameters - usual.parameters) / usual.block
    return replace(usual, layers=step * round(min(max(exact, usual.layers / 2), 2 * usual.layers) / step))


def is_known_gpu(name: str | None) -> bool:
    """Return whether memory and speed of a GPU of that name are known."""
    try:
        return name is not None and bool(_gpu_table(name))
    except UsageError:
        return False


def gpus_for(parameters: float, tokens: float, gpu: str, per_node: int, nodes: int | None) -> int:
    """Return the GPUs of 1, 2, 4, ... whole nodes that train it in about two weeks, at most those that exist."""
    table = _gpu_table(gpu)
    assert table.peak_tflops is not None
    size = size_near(parameters)
    wanted = 6 * size.parameters * tokens / (_USUAL * table.peak_tflops * 1e12 * 86400 * _DAYS) / per_node
    most = size.batch // per_node or 1
    whole = 1 << math.ceil(math.log2(max(wanted, 1)))
    at_most = 1 << int(math.log2(max(1, min(nodes or most, most))))
    return min(whole, at_most) * per_node


def suggested(name: str, wanted: Wanted) -> tuple[Draft, FittingLayout]:
    """Return the run and the chosen layout.

    Raises UsageError if no layout fits, if the GPUs are unknown, or if no shape has about the wanted size.
    """
    if wanted.gpus % wanted.gpus_per_node:
        raise UsageError(
            f"{wanted.gpus} GPUs are not a multiple of {wanted.gpus_per_node} per node. Give "
            f"{max(1, round(wanted.gpus / wanted.gpus_per_node)) * wanted.gpus_per_node}, "
            "or the GPUs per node of your cluster: --gpus-per-node"
        )
    size, table = size_near(wanted.parameters), _gpu_table(wanted.gpu, wanted.gpus_per_node)
    if abs(size.parameters / wanted.parameters - 1) > _FURTHEST:
        raise UsageError(
            f"no shape with {billions(wanted.parameters)} parameters is known, the nearest has "
            f"{billions(size.parameters)}: give --params {billions(size.parameters)}, then set num_layers and "
            "hidden_size under [trainer] in run.toml"
        )
    samples = max(size.batch, int(wanted.tokens / _LENGTH))
    draft = Draft()
    _slurm(draft, name, wanted)
    _model(draft, size)
    _training(draft, size, samples, fp16=wanted.gpu.upper().startswith("V100"))
    draft.set("data", "data_path", wanted.data_path, "files of opsctl data prepare: this name with .bin and .idx")
    draft.set("data", "split", "998,2,0", "shares of its documents to train on, to validate, to test")
    draft.set("data", "vocab_size", _VOCABULARY, "that of the tokenizer which the data was prepared with")
    iterations = max(1, samples // size.batch)
    every = max(1, iterations // _CHECKPOINTS)
    draft.set("checkpoints", "save_interval", every, f"about {iterations // every} checkpoints in all")
    draft.set("retention", "last", 5, "opsctl checkpoints prune leaves the newest five,")
    draft.set("retention", "full_percent", 10, "and one every 10 % of the training")
    draft.set("retention", "until_backed_up", 0)
    remarks = {
        "memory_gb": f"of {wanted.gpu}",
        "between_nodes_gbs": "of a usual node: ask what your site's network has",
    }
    for key in ("memory_gb", "peak_tflops", "within_node_gbs", "between_nodes_gbs"):
        draft.set("gpu", key, getattr(table, key), remarks.get(key, ""))
    return draft, _layout(draft, name, wanted, table)


def _gpu_table(gpu: str, per_node: int = 1) -> GpuTable:
    """Return the `[gpu]` values of a GPU. Raises UsageError if they are not known."""
    asked = SlurmTable(nodes=1, gpus_per_node=per_node, time="1:00:00", gpu_type=gpu)
    found = gpu_of(GpuTable(), asked, "fp16" if "V100" in gpu.upper() else "bf16")
    return GpuTable(
        memory_gb=found.memory_gb,
        peak_tflops=found.peak_tflops,
        within_node_gbs=found.within_node_gbs,
        between_nodes_gbs=found.between_nodes_gbs,
    )


def _slurm(draft: Draft, name: str, wanted: Wanted) -> None:
    draft.set("run", "name", name)
    draft.set("run", "output", "output", "all that the run writes: checkpoints, logs, kill switch")
    draft.set("slurm", "nodes", wanted.gpus // wanted.gpus_per_node)
    draft.set("slurm", "gpus_per_node", wanted.gpus_per_node)
    if wanted.cpus_per_node:
        draft.set("slurm", "cpus_per_task", wanted.cpus_per_node, "all of a node's")
    draft.set("slurm", "time", wanted.time, "limit of each job of the chain")
    limit_s = parse_duration_s(wanted.time)
    draft.set("slurm", "exit_margin", format_duration(min(600, limit_s // 4)), "leaves this long before the limit")
    for key in ("partition", "account", "gpu_type"):
        if getattr(wanted, key):
            draft.set("slurm", key, getattr(wanted, key))
    draft.set("array", "tasks", "1-10%1", "a chain: ten jobs, one at a time")


def _model(draft: Draft, size: Size) -> None:
    """Set a model of Llama's kind, which `opsctl export hf` can export."""
    draft.set("trainer", "num_layers", size.layers, f"{size.parameters / 1e9:.3g}B parameters")
    draft.set("trainer", "hidden_size", size.hidden)
    draft.set("trainer", "ffn_hidden_size", size.ffn, "about 8/3 of the hidden size")
    draft.set("trainer", "num_attention_heads", size.heads)
    draft.set("trainer", "seq_length", _LENGTH)
    draft.set("trainer", "position_embedding_type", "rope")
    draft.set("trainer", "normalization", "RMSNorm")
    draft.set("trainer", "glu_activation", "swiglu")
    draft.set("trainer", "disable_bias_linear", True)
    draft.set("trainer", "untie_embeddings_and_output_weights", True)
    draft.set("trainer", "attention_dropout", 0.0)
    draft.set("trainer", "hidden_dropout", 0.0)
    draft.set("trainer", "init_method_std", round(math.sqrt(2 / (5 * size.hidden)), 4), "sqrt(2 / (5 x hidden size))")


def _training(draft: Draft, size: Size, samples: int, fp16: bool) -> None:
    warm_up = min(_WARM_UP_TOKENS // _LENGTH, samples // 20)
    draft.set("trainer", "global_batch_size", size.batch, f"{size.batch * _LENGTH / 1e6:.3g}M tokens a step")
    draft.set("trainer", "train_samples", samples, f"{samples * _LENGTH / 1e9:.4g}B tokens")
    draft.set("trainer", "fp16" if fp16 else "bf16", True, "a V100 has no bf16" if fp16 else "")
    draft.set("trainer", "seed", 42)
    draft.set("trainer", "adam_beta2", 0.95)
    draft.set("trainer", "lr", size.lr)
    draft.set("trainer", "min_lr", size.lr / 10)
    draft.set("trainer", "lr_decay_style", "cosine")
    draft.set("trainer", "lr_warmup_samples", warm_up)
    draft.set("trainer", "clip_grad", 1.0)
    draft.set("trainer", "weight_decay", 0.1)
    draft.set("trainer", "eval_interval", 1000)
    draft.set("trainer", "eval_iters", 10)
    draft.set("trainer", "log_interval", 10)


def _layout(draft: Draft, name: str, wanted: Wanted, table: GpuTable) -> FittingLayout:
    """Set the fastest layout that fits, in front of the rest of `[trainer]`."""
    chosen = {key: given.value for part in ("trainer", "data") for key, given in draft.tables[part].items()}
    slurm = SlurmTable(nodes=1, gpus_per_node=wanted.gpus_per_node, time=wanted.time, gpu_type=wanted.gpu)
    found = layout_search(name, slurm, table, ExpectTable(), from_tables(chosen), wanted.gpus)
    best = found.layouts[0]
    parts = {"tensor_model_parallel_size": best.tensor, "pipeline_model_parallel_size": best.pipeline}
    remark = f"the fastest that fits: opsctl plan --search; {best.data} replicas, {best.memory_gb:.0f} GB of each GPU"
    rest = draft.tables.pop("trainer")
    for key, value in parts.items():
        draft.set("trainer", key, value, remark if key.startswith("tensor") else "")
    draft.set("trainer", "micro_batch_size", best.micro_batch_size)
    if best.recompute != NONE:
        draft.set("trainer", "recompute", best.recompute, "computed again in the backward pass, to save memory")
    draft.tables["trainer"] |= rest
    return best
