"""Whatever stands in a run file, loading it gives a run or one printable line: never a traceback, never two lines."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.core.errors import RunFileError
from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import LoadedRun, expanded_file, load_run_file
from opsctl.run.config.toml_types import TABLES, keys_of
from opsctl.run.planning.from_run import plan_sections
from tests.unit.run.config.run_files import VALID, changed

several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
WRITABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-2, 300),
    st.floats(),
    st.booleans(),
    WRITABLE,
    st.lists(st.integers(-1, 64) | WRITABLE | st.floats(), max_size=4),
)


def toml(value: object) -> str:
    """`value` as TOML writes it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True).replace("\\ud", "\\\\ud")
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return repr(value).lower()


def survives(path: Path) -> LoadedRun | None:
    """The run, or None when it was refused as it should."""
    try:
        run = load_run_file(path, {"HOME": "/home/x", "WORK": "/w\nx"})
        findings = find_problems(run)
        for line in findings.problems + findings.warnings:
            assert line.isprintable()
        for section in plan_sections(run.file.slurm, run.file.expect, findings.options, findings.layout):
            json.dumps(msgspec.to_builtins(section.values), allow_nan=False)
        expanded_file(run)
        return run
    except RunFileError as error:
        refusal = str(error)
    assert refusal.startswith(str(path))
    assert refusal.isprintable()
    return None


@several
@given(raw=st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(raw)
    assert survives(path) is None


@several
@given(position=st.integers(0, len(VALID)), length=st.integers(0, 30), inserted=WRITABLE)
def test_a_piece_replaced_by_anything(tmp_path: Path, position: int, length: int, inserted: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(VALID[:position] + inserted + VALID[position + length :], newline="")
    survives(path)


@several
@given(data=st.data())
def test_any_key_with_any_value(tmp_path: Path, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(TABLES))
    key = data.draw(st.sampled_from(keys_of(table) or ("A_VARIABLE",)) | WRITABLE)
    line = f"{toml(key)} = {toml(data.draw(VALUES))}\n"
    text = "\n".join(old for old in VALID.splitlines() if not old.startswith(f"{key} = ")) + "\n"
    text = changed(f"[{table}]\n", f"[{table}]\n{line}", text) if f"[{table}]\n" in text else f"{text}[{table}]\n{line}"
    path = tmp_path / "run.toml"
    path.write_text(text)
    survives(path)


def test_the_deepest_nesting_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("x = " + "[" * 20_000)
    with pytest.raises(RunFileError, match="not TOML"):
        load_run_file(path, {})


def test_a_number_too_long_to_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("x = " + "1" * 20_000)
    with pytest.raises(RunFileError, match="not TOML"):
        load_run_file(path, {})
