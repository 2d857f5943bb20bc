"""The description of a family of published models: the places of our parameters, and the limits of its configuration.

A family is a table from our parameters to theirs, and three pure functions; `families` lists them. A model that it
cannot express gives a `Misfit`, with both values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainer.formats.errors import CheckpointError
from trainer.recipe.model_shape import ModelShape

_BLOCK = re.compile(r"layers\.([0-9]+)\.")
#: In a family's table, a placeholder for the number of a block.
_ANY_BLOCK = "{}"


@dataclass(frozen=True)
class Place:
    """The place of one of our parameters in their model: one tensor, or separate query, key and value."""

    names: tuple[str, ...]
    transposed: bool  # [in, out], as in GPT-2's linear layers; ours are [out, in]
    blocked: bool  # all queries, all keys, all values; ours are grouped by heads

    def renamed(self, name_of: Callable[[str], str]) -> Place:
        """Return the same place under other names."""
        return replace(self, names=tuple(map(name_of, self.names)))


def at(*names: str, transposed: bool = False, blocked: bool = False) -> Place:
    """Return a place. Three names are those of query, key and value."""
    return Place(names, transposed, blocked or len(names) > 1)


@dataclass(frozen=True)
class Heads:
    """The numbers of attention heads and of key and value heads."""

    queries: int
    groups: int

    @classmethod
    def of(cls, shape: ModelShape) -> Heads:
        """Return the heads of a model."""
        return cls(shape.heads, shape.groups)

    def rows(self, whole: int) -> list[int]:
        """Return the rows of query, key and value among `whole` rows."""
        head = whole // (self.queries + 2 * self.groups)
        return [self.queries * head, self.groups * head, self.groups * head]


@dataclass(frozen=True)
class Misfit:
    """A property that a family's models cannot have."""

    option: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.option} is {_said(self.ours)} here and {_said(self.theirs)} there"


@dataclass(frozen=True)
class Family:
    """One family of transformers' models.

    places: our parameter's name, `{}` for the number of a block, to theirs. misfits: properties of a shape that the
    family cannot have. config: the `config.json` of a shape that it can have. options: the trainer's options for a
    `config.json`; raises CheckpointError for an unsupported model. leftovers: a pattern of names in their files that
    are not parameters.
    """

    name: str  # model_type in `config.json`
    architecture: str
    prefix: str  # of every name; missing in files of the model without its output layer
    places: Mapping[str, Place]
    misfits: Callable[[ModelShape], list[Misfit]]
    config: Callable[[ModelShape, int], dict[str, Any]]
    options: Callable[[Mapping[str, Any]], dict[str, Any]]
    leftovers: re.Pattern[str]

    def place_of(self, name: str) -> Place | None:
        """Return the place of our parameter `name` in their model; None if it has none."""
        block = _BLOCK.match(name)
        if block is None:
            return self.places.get(name)
        place = self.places.get(f"layers.{_ANY_BLOCK}.{name[block.end() :]}")
        return None if place is None else place.renamed(lambda name: name.format(block[1]))


def pairs(places: Mapping[str, Place | str]) -> dict[str, Place]:
    """Return the table of a family whose layers all have `weight` and `bias`, none of them transposed."""
    return {f"{ours}.{kind}": place for ours, to in places.items() for kind, place in _pair(to)}


def _pair(to: Place | str) -> Iterator[tuple[str, Place]]:
    place = at(to) if isinstance(to, str) else to
    yield "weight", place.renamed("{}.weight".format)
    yield "bias", replace(place, transposed=False).renamed("{}.bias".format)


def their_shapes(place: Place, shape: Sequence[int], heads: Heads) -> list[tuple[int, ...]]:
    """Return the shapes of one of our parameters in their model, one for each of the place's names."""
    rows = heads.rows(shape[0]) if len(place.names) > 1 else shape[:1]
    shapes = [(one, *shape[1:]) for one in rows]
    return [tuple(reversed(one)) for one in shapes] if place.transposed else shapes


def to_theirs(place: Place, tensor: Tensor, heads: Heads) -> list[Tensor]:
    """Return one of our parameters as their tensors, contiguous, without a copy if nothing changes."""
    parts = [tensor]
    if place.blocked:
        of_group = heads.queries // heads.groups
        by_group = tensor.reshape(heads.groups, of_group + 2, -1, *tensor.shape[1:])
        kinds = by_group.split((of_group, 1, 1), dim=1)
        parts = [one.reshape(-1, *tensor.shape[1:]) for one in kinds]
        if len(place.names) == 1:
            parts = [torch.cat(parts)]
    return [(one.t() if place.transposed else one).contiguous() for one in parts]


def to_ours(place: Place, tensors: Sequence[Tensor], heads: Heads) -> Tensor:
    """Invert `to_theirs`, bit for bit."""
    parts = [one.t() if place.transposed else one for one in tensors]
    if not place.blocked:
        return parts[0].contiguous()
    rest = parts[0].shape[1:]
    if len(parts) == 1:
        parts = list(parts[0].split(heads.rows(len(parts[0]))))
    head = len(parts[0]) // heads.queries
    return torch.cat([one.reshape(heads.groups, -1, head, *rest) for one in parts], dim=1).reshape(-1, *rest)


def differing(wanted: Iterable[tuple[str, Any, Any]]) -> list[Misfit]:
    """Return Misfits of (option, our value, the only possible value) for the values that differ."""
    return [Misfit(option, ours, theirs) for option, ours, theirs in wanted if ours != theirs]


def plain_misfits(shape: ModelShape) -> list[Misfit]:
    """Return the misfits of a family without features after GPT-3: no gates, no shared keys and values."""
    return differing(
        [
            ("normalization", "RMSNorm" if shape.rms_norm else "LayerNorm", "LayerNorm"),
            ("disable_bias_linear", not shape.linear_biases, False),
            ("glu_activation", shape.gate, None),
            ("num_query_groups", shape.groups, shape.heads),
            ("qk_layernorm", shape.query_key_norm, False),
            ("untie_embeddings_and_output_weights", not shape.tied, False),
        ]
    )


class Config:
    """A `config.json` that is read value by value. A wrong type or value raises an error with its name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def size(self, *names: str) -> int:
        """Return the positive integer under the first of the names that exists."""
        value = self._first(names)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"config.json: {names[0]} is {_said(value)}, not a positive integer")
        return value

    def size_or(self, default: int, *names: str) -> int:
        """Return the same, or `default` if none exists or it is null."""
        return default if self._first(names) is None else self.size(*names)

    def number(self, name: str, default: float) -> float:
        """Return a number that is not negative."""
        value = self._values.get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            raise CheckpointError(f"config.json: {name} is {_said(value)}, not a number of at least 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: {name} is {_said(value)}, not a boolean")
        return value

    def one_of(self, name: str, allowed: Sequence[Any], default: Any) -> Any:
        """Return a value, which must be one that the trainer's models can have."""
        value = self._values.get(name, default)
        if value not in allowed:
            can_be = " or ".join(map(_said, allowed))
            raise CheckpointError(f"config.json: {name} is {_said(value)}, a model of the trainer has {can_be}")
        return value

    def _first(self, names: Iterable[str]) -> Any:
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)


def _said(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "missing"}[value]
    text = str(value)[:80]
    return text if text.isprintable() else ascii(text)
