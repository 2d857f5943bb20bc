"""The data sources of a run from its options, and their check before a training."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.formats.data.index_header import Header, idx_path, read_header
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS, is_number, weight, weighted_file_key, weighted_key

# A name in a weighted split file: no white space, no control characters, no unpaired surrogates.
_HOLDABLE = re.compile(r'[^\s,"\x00-\x1f\x7f\ud800-\udfff]+')
_FORM = '"NAME: WEIGHT START:END PREFIX, WEIGHT START:END PREFIX"'


@dataclass(frozen=True)
class Source:
    """One file's documents from `start` to `end`, shares in [0, 1]. weight None: the only file, unblended."""

    prefix: str
    start: float
    end: float
    weight: float | None

    def documents(self, count: int) -> tuple[int, int]:
        """Return the range of documents out of `count`. Halves round to the even number, as in Megatron."""
        return round(self.start * count), round(self.end * count)


@dataclass(frozen=True)
class Group:
    """Sources that are blended into one dataset; `name` is its name in logs."""

    name: str
    sources: tuple[Source, ...]


def groups(options: Mapping[str, Any], split: str) -> list[Group]:
    """Return the groups of `split` (train, valid or test).

    None if it gets no data, one from --data-path, any number from weighted paths. Raises DataError if no data is given
    at all, and for anything that cannot be read.
    """
    key, file_key = weighted_key(split), weighted_file_key(split)
    if options.get(key):
        name = f"--{key.replace('_', '-')}"
        return _one_train_group(split, [parse_group(str(text), name) for text in options[key]], name)
    if options.get(file_key):
        file = Path(options[file_key])
        return _one_train_group(split, parse_file(file), str(file))
    if options.get("data_path"):
        return _from_data_path([str(word) for word in options["data_path"]], str(options["split"]), split)
    if split == "train":
        raise DataError(
            "no training data: give --data-path, or --train-weighted-split-paths (run file: data_path in [data])"
        )
    return []


def prefixes(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, prefix) for every pair of files in options and in weighted split files.

    An option that takes several values may have one without a list. Groups that cannot be read are skipped: `groups`
    raises the error.
    """
    for word in _texts(options.get("data_path")):
        if not is_number(word):
            yield "data_path", word
    for split in SPLITS:
        key, file_key = weighted_key(split), weighted_file_key(split)
        for text in _texts(options.get(key)):
            with suppress(DataError):
                yield from ((key, source.prefix) for source in parse_group(text, key).sources)
        if file := options.get(file_key):
            with suppress(DataError):
                found = parse_file(Path(file))
                yield from ((file_key, source.prefix) for group in found for source in group.sources)


def parse_file(path: Path) -> list[Group]:
    """Parse a weighted split file: one line of groups in double quotes, separated by spaces."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read the weighted split file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"the weighted split file {path} is not UTF-8 text") from None
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) != 1:
        raise DataError(f"{path} has {len(lines)} lines; expected one line of groups like {_FORM}")
    return _parse_line(lines[0].strip(), str(path))


def file_text(groups: Sequence[Group]) -> str:
    """Return the weighted split file of `groups`. Every source needs a weight.

    Raises DataError for names that the file cannot hold.
    """
    line = " ".join(f'"{group_text(group)}"' for group in groups)
    for group in groups:
        for name in (group.name, *(source.prefix for source in group.sources)):
            if not _HOLDABLE.fullmatch(name):
                raise DataError(
                    f"a weighted split file cannot hold the name {name!a}: white space, commas, double quotes and "
                    "text that is not UTF-8 would be misread; rename the files, or link to them"
                )
    if _parse_line(line, "") != list(groups):
        raise DataError(f"the groups {', '.join(group.name for group in groups)} cannot be read back from a file")
    return line + "\n"


def _parse_line(line: str, where: str) -> list[Group]:
    quoted = re.findall(r'"([^"]*)"', line)
    rest = re.sub(r'"[^"]*"', "", line).strip()
    if not quoted or rest:
        raise DataError(f"{where}: {rest or line!r} is outside double quotes; expected groups like {_FORM}")
    return [parse_group(group, where) for group in quoted]


def parse_group(text: str, where: str) -> Group:
    """Parse `NAME: WEIGHT START:END PREFIX, ...`. `where` is for messages."""
    name, colon, items = text.strip().strip('"').partition(":")
    name = name.strip()
    if not colon or not name or " " in name:
        raise DataError(f"{where}: {text!r} has no name; expected {_FORM}")
    sources = tuple(_source(item.strip(), name, where) for item in items.split(",") if item.strip())
    if not sources:
        raise DataError(f"{where}: group {name!r} names no data; expected {_FORM}")
    return Group(name, sources)


def group_text(group: Group) -> str:
    """Return a group as `parse_group` reads it. Every source needs a weight."""
    items = (f"{_short(one.weight)} {_short(one.start)}:{_short(one.end)} {one.prefix}" for one in group.sources)
    return f"{group.name}: {', '.join(items)}"


def with_prefixes(text: str, changed: Callable[[str], str]) -> str:
    """Return the group `text` with every prefix `changed`, or `text` if it is no group."""
    try:
        group = parse_group(text, "")
    except DataError:
        return text
    return group_text(Group(group.name, tuple(replace(one, prefix=changed(one.prefix)) for one in group.sources)))


def _source(item: str, group: str, where: str) -> Source:
    fields = item.split()
    at = f"{where}: {item!r} in group {group!r}"
    if len(fields) != 3:
        raise DataError(f"{at} has {len(fields)} parts; expected WEIGHT START:END PREFIX")
    share = _weight(fields[0], at)
    start_text, colon, end_text = fields[1].partition(":")
    try:
        start, end = float(start_text), float(end_text)
    except ValueError:
        raise DataError(f"{at}: {fields[1]!r} is not a range; expected START:END like 0:0.95") from None
    if not colon or not 0 <= start < end <= 1:
        raise DataError(f"{at}: the range {fields[1]} must satisfy 0 <= START < END <= 1")
    return Source(fields[2], start, end, share)


def _short(number: float | None) -> str:
    """Return the shortest text that parses as the same number: 1 rather than 1.0."""
    return repr(number).removesuffix(".0")


def _texts(value: Any) -> list[str]:
    """Return the values of an option that takes several and may have one without a list."""
    return [value] if isinstance(value, str) else [str(one) for one in value or ()]


def _one_train_group(split: str, found: list[Group], where: str) -> list[Group]:
    names = [group.name for group in found]
    if split == "train" and len(found) > 1:
        raise DataError(
            f"{where}: {len(found)} groups ({', '.join(names)}) to train on; put all sources into one group"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise DataError(f"{where}: two groups are named {twice!r}, so their losses cannot be distinguished")
    return found


def _from_data_path(words: Sequence[str], shares: str, split: str) -> list[Group]:
    number = SPLITS.index(split)
    edges = _split_edges(shares)
    start, end = edges[number], edges[number + 1]
    if start == end:
        return []
    if len(words) == 1:
        return [Group(split, (Source(words[0], start, end, None),))]
    if len(words) % 2:
        raise DataError(f"--data-path has {len(words)} values; expected one prefix, or WEIGHT PREFIX WEIGHT PREFIX ...")
    pairs = zip(words[::2], words[1::2], strict=True)
    sources = tuple(
        Source(prefix.strip(), start, end, _weight(word, f"--data-path {word} {prefix}")) for word, prefix in pairs
    )
    return [Group(split, sources)]


def _split_edges(shares: str) -> list[float]:
    """Return the ends of train, validation and test as shares of all documents, after a 0."""
    try:
        parts = [float(part) for part in re.split(r"[,/]", shares)]
        good = len(parts) <= 3 and all(0 <= part < math.inf for part in parts) and sum(parts) > 0
    except ValueError:
        good = False
    if not good:
        raise DataError(f"--split {shares!r}: expected up to three shares of train, validation and test like 949,50,1")
    edges = [0.0]
    # Divide first, then add, as Megatron does: the last bit decides how a half rounds.
    for part in [*parts, 0.0, 0.0][:3]:
        edges.append(edges[-1] + part / sum(parts))
    return edges


def _weight(text: str, where: str) -> float:
    found = weight(text)
    if found is None:
        raise DataError(f"{where}: {text!r} is not a weight above 0")
    return found


#: Lengths read at a time.
_PIECE = 1 << 20


def data_errors(options: Mapping[str, Any], splits: tuple[str, ...] = SPLITS) -> list[str]:
    """Return the errors in the data that `options` name, one line each; empty if it can be trained on.

    Checks for missing, foreign and truncated files, for sources that hold less than one sample, and for validation
    sets that hold less than one evaluation needs. Test sets are read once and may repeat samples.
    """
    errors: list[str] = []
    validated: list[Group] = []
    headers: dict[str, Header | None] = {}
    for split in splits:
        try:
            found = groups(options, split)
        except DataError as error:
            errors.append(str(error))
            continue
        validated += found if split == "valid" else []
        for source in (source for group in found for source in group.sources):
            try:
                if source.prefix not in headers:
                    headers[source.prefix] = None
                    headers[source.prefix] = read_header(source.prefix)
                header = headers[source.prefix]
                if header is not None:
                    _refuse_small(header, source, split, options["seq_length"])
            except DataError as error:
                errors.append(str(error))
    return errors or _small_groups(validated, headers, options)


def damaged_pairs(options: Mapping[str, Any]) -> list[str]:
    """Return a line for each pair of data files that is missing, foreign or not as long as its index says."""
    errors = []
    for prefix in dict.fromkeys(prefix for _, prefix in prefixes(options)):
        try:
            read_header(prefix)
        except DataError as error:
            errors.append(str(error))
    return errors


def asked_samples(options: Mapping[str, Any]) -> int:
    """Return the samples of each group that one evaluation reads; 0 without evaluation or an unknown batch size."""
    return int((options.get("eval_iters") or 0) * (options.get("global_batch_size") or 0))


def samples_of_one_pass(tokens: int, sequence_length: int) -> int:
    """Return the number of samples of `sequence_length` + 1 tokens, overlapping by one, in so many tokens."""
    return max(0, tokens - 1) // sequence_length


def fewer_than_asked(name: str, has: int, options: Mapping[str, Any]) -> DataError:
    """Return the error for a validation set of which one evaluation would read samples twice."""
    batches, batch = options["eval_iters"], options["global_batch_size"]
    remedy = f"--eval-iters {has // batch}" if has >= batch else "--eval-iters 0"
    called = "validation set" if name == "valid" else f"validation set {name!r}"
    return DataError(
        f"the {called} has {has:,} samples and one evaluation asks for {batches * batch:,} "
        f"(--eval-iters {batches} x --global-batch-size {batch}): give it more documents, or {remedy}"
    )


def _small_groups(found: list[Group], headers: Mapping[str, Header | None], options: Mapping[str, Any]) -> list[str]:
    asked, length = asked_samples(options), options["seq_length"]
    errors = []
    for group in found:
        has = 0
        for source in group.sources:
            header = headers[source.prefix]
            if header is None:
                return []  # another message already reports that it cannot be read
            first, last = source.documents(header.sequences)
            enough = (asked - has) * length + 1
            has += samples_of_one_pass(tokens_of(header, first, last, enough=enough), length)
        if has < asked:
            errors.append(str(fewer_than_asked(group.name, has, options)))
    return errors


def too_small(split: str, prefix: str, documents: int, of: int, tokens: int, sequence_length: int) -> DataError:
    """Return the error for documents that do not fill one sample of `sequence_length` + 1 tokens."""
    found = f"{documents:,} of {of:,} documents in {prefix} have {tokens:,} tokens"
    return DataError(
        f"{split} data is smaller than one sample: {found}, "
        f"a sample takes {sequence_length + 1:,} (--seq-length {sequence_length} and one); give it a larger share "
        "of the documents (--split), more data, or shorter sequences"
    )


def _refuse_small(header: Header, source: Source, split: str, sequence_length: int) -> None:
    first, last = source.documents(header.sequences)
    tokens = tokens_of(header, first, last, enough=sequence_length + 1)
    if tokens < sequence_length + 1:
        raise too_small(split, header.prefix, last - first, header.sequences, tokens, sequence_length)


def tokens_of(header: Header, first: int, last: int, enough: int) -> int:
    """Return the tokens of sequences [first, last), counted up to `enough`."""
    total = 0
    with idx_path(header.prefix).open("rb") as file:
        file.seek(header.lengths_at + 4 * first)
        while first < last and total < enough:
            lengths = array("i", file.read(4 * min(_PIECE, last - first)))
            first += len(lengths)
            total += sum(lengths)
    return total
