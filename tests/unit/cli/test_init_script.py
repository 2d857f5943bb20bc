"""`opsctl init --from-script`: a run that can be planned, and what was not taken said twice."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.run.config.load import load_run_file
from tests.unit.cli.called import go_into, opsctl

SCRIPTS = Path(__file__).parents[1] / "run" / "init" / "scripts"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    return go_into(tmp_path, monkeypatch)


def test_a_script_becomes_a_run_that_can_be_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("init", "mine", "--from-script", str(SCRIPTS / "large.slurm")) == 0
    said = capsys.readouterr()
    assert said.out == f"{here}/mine/run.toml\n"
    assert re.search(r"\bline 34: HUB_TOKEN\b", said.err)
    assert "opsctl doctor" in said.err
    assert load_run_file(here / "mine" / "run.toml", {}).file.slurm.nodes == 24
    assert opsctl("plan", "mine") == 0


def test_nothing_of_the_script_is_run(here: Path) -> None:
    hostile = here / "hostile.slurm"
    hostile.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:1 --time=1:00:00\n"
        f"A=$(touch {here}/a)\nB=`touch {here}/b`\nC=${{X:-$(touch {here}/c)}}\ntouch {here}/d\nsource {here}/evil\n"
        "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2 --lr 1 $A $B $C\n"
    )
    (here / "evil").write_text(f"touch {here}/e\n")
    opsctl("init", "mine", "--from-script", "hostile.slurm")
    assert {one.name for one in here.iterdir()} == {"hostile.slurm", "evil", "mine", ".state"}


def test_the_environments_lines_lie_beside_the_run_file(here: Path) -> None:
    opsctl("init", "mine", "--from-script", str(SCRIPTS / "rounds.slurm"))
    assert (here / "mine" / "environment.sh").read_text().splitlines()[1:] == [
        'source "${LAB_WORK}/start-prod"',
        "module load cuda/11.4",
        "conda activate lm",
    ]


def test_what_a_script_leaves_to_the_command_line_is_an_option(here: Path) -> None:
    script = str(SCRIPTS / "arrays.sh")
    assert opsctl("init", "mine", "--from-script", script) == 2
    assert not (here / "mine").exists()
    assert opsctl("init", "mine", "--from-script", script, "--time", "5:00:00", "--partition", "p") == 0
    slurm = load_run_file(here / "mine" / "run.toml", {}).file.slurm
    assert (slurm.time, slurm.partition, slurm.nodes) == ("5:00:00", "p", 2)


def test_a_script_is_read_as_it_is_called(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = str(SCRIPTS / "sweep.slurm")
    assert opsctl("init", "mine", "--from-script", script, "--", "1e-4", "debug") == 0
    made = load_run_file(here / "mine" / "run.toml", {}).file
    assert (made.trainer["lr"], made.trainer["exit_interval"]) == (1e-4, 5)
    assert "1e-4 debug" in (here / "mine" / "run.toml").read_text(), "a comment records the call"
    capsys.readouterr()
    assert opsctl("init", "other", "--from-script", script) == 0
    assert re.search(r"\$1 is an argument .*--", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--from-script", "none.sh"), r"none\.sh"),
        (("--from-script", "/dev/zero"), "/dev/zero"),
        (("--from-script", "x", "--from", "demo"), r"--from-script x\b.*--from\b"),
        (("--from-script", "x", "--params", "1B"), "--params"),
        (("--from", "demo", "--gpus", "8"), "--gpus"),
        (("--from-script", "x", "--time", "foo"), "--time foo"),
        (("--nodes", "3"), "--nodes.*--from-script.*--gpus"),
        (("1e-4",), "1e-4.*--from-script"),
        (("--from", "demo", "--", "--lr"), "--lr.*--from-script"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["init", "mine", *words])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(expected, line)
    assert not (here / "mine").exists()


def test_a_file_that_never_ends_is_not_read_as_deepspeeds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(here / "fifo")
    (here / "x.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:1 --time=1:00:00\npython pretrain_gpt.py --num-layers 2 "
        "--hidden-size 8 --num-attention-heads 2 --lr 1 --deepspeed --deepspeed_config fifo\n"
    )
    assert opsctl("init", "mine", "--from-script", "x.sh") == 0
    assert "--deepspeed_config fifo" in capsys.readouterr().err


def test_what_stands_too_deep_in_one_another_is_refused_in_a_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "x.sh").write_text("if true; then " * 400 + " :;" + " fi;" * 400)
    assert opsctl("init", "mine", "--from-script", "x.sh") == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (here / "mine").exists()
