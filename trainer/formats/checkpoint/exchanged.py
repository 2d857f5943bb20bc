"""Results of checkpoint commands as JSON, and the record of a verification."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from trainer.core.files import read_plain
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment
from trainer.formats.tolerant import decode


class ExportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as a folder that transformers loads."""

    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    folder: Annotated[str, Meta(description="Absolute path of the folder.")]
    state: Annotated[str, Meta(description="`written`, or `would be written` with `--dry-run`.")]
    format: Annotated[str, Meta(description="The model's family, as model_type in config.json.")]
    dtype: Annotated[str, Meta(description="Type of the weights.")]
    files: Annotated[int, Meta(description="Files of weights.")]
    parameters: Annotated[int, Meta(description="Parameters, without padding of the vocabulary.")]
    bytes: Annotated[int, Meta(description="Size of the folder.")]
    tokenizer: Annotated[bool, Meta(description="True if the folder has a tokenizer.")]
    notices: Annotated[list[str], Meta(description="Deviations from a usual export.")]


class ImportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A published model as a checkpoint of weights."""

    folder: Annotated[str, Meta(description="Absolute path of the checkpoint's folder.")]
    format: Annotated[str, Meta(description="The model's family, as model_type in config.json.")]
    precision: Annotated[str, Meta(description="Type of the weights: fp32, bf16 or fp16.")]
    parameters: Annotated[int, Meta(description="Parameters, with padding of the vocabulary.")]
    bytes: Annotated[int, Meta(description="Size of its weights.")]
    options: Annotated[dict[str, Any], Meta(description="The trainer's options for this model.")]
    dry_run: Annotated[bool, Meta(description="True if nothing was written.")]


class ConvertedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in DeepSpeed's universal format, or out of it."""

    to: Annotated[str, Meta(description="`universal` or `native`.")]
    source: Annotated[str, Meta(description="Absolute path of the source.")]
    output: Annotated[str, Meta(description="Absolute path of the result.")]
    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    consumed_train_samples: Annotated[int, Meta(description="Samples trained on until then.")]
    precision: Annotated[str, Meta(description="Type of the weights: fp32, bf16 or fp16.")]
    layout: Annotated[
        dict[str, int | str],
        Meta(description="As in a manifest: for `universal` that of the source, for `native` that of the result."),
    ]
    parameters: Annotated[int, Meta(description="Parameters, with padding of the vocabulary.")]
    files: Annotated[int, Meta(description="Files written; 0 with `--dry-run`.")]
    bytes: Annotated[int, Meta(description="Their size; with `--dry-run` the size needed.")]
    dry_run: Annotated[bool, Meta(description="True if nothing was written.")]


class GeneratedText(msgspec.Struct, frozen=True, kw_only=True):
    """Text that a checkpoint's model generated after a prompt."""

    folder: Annotated[str, Meta(description="Absolute path of the checkpoint's folder.")]
    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    prompt: Annotated[str, Meta(description="The given prompt.")]
    prompt_tokens: Annotated[int, Meta(description="Tokens of the prompt.")]
    text: Annotated[str, Meta(description="The generated text.")]
    tokens: Annotated[list[int], Meta(description="The generated tokens.")]
    ended: Annotated[
        str,
        Meta(description="`as long as wanted`, `the end of a document` or `no more positions`, of learned ones."),
    ]
    dtype: Annotated[str, Meta(description="Type of the weights during generation.")]
    temperature: Annotated[float, Meta(description="0: the most likely token each time.")]
    top_k: Annotated[int, Meta(description="Sample from this many most likely tokens; 0: from all.")]
    seed: Annotated[int, Meta(description="Seed of the sampling.")]


VERIFIED = "verified.json"
_LARGEST_RECORD_BYTES = 1 << 20


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The newest check of a checkpoint's bytes."""

    schema_version: int = 1
    manifest_xxh64: str  # `digest_of` the manifest that the files were compared with
    at: Moment | None = None
    by: str = ""  # user@host
    problems: tuple[str, ...] = ()  # one clause for each damaged file; empty if every byte is correct


def digest_of(manifest: bytes) -> str:
    """Return the xxh64 of a manifest. It differs between two saves, because a manifest has every file's checksum."""
    import xxhash

    return str(xxhash.xxh64(manifest).hexdigest())


def read_verification(folder: Path) -> Verification | None:
    """Return the record in a checkpoint's folder; None where there is none. Raises CheckpointError."""
    path = folder / VERIFIED
    try:
        return decode(read_plain(path, _LARGEST_RECORD_BYTES), Verification)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
