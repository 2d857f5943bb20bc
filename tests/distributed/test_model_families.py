"""A random model of transformers, imported, trained for one step in a layout and exported, is transformers' model.

The step is plain SGD at rate 1, so the exported weights are the imported ones less the gradients. The loss and every
gradient are compared with those of transformers' own model, and so are the logits of the exported one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.test_hf_export import layout, loaded, program, tensors_in
from tests.distributed.whole_training import TINY, run_training, write_corpus
from trainer.formats.data.vocabulary_files import notes_path

pytestmark = pytest.mark.distributed

LENGTH, SAMPLES = 32, 4
RANKS_IMPORT = [
    "safetensors.torch",
    "transformers.models.auto.modeling_auto",
    *(f"transformers.models.{one}.modeling_{one}" for one in ("gemma", "gpt2", "llama", "mistral", "qwen3")),
]
BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
#: A class of transformers' configurations and what it is given, by family.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
    "llama, wide heads": ("LlamaConfig", {"head_dim": 16}),
    "z-loss": ("LlamaConfig", {}),
    "one group, norms": ("Qwen3Config", {"head_dim": 12, "num_key_value_heads": 1}),
    "gemma": ("GemmaConfig", {"head_dim": 12, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "documents": ("LlamaConfig", {}),
    "documents, learned positions": (
        "GPT2Config",
        {"tie_word_embeddings": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "llama 3": (
        "LlamaConfig",
        {
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 16},
            }
        },
    ),
    "qwen3, yarn": (
        "Qwen3Config",
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 128}
            }
        },
    ),
}
END_OF_DOCUMENT = 7
DOCUMENTS = {"reset_attention_mask": True, "reset_position_ids": True, "eod_mask_loss": True}
#: Further options of the trainer, by family.
MORE: dict[str, dict[str, Any]] = {
    "z-loss": {"z_loss_coeff": 1e-2},
    "documents": DOCUMENTS,
    "documents, learned positions": DOCUMENTS,
}
LAYOUTS: list[tuple[int, int]] = [(1, 1), (2, 1), (1, 2)]
#: The pipeline's stages have one block and two.
OF_LAYOUT: dict[tuple[int, int], dict[str, Any]] = {
    (2, 1): {"sequence_parallel": True},
    (1, 2): {"decoder_last_pipeline_num_layers": 2, "recompute": "block"},
}
ONE_STEP: dict[str, Any] = {
    "train_iters": 1,
    "micro_batch_size": 2,
    "global_batch_size": SAMPLES,
    "optimizer": "sgd",
    "sgd_momentum": 0.0,
    "lr": 1.0,
    "lr_decay_style": "constant",
    "weight_decay": 0.0,
    "clip_grad": 0.0,
    "seq_length": LENGTH,
    "max_position_embeddings": LENGTH,
    "make_vocab_size_divisible_by": 8,
}


def options_of(folder: Path) -> dict[str, Any]:
    """Return the options by which the trainer has a published model, in a rank."""
    from trainer.convert.hf.imported_model import ImportedModel

    return ImportedModel(folder / "theirs", 1).given


def publish(folder: Path, kind: str) -> dict[str, Any]:
    """Save a random model of theirs, import it, and return the trainer's options, in a rank."""
    import torch
    import transformers

    name, given = KINDS[kind]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**{**BASE, **given}))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            around = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(around + 0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder / "theirs")
    program("import_program", str(folder / "theirs"), "--output", str(folder / "imported"))
    return options_of(folder)


def samples_of(options: dict[str, Any]) -> Any:
    import torch

    from trainer.data.build import build_datasets
    from trainer.recipe.options import from_tables

    data = build_datasets(from_tables(options, 1), SAMPLES, 0, 0).train
    assert data is not None
    return torch.stack([torch.as_tensor(data[one].astype("int64")) for one in range(SAMPLES)])


def compare(folder: Path, options: dict[str, Any], results: list[tuple[str, float]]) -> dict[str, float]:
    """Return the largest difference of a loss, of a gradient and of logits after the step, in a rank."""
    import torch

    theirs = loaded(folder / "theirs")
    samples = samples_of(options)
    logits, labels = their_logits(theirs, samples, options)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    (loss + options.get("z_loss_coeff", 0.0) * logits.logsumexp(-1).square().mean()).backward()
    gradients = {name: one.grad for name, one in theirs.named_parameters()}
    smallest = min(float(one.abs().max()) for one in gradients.values())
    before = tensors_in(folder / "theirs")
    of_losses = max(abs(float(loss.detach()) - found) for _, found in results)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter -= parameter.grad
        wanted = theirs(input_ids=samples[:, :-1]).logits
        of_gradients = of_logits = 0.0
        for saved, _ in results:
            exported = folder / f"{saved}-exported"
            program("export_program", str(folder / saved), "--output", str(exported))
            ours = tensors_in(exported)
            assert ours.keys() == before.keys()
            for name, gradient in gradients.items():
                of_gradients = max(of_gradients, float((before[name] - ours[name] - gradient).abs().max()))
            logits = loaded(exported)(input_ids=samples[:, :-1]).logits
            of_logits = max(of_logits, float((logits - wanted).abs().max()))
    return {"loss": of_losses, "gradients": of_gradients, "logits": of_logits, "smallest gradient": smallest}


def their_logits(theirs: Any, samples: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return (logits, labels); where documents are kept apart, with a mask and positions counted token by token."""
    import torch

    tokens, labels, given = samples[:, :-1], samples[:, 1:], {}
    if options.get("reset_attention_mask"):
        labels = labels.masked_fill(tokens == END_OF_DOCUMENT, -100)
        mask = torch.full((SAMPLES, 1, LENGTH, LENGTH), -torch.inf)
        positions = torch.zeros_like(tokens)
        for sample in range(SAMPLES):
            first = 0
            for place in range(LENGTH):
                mask[sample, 0, place, first : place + 1] = 0
                positions[sample, place] = place - first
                first = place + 1 if tokens[sample, place] == END_OF_DOCUMENT else first
        assert int((positions == 0).sum()) > SAMPLES
        given = {"attention_mask": mask, "position_ids": positions}
    return theirs(input_ids=tokens, **given).logits, labels


@pytest.mark.parametrize("kind", KINDS)
def test_losses_gradients_and_exports_are_transformers_in_every_layout(pool: Pool, tmp_path: Path, kind: str) -> None:
    options = pool.run(1, publish, tmp_path, kind)[0]
    corpus = write_corpus(tmp_path)
    notes_path(corpus).write_text(json.dumps({"eod": END_OF_DOCUMENT}))
    options = {**TINY, **options, **ONE_STEP, **MORE.get(kind, {})}
    options |= {"data_path": [corpus], "load": str(tmp_path / "imported")}
    results = []
    for tensor, pipeline in LAYOUTS:
        own = {
            **options,
            **layout(tensor, pipeline),
            **OF_LAYOUT.get((tensor, pipeline), {}),
            "save": str(tmp_path / f"TP{tensor}-PP{pipeline}"),
        }
        seen = pool.run(tensor * pipeline, run_training, own)
        assert [one.status for one in seen] == [0] * len(seen), [one.errors for one in seen]
        results.append((f"TP{tensor}-PP{pipeline}", seen[-1].losses[0]))
    found = pool.run(1, compare, tmp_path, options, results)[0]
    print(kind, found)
    assert found.pop("smallest gradient") > 1e-3
    assert max(found.values()) <= 1e-5, found
