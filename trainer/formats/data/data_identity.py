"""The identity of a training's data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.formats.data.data_sources import Group, groups
from trainer.formats.data.index_header import Header, bin_path, idx_path, read_header
from trainer.formats.data.vocabulary_files import tokenizer_identity
from trainer.formats.errors import DataError

#: Files up to this size are read whole. Of larger ones as many bytes are read, in evenly spread pieces.
READ_WHOLE_BYTES = 1 << 26
_PIECES = 256


def data_facts(options: Mapping[str, Any], read: bool = True) -> dict[str, Any]:
    """Return the manifest's facts on data and tokenizer: train_data, tokenizer, and valid_data and test_data if used.

    Without `read`, only the headers of the data files are read. Raises DataError.
    """
    try:
        facts: dict[str, Any] = {"train_data": training_data(options, read), "tokenizer": tokenizer_identity(options)}
        if options["eval_iters"]:
            facts |= {f"{split}_data": evaluation_data(options, split) for split in ("valid", "test")}
    except OSError as error:
        raise DataError(f"cannot read {error.filename or 'the data'}: {error.strerror}") from None
    return facts


def training_data(options: Mapping[str, Any], read: bool = True) -> list[dict[str, Any]]:
    """Return each source of the training data, in the blend's order: documents, share of the blend, and checksum.

    Without `read` there is no checksum, and only the files' headers are read. Raises DataError and OSError.
    """
    (group,) = groups(options, "train")
    return _described(group, read)


def evaluation_data(options: Mapping[str, Any], split: str) -> list[dict[str, Any]]:
    """Return each group of `split` (valid or test) with its sources, without checksums."""
    return [{"group": group.name, "sources": _described(group, read=False)} for group in groups(options, split)]


def _described(group: Group, read: bool) -> list[dict[str, Any]]:
    in_all = math.fsum(source.weight or 0.0 for source in group.sources)
    found, checksums = [], {}
    for source in group.sources:
        header = read_header(source.prefix)
        first, last = source.documents(header.sequences)
        facts: dict[str, Any] = {
            "documents": header.sequences,
            "tokens": header.tokens,
            "first_document": first,
            "last_document": last,
        }
        if source.weight is not None:
            facts["share"] = float(f"{source.weight / in_all:.9g}")
        if read:
            if source.prefix not in checksums:
                checksums[source.prefix] = checksum(header)
            facts["xxh64"] = checksums[source.prefix]
        found.append(facts)
    return found


def checksum(header: Header) -> str:
    """Return the xxh64 of both files' sizes and contents, 16 hexadecimal digits. Large files are sampled."""
    import xxhash

    digest = xxhash.xxh64()
    for path in (idx_path(header.prefix), bin_path(header.prefix)):
        _add_file(digest, path)
    return str(digest.hexdigest())


def _add_file(digest: Any, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= READ_WHOLE_BYTES:
            digest.update(file.read())
            return
        piece = READ_WHOLE_BYTES // _PIECES
        for number in range(_PIECES):
            file.seek((size - piece) * number // (_PIECES - 1))
            digest.update(file.read(piece))


def sources_text(sources: Any) -> str:
    """Return the training data as text."""
    return " + ".join(_source_text(source) for source in sources) if sources else "none"


def _source_text(source: Mapping[str, Any]) -> str:
    documents = f"documents {source.get('first_document'):,} to {source.get('last_document'):,}"
    of = f"{source.get('documents'):,} ({source.get('tokens'):,} tokens"
    sum_ = f", xxh64 {source['xxh64']})" if "xxh64" in source else ")"
    share = f"{source['share']:.4g} x " if "share" in source else ""
    return f"{share}{documents} of {of}{sum_}"
