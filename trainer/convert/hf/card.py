"""The page that goes with a published model: what its checkpoint knows of itself, and of nobody's machines."""

from __future__ import annotations

import re

from trainer.convert.hf.saved_model import SavedModel
from trainer.formats.checkpoint.manifest import Manifest
from trainer.recipe.model_shape import ModelShape

CARD = "README.md"
_HEAD = "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n"
_USE = """\
```python
from transformers import AutoModelForCausalLM{tokenizer}

model = AutoModelForCausalLM.from_pretrained("FOLDER")
```
"""


def card(name: str, model: SavedModel, manifest: Manifest, with_tokenizer: bool) -> str:
    """The page of the model that is called `name`, in Markdown."""
    shape = model.shape
    layout = manifest.layout
    rows = [
        (
            "architecture",
            f"{model.family.architecture}, {shape.layers} layers, hidden {shape.hidden}, {_heads(shape)}",
        ),
        ("parameters", f"{sum(entry.size for entry in model.entries):,}"),
        ("vocabulary", f"{shape.tokens:,} tokens"),
        ("sequence length", f"{model.options['seq_length']:,} tokens"),
        ("weights", model.dtype),
        ("iteration", f"{manifest.iteration:,}"),
        ("samples", f"{manifest.consumed_train_samples:,}"),
        ("tokens", f"{manifest.consumed_train_tokens:,}"),
        ("loss of the last step", "unknown" if manifest.loss is None else f"{manifest.loss:.4f}"),
        ("trained in", manifest.precision),
        ("trained as", f"TP {layout.get('tensor')} x PP {layout.get('pipeline')} x DP {layout.get('data')}"),
    ]
    table = "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])
    use = _USE.format(tokenizer=", AutoTokenizer" if with_tokenizer else "")
    if with_tokenizer:
        use = use.replace('")\n```', '")\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```')
    return f"{_HEAD}\n# {_plain(name)}\n\n{table}\n\n{use}"


def _heads(shape: ModelShape) -> str:
    shared = f", {shape.groups} of keys and values" if shape.groups < shape.heads else ""
    return f"{shape.heads} heads{shared}"


def _plain(name: str) -> str:
    """A name without what Markdown or a terminal would take for more."""
    return re.sub(r"[^\w .,:+-]", "_", name).strip() or "model"
