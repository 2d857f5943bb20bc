"""Test what `opsctl json-schema` prints, checked against a validator that is not ours."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from opsctl.cli.json_schema import all_printed, document
from tests.unit.cli.called import opsctl


def schema_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert opsctl("json-schema", *words) == 0
    return json.loads(capsys.readouterr().out)


def test_it_is_a_schema_of_all_that_commands_print() -> None:
    whole = document(all_printed())
    jsonschema.Draft202012Validator.check_schema(whole)
    assert len(whole["anyOf"]) == len(all_printed())


def test_what_a_command_prints_fits_and_what_lacks_a_key_or_has_another_type_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    schema = schema_of(capsys, "plan")
    assert opsctl("plan", "--params", "1e9", "--tokens", "2e10", "--gpus", "8", "--tflops", "100", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, schema)
    jsonschema.validate({**printed, "plan": {**printed["plan"], "one_day_more": 1}}, schema)
    first = next(iter(printed["plan"]))
    without = {key: value for key, value in printed["plan"].items() if key != first}
    for wrong in ({**printed, "schema_version": 2}, {**printed, "plan": without}, {**printed, "plan": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_one_commands_schema_has_the_shapes_that_it_prints_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(capsys, "queue")
    assert [one["title"] for one in schema["anyOf"]] == ["opsctl queue"]
    assert "PrintedJob" in schema["$defs"] and "Triage" not in schema["$defs"]


def test_what_may_be_missing_is_not_required_and_never_null() -> None:
    defined = document(all_printed())["$defs"]
    missing = [
        one["properties"][key]
        for one in defined.values()
        for key in set(one.get("properties", ())) - set(one.get("required", ()))
    ]
    assert len(missing) > 10
    assert not any({"type": "null"} in value.get("anyOf", ()) for value in missing)
    assert not any("default" in value for one in defined.values() for value in one.get("properties", {}).values())


def test_a_command_that_prints_no_json_is_refused_with_those_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("json-schema", "checkpoints") == 2
    said = capsys.readouterr().err
    assert "checkpoints list" in said and "checkpoints show" in said
    assert opsctl("json-schema", "statsu") == 2
    assert re.search(r"\bstatus\b", capsys.readouterr().err)
