"""Reading what a command printed with `--json` by the shape that the registry has for it, and by nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from opsctl.cli.json_schema import all_printed, name_in_table
from opsctl.core.output import json_text
from trainer.formats.json_text import SCHEMA_VERSION


def printed(command: str, text: str) -> Any:
    """The value under the top key of what `opsctl COMMAND --json` printed, after it was held against its shape.

    Fails for a key that the shape does not have or that is missing, and for a value of another type.
    """
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert value["schema_version"] == SCHEMA_VERSION
    (key,) = set(value) - {"schema_version"}
    shapes = [one.shape for one in all_printed() if (one.command, one.key) == (name_in_table(command), key)]
    assert shapes, f"opsctl {command} printed {key}, which nothing describes"
    errors = []
    for shape in shapes:
        try:
            decoded = msgspec.convert(value[key], shape)
        except msgspec.ValidationError as error:
            errors.append(f"{shape}: {error}")
            continue
        # What the shape does not have is passed over when decoding, so it is missing when printed again.
        assert json.loads(json_text(key, decoded)) == value
        return value[key]
    pytest.fail("; ".join(errors))
