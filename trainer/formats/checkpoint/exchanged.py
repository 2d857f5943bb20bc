"""What the programs that write and read other formats, or ask a model, print with `--json`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class ExportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as a folder that transformers loads."""

    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    folder: Annotated[str, Meta(description="Absolute path of the folder.")]
    state: Annotated[
        str,
        Meta(
            description="`written`, `there` (as it would be written, so left alone) or `repaired` (all but the "
            "weights); with `--dry-run` `would be written` or `would be repaired`."
        ),
    ]
    format: Annotated[str, Meta(description="The family of models, as config.json names it in model_type.")]
    dtype: Annotated[str, Meta(description="Type of the weights.")]
    files: Annotated[int, Meta(description="Files of weights.")]
    parameters: Annotated[int, Meta(description="Parameters, without padding of the vocabulary.")]
    bytes: Annotated[int, Meta(description="Size of the folder.")]
    tokenizer: Annotated[bool, Meta(description="Whether it has a tokenizer.")]
    notices: Annotated[list[str], Meta(description="What is not as one might expect.")]


class ImportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A published model as a checkpoint of weights."""

    folder: Annotated[str, Meta(description="Absolute path of the checkpoint's folder.")]
    format: Annotated[str, Meta(description="The family of models, as config.json names it in model_type.")]
    precision: Annotated[str, Meta(description="Type of the weights: fp32, bf16 or fp16.")]
    parameters: Annotated[int, Meta(description="Parameters, padding of the vocabulary among them.")]
    bytes: Annotated[int, Meta(description="Size of its weights.")]
    options: Annotated[dict[str, Any], Meta(description="The trainer's options that are this model's.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was written.")]


class ConvertedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in DeepSpeed's universal format, or out of it."""

    to: Annotated[str, Meta(description="`universal` or `native`.")]
    source: Annotated[str, Meta(description="Absolute path of what was converted.")]
    output: Annotated[str, Meta(description="Absolute path of what was written.")]
    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    consumed_train_samples: Annotated[int, Meta(description="Samples trained on by then.")]
    precision: Annotated[str, Meta(description="Type of the weights: fp32, bf16 or fp16.")]
    layout: Annotated[
        dict[str, int | str],
        Meta(description="As in a manifest: of `universal` the one that was converted, of `native` the one written."),
    ]
    parameters: Annotated[int, Meta(description="Parameters, padding of the vocabulary among them.")]
    files: Annotated[int, Meta(description="Files written; 0 with `--dry-run`.")]
    bytes: Annotated[int, Meta(description="Their size; with `--dry-run` what is needed.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was written.")]


class GeneratedText(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint's model says after a prompt."""

    folder: Annotated[str, Meta(description="Absolute path of the checkpoint's folder.")]
    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    prompt: Annotated[str, Meta(description="The beginning, as it was given.")]
    prompt_tokens: Annotated[int, Meta(description="Tokens of it.")]
    text: Annotated[str, Meta(description="What follows it.")]
    tokens: Annotated[list[int], Meta(description="The tokens that follow it.")]
    ended: Annotated[
        str,
        Meta(description="`as long as wanted`, `the end of a document` or `no more positions`, of learned ones."),
    ]
    dtype: Annotated[str, Meta(description="Type that the weights were used in.")]
    temperature: Annotated[float, Meta(description="0: the most likely token each time.")]
    top_k: Annotated[int, Meta(description="Drawn from so many of the most likely; 0: from all.")]
    seed: Annotated[int, Meta(description="Of what is drawn.")]
