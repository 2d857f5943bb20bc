"""Our model with transformers' weights computes transformers' loss.

BLOOM for ALiBi, GPT-2 for learned positions, GPT-NeoX for rotary ones of a part of each head, Llama for RMSNorm, gates,
shared keys and values and a model without biases, Qwen3 for norms of queries and keys.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_options

pytestmark = pytest.mark.distributed
RANKS_IMPORT = [f"transformers.models.{one}.modeling_{one}" for one in ("bloom", "gpt2", "gpt_neox", "llama", "qwen3")]

VOCABULARY, ROWS, LAYERS, LENGTH = 64, 80, 3, 16


def compare(reference: str, hidden: int, heads: int, changes: dict[str, Any]) -> tuple[float, float, float]:
    """(our loss, theirs, largest difference of logits) on random tokens, in a rank."""
    import torch

    from trainer.engine.build import Vocabulary, build_model, initialize

    shape = {"hidden_size": hidden, "num_attention_heads": heads, "num_layers": LAYERS, "seq_length": LENGTH}
    options = tiny_options(1, **shape, **changes)
    model = build_model(options, initialize(options), Vocabulary(VOCABULARY, ROWS))
    theirs, weights = REFERENCES[reference](hidden, heads, options)
    weights = with_padding(weights)
    missing, unexpected = model.load_state_dict(weights, strict=True)
    assert not missing and not unexpected
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1), generator=generator)
    model.eval()
    with torch.no_grad():
        x_bsh, weight_vh = model(tokens[:, :-1])
        ones = torch.ones(2, LENGTH)
        loss = model.loss_fn((x_bsh, weight_vh), (tokens[:, 1:], ones))
        logits = theirs(input_ids=tokens[:, :-1]).logits
        their_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        ours = x_bsh @ weight_vh[:VOCABULARY].t()
        return float(loss), float(their_loss), float((ours - logits).abs().max())


def with_padding(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the weights with more rows in the word embedding, which hold numbers that would show in any softmax."""
    import torch

    padded = {}
    for name in {"tied_modules.embed.word_embeddings.weight", f"{LAYERS + 5}.weight"} & weights.keys():
        padding = 5.0 * torch.ones(ROWS - VOCABULARY, weights[name].shape[1])
        padded[name] = torch.cat((weights[name], padding))
    return {**weights, **padded}


def train_both(reference: str, changes: dict[str, Any]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(loss, gradient norm) of six steps of both from the same weights, with AdamW, decay and clipping."""
    import torch

    from trainer.engine.build import Vocabulary, build_engine, initialize, train_step

    shape = {"num_layers": LAYERS, "seq_length": LENGTH, "clip_grad": 0.5}
    options = tiny_options(1, **shape, **changes)
    parallel = initialize(options)
    theirs, weights = REFERENCES[reference](options.hidden_size, options.num_attention_heads, options)
    engine = build_engine(options, parallel, Vocabulary(VOCABULARY, ROWS))
    with torch.no_grad():
        for name, parameter in engine.module.named_parameters():
            parameter[: weights[name].shape[0]].copy_(weights[name])
    engine.optimizer.refresh_fp32_params()
    by_decay: dict[bool, list[Any]] = {True: [], False: []}
    for parameter in theirs.parameters():
        by_decay[parameter.dim() > 1].append(parameter)
    groups = [{"params": by_decay[True], "weight_decay": 0.1}, {"params": by_decay[False], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.999), eps=1e-8)
    ours_measured, theirs_measured = [], []
    for step in range(6):
        items = step_items(options, parallel, step)
        result = train_step(engine, iter(items), options.lr)
        ours_measured.append((result.loss, result.gradient_norm))
        tokens = torch.cat([item[0] for item in items])
        labels = torch.cat([item[1][0] for item in items])
        mask = torch.cat([item[1][1] for item in items])
        labels = labels.masked_fill(mask == 0, -100)  # which torch leaves out of its mean over the global batch
        logits = theirs(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        theirs_measured.append((loss.item(), norm.item()))
    return ours_measured, theirs_measured


def scramble(model: Any) -> dict[str, Any]:
    """Give every parameter, biases and LayerNorms too, values that matter."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if ("ln_" in name or "norm" in name) and name.endswith("weight") else 0.0
            parameter.copy_(around + 0.2 * torch.randn(parameter.shape, generator=generator))
    return dict(model.state_dict())


def bloom(hidden: int, heads: int, _options: Any) -> tuple[Any, dict[str, Any]]:
    """BLOOM and its weights under our names; only the names differ."""
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=hidden, n_layer=LAYERS, n_head=heads)
    model = BloomForCausalLM(config).eval()
    theirs = scramble(model)
    ours = {}
    for name, value in theirs.items():
        name = name.removeprefix("transformer.")
        if name.startswith("h."):
            layer, rest = name.removeprefix("h.").split(".", 1)
            ours[f"{int(layer) + 3}.{rest}"] = value
        elif name.startswith("ln_f."):
            ours[f"{LAYERS + 4}.{name.removeprefix('ln_f.')}"] = value
        elif name.startswith("word_embeddings_layernorm."):
            ours[f"tied_modules.embed.word_embeddings.norm.{name.rpartition('.')[2]}"] = value
        elif name == "word_embeddings.weight":
            ours["tied_modules.embed.word_embeddings.weight"] = value
    return model, ours


def gpt2(hidden: int, heads: int, _options: Any) -> tuple[Any, dict[str, Any]]:
    """GPT-2 and its weights under our names: transposed, and query, key, value regrouped head by head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=hidden, n_layer=LAYERS, n_head=heads)
    model = GPT2LMHeadModel(config).eval()
    theirs = scramble(model)
    ours = {
        "tied_modules.embed.word_embeddings.weight": theirs["transformer.wte.weight"],
        "tied_modules.embed.position_embeddings.weight": theirs["transformer.wpe.weight"],
    }
    names = {
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.c_attn": "self_attention.query_key_value",
        "attn.c_proj": "self_attention.dense",
        "mlp.c_fc": "mlp.dense_h_to_4h",
        "mlp.c_proj": "mlp.dense_4h_to_h",
    }
    for kind in ("weight", "bias"):
        ours[f"{LAYERS + 4}.{kind}"] = theirs[f"transformer.ln_f.{kind}"]
        for layer in range(LAYERS):
            for their_name, our_name in names.items():
                value = theirs[f"transformer.h.{layer}.{their_name}.{kind}"]
                if kind == "weight" and not their_name.startswith("ln_"):
                    value = value.t()
                if their_name == "attn.c_attn":
                    head = hidden // heads
                    value = value.reshape(3, heads, head, *value.shape[1:]).transpose(0, 1).reshape(value.shape)
                ours[f"{layer + 3}.{our_name}.{kind}"] = value.contiguous()
    return model, ours


def neox(hidden: int, heads: int, options: Any) -> tuple[Any, dict[str, Any]]:
    """GPT-NeoX and its weights under our names; only the names differ."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": options.ffn_hidden_size,
    }
    rotary: dict[str, Any] = {"rotary_emb_base": options.rotary_base, "rotary_pct": options.rotary_percent}
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY, num_hidden_layers=LAYERS, use_parallel_residual=False, **sizes, **rotary
    )
    model: Any = GPTNeoXForCausalLM(config)
    model.eval()
    names = {
        "gpt_neox.embed_in.": "tied_modules.embed.word_embeddings.",
        "gpt_neox.final_layer_norm.": f"{LAYERS + 4}.",
    }
    names |= {"embed_out.": f"{LAYERS + 5}.", "lm_head.": f"{LAYERS + 5}."}
    names |= {f"gpt_neox.layers.{layer}.": f"{layer + 3}." for layer in range(LAYERS)}
    ours = {}
    for name, value in scramble(model).items():
        theirs = next(one for one in names if name.startswith(one))
        ours[names[theirs] + name.removeprefix(theirs).replace("attention.", "self_attention.", 1)] = value
    return model, {name.replace("post_self_attention", "post_attention"): value for name, value in ours.items()}


def llama(hidden: int, heads: int, options: Any) -> tuple[Any, dict[str, Any]]:
    """Llama, or Qwen3 where queries and keys have norms; weights under our names, q, k and v together by group."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    groups, head = options.num_query_groups or heads, hidden // heads
    has_biases, has_norms = not options.disable_bias_linear, options.qk_layernorm
    gelu = "gelu" if options.no_bias_gelu_fusion else "gelu_pytorch_tanh"
    act = {"swiglu": "silu", "geglu": gelu, "reglu": "relu", "liglu": "linear"}[options.glu_activation]
    shape: dict[str, Any] = {
        **{"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": head},
        **{"intermediate_size": options.ffn_hidden_size, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY},
        **{"hidden_act": act, "rms_norm_eps": options.layernorm_epsilon, "attention_bias": has_biases},
        "rope_parameters": {"rope_type": "default", "rope_theta": options.rotary_base},
        "tie_word_embeddings": not options.untie_embeddings_and_output_weights,
    }
    model: Any
    if has_norms:
        model = Qwen3ForCausalLM(Qwen3Config(**shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, mlp_bias=has_biases))
    model.eval()
    theirs = scramble(model)
    ours = {"tied_modules.embed.word_embeddings.weight": theirs["model.embed_tokens.weight"]}
    ours[f"{LAYERS + 4}.weight"] = theirs["model.norm.weight"]
    if options.untie_embeddings_and_output_weights:
        ours[f"{LAYERS + 5}.weight"] = theirs["lm_head.weight"]
    names = {
        "self_attn.o_proj": "self_attention.dense",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.dense_h_to_4h",
    }
    names |= {"mlp.down_proj": "mlp.dense_4h_to_h", "self_attn.q_norm": "self_attention.q_layernorm"}
    names |= {"self_attn.k_norm": "self_attention.k_layernorm"}
    names |= {name: name for name in ("input_layernorm", "post_attention_layernorm")}
    for layer in range(LAYERS):
        here = f"model.layers.{layer}."
        for their_name, our_name in names.items():
            for kind in ("weight", "bias"):
                if f"{here}{their_name}.{kind}" in theirs:
                    ours[f"{layer + 3}.{our_name}.{kind}"] = theirs[f"{here}{their_name}.{kind}"]
        for kind in ("weight", "bias") if has_biases else ("weight",):
            q, k, v = (theirs[f"{here}self_attn.{one}_proj.{kind}"] for one in "qkv")
            rows = [one.reshape(groups, -1, head, *one.shape[1:]) for one in (q, k, v)]
            ours[f"{layer + 3}.self_attention.query_key_value.{kind}"] = torch.cat(rows, 1).reshape(-1, *q.shape[1:])
    return model, ours


REFERENCES: dict[str, Any] = {"bloom": bloom, "gpt2": gpt2, "neox": neox, "llama": llama}
ROTARY: dict[str, Any] = {"position_embedding_type": "rope"}
LLAMA: dict[str, Any] = {
    **ROTARY,
    "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-6,
    "disable_bias_linear": True,
    "swiglu": True,
    "ffn_hidden_size": 48,
}
SHARED = {"group_query_attention": True, "num_query_groups": 2}
UNTIED = {"untie_embeddings_and_output_weights": True}


@pytest.mark.parametrize(
    ("reference", "changes"),
    [
        ("neox", {**ROTARY, **UNTIED, "rotary_percent": 0.25, "no_bias_gelu_fusion": True}),
        ("llama", LLAMA),
        ("llama", {**LLAMA, **SHARED, **UNTIED, "rotary_base": 500_000.0}),
        ("llama", {**LLAMA, **SHARED, "swiglu": False, "glu_activation": "geglu", "disable_bias_linear": False}),
        ("llama", {**LLAMA, "swiglu": False, "glu_activation": "geglu", "no_bias_gelu_fusion": True}),
        ("llama", {**LLAMA, "swiglu": False, "glu_activation": "reglu"}),
        ("llama", {**LLAMA, "swiglu": False, "glu_activation": "liglu"}),
        ("llama", {**LLAMA, **SHARED, "qk_layernorm": True}),
    ],
    ids=["neox", "llama", "shared, untied", "geglu with biases", "exact geglu", "reglu", "liglu", "qwen3"],
)
def test_a_rotary_model_is_theirs(pool: Pool, reference: str, changes: dict[str, Any]) -> None:
    ours, theirs, difference = pool.run(1, compare, reference, 32, 4, changes)[0]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert difference < 1e-5


@pytest.mark.parametrize(("hidden", "heads"), [(32, 4), (48, 6)])
def test_the_alibi_model_is_bloom(pool: Pool, hidden: int, heads: int) -> None:
    changes = {"position_embedding_type": "alibi", "embed_layernorm": True}
    ours, theirs, difference = pool.run(1, compare, "bloom", hidden, heads, changes)[0]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert difference < 1e-5


def test_the_model_with_learned_positions_is_gpt2(pool: Pool) -> None:
    ours, theirs, difference = pool.run(1, compare, "gpt2", 32, 4, {})[0]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert difference < 1e-5


@pytest.mark.parametrize(
    ("reference", "changes"),
    [
        ("bloom", {"position_embedding_type": "alibi", "embed_layernorm": True}),
        ("gpt2", {"eod_mask_loss": True}),
        ("llama", {**LLAMA, **SHARED, **UNTIED}),
        ("llama", {**LLAMA, **SHARED, "qk_layernorm": True}),
    ],
    ids=["bloom", "gpt2, masked", "llama, shared", "qwen3"],
)
def test_training_follows_the_reference_step_by_step(pool: Pool, reference: str, changes: dict[str, Any]) -> None:
    ours, theirs = pool.run(1, train_both, reference, changes)[0]
    for (our_loss, our_norm), (their_loss, their_norm) in zip(ours, theirs, strict=True):
        assert our_loss == pytest.approx(their_loss, rel=1e-5)
        assert our_norm == pytest.approx(their_norm, rel=1e-4)
