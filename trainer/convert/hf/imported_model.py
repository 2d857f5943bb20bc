"""A published model as one of the trainer's: its options, and our parameters, each read on request."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.checkpoint.saved_state import Part
from trainer.checkpoint.stored_tensors import read_data, unreadable
from trainer.convert.hf.documents import TOKENIZER
from trainer.convert.hf.families import family_named
from trainer.convert.hf.family import Family, Heads, Place, their_shapes, to_ours
from trainer.convert.hf.saved_model import PRECISIONS
from trainer.convert.hf.tensor_file import CONFIG, INDEX, WHOLE, TensorEntry, read_tensor_file
from trainer.convert.native import NativeFiles
from trainer.convert.output import being_written
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.core.files import read_plain, write_atomically
from trainer.data.program import Progress
from trainer.formats.checkpoint.changes import layout_facts
from trainer.formats.checkpoint.history import Progress as Counters
from trainer.formats.checkpoint.history import saved_now, started_now
from trainer.formats.checkpoint.manifest import LATEST, MANIFEST, Manifest, SavedFile, SavedParameter, tag_of
from trainer.formats.checkpoint.partitions import Cut, saved_parameters
from trainer.formats.checkpoint.starting import IMPORTED, NO_OPTIMIZER
from trainer.formats.data.vocabulary_files import tokenizer_identity
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.recipe.identity import training_facts
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.option_rules import combination_errors
from trainer.recipe.options import Options, from_tables

_PICKLED = "pytorch_model.bin"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
_LARGEST_JSON_BYTES = 1 << 26


class PublishedModel:
    """A transformers folder. The constructor and all methods raise CheckpointError if it is invalid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG)
        self._file_of = dict(_tensor_files(folder))
        self._pickled: tuple[str, Mapping[str, Tensor]] = ("", {})

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._file_of)

    def described(self) -> Iterator[TensorEntry]:
        """Yield shape and type of every tensor. Only headers are read of safetensors."""
        for file in dict.fromkeys(self._file_of.values()):
            path = self.folder / file
            if path.suffix == ".safetensors":
                yield from (entry for entry in read_tensor_file(path).entries if self._file_of.get(entry.name) == file)
                continue
            for name, one in self._unpickled(path).items():
                if self._file_of.get(name) == file:
                    yield TensorEntry(name, tuple(one.shape), one.dtype)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor as it is stored."""
        path = self.folder / self._file_of[name]
        if path.suffix == ".safetensors":
            with _opened(path) as tensors:
                read: Tensor = _found(tensors.get_tensor, name, path)
                return read
        tensors = self._unpickled(path)
        if name not in tensors:
            raise CheckpointError(f"{path} has no {name!a}, which its index lists")
        return tensors[name]

    def _unpickled(self, path: Path) -> Mapping[str, Tensor]:
        if self._pickled[0] != path.name:
            self._pickled = ("", {})  # one pickled file at a time
            self._pickled = (path.name, _read_pickled(path))
        return self._pickled[1]


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises CheckpointError."""
    try:
        value = json.loads(read_plain(path, _LARGEST_JSON_BYTES))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}: give a folder that transformers loads from") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} contains {type(value).__name__} instead of an object")
    return value


def _tensor_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (tensor's name, file's name). safetensors are preferred if there are both."""
    for index, whole in ((INDEX, WHOLE), (_PICKLED_INDEX, _PICKLED)):
        if (folder / index).is_file():
            yield from _indexed(folder / index)
            return
        if (folder / whole).is_file():
            yield from ((name, whole) for name in _names_in(folder / whole))
            return
    raise CheckpointError(f"{folder} has no weights: expected {WHOLE}, {INDEX}, {_PICKLED} or {_PICKLED_INDEX}")


def _indexed(index: Path) -> Iterator[tuple[str, str]]:
    mapped = read_json(index).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise CheckpointError(f"{index} has no weight_map")
    for name, file in mapped.items():
        # The file's names are not trusted: none may lead outside its folder.
        if not isinstance(file, str) or Path(file).name != file or not file.isprintable():
            raise CheckpointError(f"{index} names {file!a}, which is not a file of the folder")
        if not (index.parent / file).is_file():
            raise CheckpointError(f"{index} names {file}, which is missing")
        yield name, file


def _names_in(path: Path) -> list[str]:
    if path.suffix == ".safetensors":
        return [entry.name for entry in read_tensor_file(path).entries]
    return list(_read_pickled(path))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _found(get: Any, name: str, path: Path) -> Any:
    try:
        return get(name)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: {name!a} cannot be read: {str(error).splitlines()[0]}") from None


def _read_pickled(path: Path) -> Mapping[str, Tensor]:
    try:
        tensors = read_data(str(path), "cpu")
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(path, error) from None
    if not isinstance(tensors, dict) or not all(map(_is_plain, tensors, tensors.values())):
        raise CheckpointError(f"{path} is not a table of plain tensors by name")
    return tensors


def _is_plain(name: object, one: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(one, Tensor)
        and one.layout == torch.strided
        and one.device.type == "cpu"
        and not (one.is_quantized or one.is_nested)
    )


#: Their output layer, which some files have although it is the embedding.
_OUTPUT = "lm_head.weight"


@dataclass(frozen=True)
class Padding:
    """The padding rows of the word embedding, from the trainer's options."""

    divisible_by: int
    to: int | None


class ImportedModel:
    """The model in a folder, as states for a checkpoint: weights only.

    parameters: ours, whole, without padding. Raises CheckpointError, with both values, for an unsupported model.
    """

    def __init__(self, folder: Path, padding: Padding) -> None:
        self._published = PublishedModel(folder)
        config = self._published.config
        if config.get("quantization_config"):
            raise CheckpointError("config.json: it is quantized, the trainer's weights are fp32, bf16 or fp16")
        self.family: Family = family_named(config.get("model_type"))
        self.given = {**self.family.options(config), **_tokenizer(folder)}
        layers, tensors = self.given["num_layers"], len(self._published.names)
        if layers > tensors:  # a table of 10^18 layers would fill the memory first
            raise CheckpointError(f"config.json: it has {layers} layers, and its files have {tensors} tensors in all")
        wanted = {"make_vocab_size_divisible_by": padding.divisible_by, "pad_vocab_size_to": padding.to}
        self.options: Options = from_tables({**self.given, **wanted}, 1)
        if wrong := combination_errors(self.options, 1):
            raise CheckpointError(f"the trainer does not support this model: {wrong[0]}")
        try:
            vocabulary = Vocabulary.of(self.given["vocab_size"], self.options)
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        self._their_name = {self._with_prefix(name): name for name in self._published.names}
        entries = {self._with_prefix(one.name): one for one in self._published.described()}
        self.precision = self._precision(entries)
        self.options = self.options.replace(bf16=self.precision == "bf16", fp16=self.precision == "fp16")
        self.shape = ModelShape.of(self.options, vocabulary)
        unpadded = replace(self.shape, vocabulary=self.shape.tokens)
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in saved_parameters(unpadded)}
        self._refuse_other_tensors(entries)

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """Return a part of our parameter (None: the whole), without padding rows. Raises CheckpointError."""
        place = self._place(name)
        theirs = [self._published.tensor(self._their_name[one]) for one in place.names]
        whole = to_ours(place, theirs, Heads.of(self.shape))
        return whole if part is None else whole[part]

    @property
    def moments(self) -> tuple[str, ...]:
        """The optimizer's states of each parameter: none."""
        return ()

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        """Raise CheckpointError: there are no optimizer states."""
        raise CheckpointError(f"a published model has no {which} of {name}")

    def step(self, name: str) -> float:
        """Return 0: no step was taken."""
        return 0.0

    def common_state(self) -> dict[str, Any]:
        """Return the optimizer's own state: empty."""
        return {}

    def refuse_other_output_layer(self) -> None:
        """Raise CheckpointError if the output layer is not the embedding, although the model declares them tied."""
        output = self._their_name.get(_OUTPUT)
        if output is None or not self.shape.tied:
            return
        (embedding,) = (self._their_name[one] for one in self._place("word_embeddings.weight").names)
        if not torch.equal(self._published.tensor(output), self._published.tensor(embedding)):
            raise CheckpointError(f"{output} differs from {embedding}, the trainer has one for both")

    def _place(self, name: str) -> Place:
        place = self.family.place_of(name)
        assert place is not None, "a family has a place for every parameter of its models"
        return place

    def _with_prefix(self, name: str) -> str:
        return name if name == _OUTPUT or name.startswith(self.family.prefix) else self.family.prefix + name

    def _precision(self, entries: Mapping[str, TensorEntry]) -> str:
        dtypes = {entry.dtype for name, entry in entries.items() if not self._is_left_over(name)}
        names = {dtype: name for name, dtype in DTYPES_BY_NAME.items()}
        found = sorted(names.get(dtype, str(dtype)) for dtype in dtypes)
        precision = next((ours for ours, theirs in PRECISIONS.items() if [theirs] == found), None)
        if precision is None:
            raise CheckpointError(
                f"its weights are of {', '.join(found)}: one of {', '.join(DTYPES_BY_NAME)} for all is needed"
            )
        return precision

    def _is_left_over(self, name: str) -> bool:
        return self.family.leftovers.fullmatch(name) is not None

    def _refuse_other_tensors(self, entries: Mapping[str, TensorEntry]) -> None:
        expected: dict[str, tuple[int, ...]] = {}
        for name, parameter in self.parameters.items():
            place = self._place(name)
            expected |= zip(place.names, their_shapes(place, parameter.shape, Heads.of(self.shape)), strict=True)
        for name, shape in expected.items():
            found = entries[name].shape if name in entries else "missing"
            if found != shape:
                raise CheckpointError(f"{name} is {found}, config.json makes it {shape}")
        unknown = [name for name in entries if name not in {*expected, _OUTPUT} and not self._is_left_over(name)]
        if unknown:
            raise CheckpointError(f"{unknown[0]!a} has no counterpart in the trainer ({len(unknown)} have none)")


def _tokenizer(folder: Path) -> dict[str, Any]:
    has = (folder / TOKENIZER).is_file() or (folder / "vocab.json").is_file()
    return {"tokenizer_name_or_path": str(folder.absolute())} if has else {}


def write_checkpoint(model: ImportedModel, source: Path, root: Path) -> dict[str, SavedFile]:
    """Write the model to `root` as the checkpoint of iteration 0, with `latest`; return its files.

    One parameter at a time is in memory. Raises CheckpointError, and removes all files then.
    """
    layout = {**layout_facts(model.options, 1), "optimizer": NO_OPTIMIZER}
    parameters = saved_parameters(model.shape)
    files = NativeFiles(model, parameters, Cut.of(layout), model.precision, lambda _rank: _state(model))
    tasks = files.tasks()
    with (
        being_written(root / tag_of(0), files.size_bytes()) as folder,
        Progress(f"importing {source.name}", sum(size for size, _ in tasks)) as progress,
    ):
        written: dict[str, SavedFile] = {}
        done = 0
        for size, task in tasks:
            written |= task(folder)
            done += size
            progress.reached(done)
        manifest = Manifest(
            **Counters.none().counters(),
            precision=model.precision,
            layout=layout,
            model=model.shape.facts(),
            learning_rate={},
            files=written,
            parameters=parameters,
            training=_identity(model),
            saved=saved_now(),
            history=(started_now(kind=IMPORTED, iteration=0, loaded_from=str(source.absolute()), layout=layout),),
        )
        write_atomically(folder / MANIFEST, json_file_text(manifest.as_json()))
    write_atomically(root / LATEST, tag_of(0))
    return written


def _identity(model: ImportedModel) -> dict[str, Any]:
    """Return the facts that a training from this model must share, because the weights were trained for them."""
    facts = training_facts(model.options)
    names = ("gelu", "layernorm_epsilon", "apply_residual_connection_post_layernorm", "rotary_base", "rotary_percent")
    tokenizer = tokenizer_identity(model.options)
    return {**{name: facts[name] for name in names if name in facts}, **({"tokenizer": tokenizer} if tokenizer else {})}


def _state(model: ImportedModel) -> dict[str, Any]:
    """Return the other state, by DeepSpeed's and the trainer's names."""
    return {
        "module": None,
        "optimizer": None,
        "lr_scheduler": None,
        "global_steps": 0,
        "global_samples": 0,
        "skipped_steps": 0,
        "checkpoint_version": 3.0,
        "args": dict(model.options),
        "iteration": 0,
        "tokens": 0,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        "checkpoint_info": {
            "padded_vocab_size": model.shape.vocabulary,
            "original_vocab_size": model.shape.tokens,
        },
    }
