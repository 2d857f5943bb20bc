from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import publish
from tests.tiny_run import ready, write_run
from tests.unit.cli.called import go_into, opsctl
from tests.unit.run.render.test_scripts import shellcheck


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / "config" / "opsctl"
    config.mkdir(parents=True)
    (config / "profile.toml").write_text('[jobs]\npartition = "prepost"\naccount = "cpu"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "it's a run"
    run.mkdir()
    write_run(
        run, slurm='partition = "gpu_p5"\naccount = "a100"\ngpu_type = "a100"\ncpus_per_task = 8\nreservation = "ours"'
    )
    return go_into(run, monkeypatch)


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert opsctl("shell", "--dry-run", *words) == 0
    return shlex.split(capsys.readouterr().out)


def test_without_gpus_it_goes_where_long_commands_go(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = dry(capsys)
    assert words[0] == "salloc" and {"--partition=prepost", "--account=cpu", "--nodes=1", "--time=1:00:00"} < {*words}
    assert not [word for word in words if word.startswith(("--gres", "--gpu", "--reservation"))]
    assert words[-2:] == ["bash", "-i"]


def test_with_gpus_it_asks_as_the_run_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = dry(capsys, "--gpus", "2", "--nodes", "3", "--time", "20:00", "--", "nvidia-smi", "-L")
    wanted = {"--partition=gpu_p5", "--account=a100", "--gres=gpu:a100:2", "--nodes=3", "--cpus-per-task=8"}
    wanted.add("--reservation=ours")
    assert wanted | {"--time=20:00"} < {*words[: words.index("srun")]}
    assert words[-2:] == ["nvidia-smi", "-L"]
    assert "--partition=own" in dry(capsys, "--gpus", "2", "--partition", "own")


def test_its_script_has_the_environment_of_what_is_published(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(ready(load_run_file(folder / "run.toml")))
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace('OMP_NUM_THREADS = "1"', 'OMP_NUM_THREADS = "7"'))
    words = dry(capsys)
    script = words[words.index("-c") + 1]
    assert "export OMP_NUM_THREADS=1\n" in script and f"cd {shlex.quote(str(folder))} ||" in script
    shellcheck(f"#!/bin/bash\n{script}", tmp_path)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--into", "12", "--nodes", "2"), "--nodes"),
        (("--node", "node1"), "--into"),
        ((), "salloc"),
        (("--into",), "squeue"),
    ],
)
def test_what_cannot_be_is_refused(
    folder: Path, words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("shell", *words) in (1, 2)
    assert why in capsys.readouterr().err
