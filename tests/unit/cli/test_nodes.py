"""Test what `opsctl nodes report` drafts, and `opsctl exclude list` without a Slurm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import exclude, nodes
from opsctl.core.errors import SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes import exclusion
from opsctl.diagnosis.nodes.exclusion_list import own_place
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence
from opsctl.run.config.paths import RunPaths
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into, opsctl
from tests.unit.diagnosis.nodes.slurm_in_memory import in_memory


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that has seen something of n2, in a folder that is the current one."""
    write_run(go_into(tmp_path, monkeypatch))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for module in (nodes, exclude):
        monkeypatch.setattr(module, "client_for", lambda *_: in_memory())
    found = RunPaths(tmp_path / "output")
    found.state.mkdir(parents=True)
    see(found)
    return found


def see(paths: RunPaths) -> None:
    words = f"uncorrectable ECC error, see {paths.main_log}"
    seen = {"attempt": "4711-ab", "by": "triage", "confidence": 0.95}
    append_node_evidence(paths, NodeEvidence(node="n2", kind="gpu-ecc", at=now(), words=words, **seen))  # type: ignore[arg-type]


def settle(folder: Path, text: str) -> None:
    profile = folder / "config" / "opsctl" / "profile.toml"
    profile.parent.mkdir(parents=True, exist_ok=True)
    profile.touch(mode=0o600)
    profile.write_text(text)


def test_a_report_drafts_what_was_seen_without_paths(
    paths: RunPaths, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("nodes", "report") == 0
    drafted = capfd.readouterr().out
    assert "bad node: n2" in drafted and "job 4711: gpu-ecc" in drafted and str(tmp_path) not in drafted


def test_a_healthy_node_is_not_reported_whoever_names_it(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["n1"], ["n[1-2]"], ["n1", "--json"]):
        assert opsctl("nodes", "report", *words) == 1
        said = capfd.readouterr()
        assert "n1 (idle)" in said.err and said.out == ""
        assert re.search(r"opsctl exclude add n1\b", said.err)
    assert opsctl("nodes", "report", "n2") == 0
    exclusion.add(own_place(paths), ["n1"], "runs hot", now().replace(year=now().year + 1))
    capfd.readouterr()
    assert opsctl("nodes", "report", "n1") == 0
    drafted = capfd.readouterr().out
    assert "runs hot" in drafted and f"{now().year + 1}-" in drafted


@pytest.mark.parametrize("value", ["most_excluded_percent = 101", "auto = 1", "colour = 2"])
def test_a_wrong_profile_is_refused_by_name(
    paths: RunPaths, tmp_path: Path, capfd: pytest.CaptureFixture[str], value: str
) -> None:
    settle(tmp_path, f"[nodes]\n{value}\n")
    assert opsctl("nodes") == 2
    assert f"[nodes] {value.partition(' ')[0]}" in capfd.readouterr().err


def test_nodes_are_shown_with_what_speaks_against_them_also_such_as_slurm_does_not_have(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("nodes", "--json") == 0
    seen: Any = {one["node"]: one for one in printed("nodes show", capfd.readouterr().out)}
    assert list(seen) == ["n1", "n2", "n3", "n4"] and len(seen["n2"]["evidence"]) == 1 and seen["n2"]["score"] > 0.9
    assert opsctl("nodes", "n9") == 0
    assert capfd.readouterr().out == "n9  not there  -\n"


def test_the_list_says_which_node_the_run_uses_all_the_same_and_why(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclude, "client_for", lambda *_: in_memory(names=("n1", "n2")))
    wanted = exclusion.Wanted(None, 2)
    exclusion.keep(paths, in_memory(names=("n1", "n2")), wanted)
    monkeypatch.setattr(exclude, "wanted_by", lambda *_: wanted)
    assert opsctl("exclude", "list", "--json") == 0
    (listed,) = printed("exclude list", capfd.readouterr().out)
    assert listed["node"] == "n2" and listed["kept_in"].count("2") == 2, "the needed and the present nodes"
    assert opsctl("exclude", "list") == 0
    assert listed["kept_in"] in capfd.readouterr().out


def test_where_slurm_does_not_answer_the_list_is_shown_and_that_is_said(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> object:
        raise SlurmUnreachable("sinfo: no answer within 8 s")

    exclusion.add(own_place(paths), ["n3"], "runs hot", now().replace(year=now().year + 1))
    monkeypatch.setattr(exclude, "client_for", silent)
    assert opsctl("exclude", "list") == 0
    said = capfd.readouterr()
    assert said.out.startswith("n3 ") and "sinfo: no answer within 8 s" in said.err


def test_an_empty_list_needs_no_slurm(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(exclude, "client_for")
    assert opsctl("exclude", "list") == 0
    assert capfd.readouterr().out == ""
