"""`opsctl init`: folders made from examples, and what it refuses to make."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.cli.init import command, with_run_name
from opsctl.core.errors import OpsctlError, RunFileError, UsageError
from opsctl.core.shipped import templates_folder
from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import locate_run_file
from tests.tiny_run import write_run

EXAMPLES = (
    *("demo", "llama-1B", "llama-3.1-8B", "mistral-7B", "qwen3-0.6B"),
    *("setup-test-n2", "tr1-13B", "tr11-176B-ml", "tr11d-760M-ml"),
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.delenv("OPSCTL_RUN", raising=False)


def init(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_the_examples_are_these() -> None:
    assert tuple(sorted(path.stem for path in (templates_folder() / "examples").glob("*.toml"))) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_examples_own_name_implies_it_and_its_comments_stay(name: str) -> None:
    init(name)
    made = Path(name, "run.toml").read_text()
    assert made == (templates_folder() / "examples" / f"{name}.toml").read_text()
    assert load_run_file(Path(name, "run.toml"), {}).file.run.name == name


def test_any_other_name_gets_the_demo_under_that_name() -> None:
    init("my-first")
    assert load_run_file(Path("my-first/run.toml"), {}).file.run.name == "my-first"
    original = (templates_folder() / "examples" / "demo.toml").read_text()
    assert with_run_name(Path("my-first/run.toml").read_text(), "demo") == original


def test_from_takes_another_example() -> None:
    init("mine", "--from", "tr11-176B-ml")
    assert load_run_file(Path("mine/run.toml"), {}).file.slurm.nodes == 48


def test_the_run_is_found_by_its_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init("mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert locate_run_file("mine", os.environ) == tmp_path / "mine" / "run.toml"


def test_the_next_commands_are_printed_whole_on_stderr() -> None:
    result = init("mine")
    assert result.stdout.strip() == str(Path("mine/run.toml").absolute())
    for step in (
        "cd mine",
        "opsctl local-cluster up",
        "opsctl data prepare",
        "opsctl plan",
        "opsctl submit --array 1-3%1",
    ):
        assert step in result.stderr


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_what_exists_is_never_touched(tmp_path: Path, kind: str) -> None:
    taken = tmp_path / "taken"
    if kind == "folder":
        taken.mkdir()
    elif kind == "file":
        taken.touch()
    else:
        taken.symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OpsctlError, match="taken"):
        init("taken")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a b", "$(touch x)", "a\nb", "x;y", "-y", '"q"', "a/../..", "x" * 129]
)
def test_hostile_names_make_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        init("--", name)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_example_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'tr11'.*tr11-176B-ml"):
        init("x", "--from", "tr11")


def test_a_missing_parent_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sub"):
        init("sub/x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "../../x", "sub/../../x"])
def test_a_name_that_leads_out_of_this_folder_is_refused_with_the_path_that_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (here := tmp_path / "work" / "here").mkdir(parents=True)
    (here / "sub").mkdir()
    monkeypatch.chdir(here)
    meant = os.path.normpath(here / name)
    with pytest.raises(UsageError, match=re.escape(f"opsctl init {meant}")):
        init(name)
    assert not Path(meant).exists()
    init(meant)
    assert load_run_file(Path(meant) / "run.toml", {}).file.run.name == "x"


def test_a_run_is_made_in_a_folder_that_everybody_shares(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)  # as /tmp
    init("x")
    assert json.loads((tmp_path / ".state/opsctl/runs.json").read_text()) == {"x": f"{tmp_path}/x/run.toml"}


def test_a_run_made_in_another_folder_is_named_after_its_last_part(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    init("sub/x")
    assert load_run_file(Path("sub/x/run.toml"), {}).file.run.name == "x"
    assert json.loads((tmp_path / ".state/opsctl/runs.json").read_text()) == {"x": str(tmp_path / "sub/x/run.toml")}


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o700), (0o002, 0o775)])
def test_the_run_is_as_open_as_the_umask_says(umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        init("ours")
    finally:
        os.umask(before)
    assert Path("ours").stat().st_mode & 0o777 == mode
    assert Path("ours/run.toml").stat().st_mode & 0o777 == mode & 0o664


def test_a_rehearsal_is_held_to_all_checks_and_nothing_is_left_of_a_refused_one(tmp_path: Path) -> None:
    parent = write_run(tmp_path / "large", nodes=4)
    assert init("small", "--from", str(parent), "--rehearsal").exit_code == 0
    assert load_run_file(tmp_path / "small" / "run.toml").file.run.rehearses == str(parent)
    parent.write_text(parent.read_text().replace("[trainer]\n", "[trainer]\nfp16 = true\nbf16 = true\n"))
    with pytest.raises(RunFileError, match=r"\bfp16\b.*\bbf16\b|\bbf16\b.*\bfp16\b"):
        init("other", "--from", str(parent), "--rehearsal")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".state", "large", "small"]
