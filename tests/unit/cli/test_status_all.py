"""`opsctl status --all` where there is no Slurm: runs that are well, broken, gone or closed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from opsctl.core.files.state_files import write_state
from opsctl.core.timestamps import now
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.alerts import Memory, Remembered
from opsctl.run.state.identity import make_run_id
from opsctl.run.state.revisions import publish
from tests.printed_json import printed
from tests.tiny_run import ready, write_checkpoint, write_run
from tests.unit.cli.called import answer


def several(folder: Path, *names: str) -> dict[str, RunPaths]:
    """Runs that this account has submitted."""
    paths = {}
    for name in names:
        run = load_run_file(write_run(folder / name, name=name))
        publish(ready(run))
        make_run_id(run.paths)
        paths[name] = run.paths
    registry = folder / "state" / "opsctl" / "runs.json"
    registry.parent.mkdir(parents=True)
    registry.write_text(json.dumps({name: str(folder / name / "run.toml") for name in names}))
    return paths


def test_every_run_has_its_row_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    paths = several(tmp_path, "tr1", "tr2", "tr3")
    write_checkpoint(tmp_path / "tr1", 500, 4000)
    (tmp_path / "tr2" / "run.toml").write_text("this is no toml")
    found = answer(tmp_path, "status", "--all")
    assert found.returncode == 1 and "squeue" in found.stderr
    lines = found.stdout.splitlines()
    assert re.findall(r"\d+", lines[0])[:3] == ["3", "2", "1"]
    names = [line.split()[0] for line in lines if line[0] not in " R3"]
    assert names == ["tr2", "tr3", "tr1"]
    assert any(line.startswith("tr1 ") and "finished" in line and "100.0 %" in line for line in lines)
    assert any(line.startswith("    ") and "tr2/run.toml" in line for line in lines)
    value = printed("status", answer(tmp_path, "status", "--all", "--json").stdout)
    assert [(one["name"], one["output"]) for one in value][1:] == [
        (name, str(paths[name].output)) for name in ("tr3", "tr1")
    ]


def test_what_the_desk_remembers_of_a_run_is_on_both_screens(tmp_path: Path) -> None:
    paths = several(tmp_path, "tr1")["tr1"]
    full = Remembered(
        severity="critical", since=now(), last_seen=now(), text="/scratch is 97 % full", acknowledged_by="ann"
    )
    write_state(paths.output, paths.alerts, Memory(findings={"kill_switch:moon": full}))
    assert "/scratch" not in answer(tmp_path / "tr1", "status").stdout  # a check that this look repeats: it is over
    write_state(paths.output, paths.alerts, Memory(findings={"purge:/scratch": full}))
    for words in (["status", "--run", "tr1"], ["status", "--all"]):
        found = answer(tmp_path, *words)
        assert "critical" in found.stdout and "/scratch is 97 % full" in found.stdout and "ann" in found.stdout
    (finding,) = printed("status", answer(tmp_path, "status", "--run", "tr1", "--json").stdout)["findings"]
    assert finding["acknowledged_by"] == "ann" and finding["seen_at"] is not None


def test_where_there_is_no_run_it_says_how_to_have_one(tmp_path: Path) -> None:
    found = answer(tmp_path, "status", "--all")
    assert (found.returncode, found.stderr) == (0, "") and "opsctl submit" in found.stdout
