"""`opsctl doctor` on set-ups that are really there, and really broken."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.slurm.cluster import Cluster
from opsctl.ui.doctor import gather as gathering
from opsctl.ui.doctor import sources
from opsctl.ui.doctor.gather import Asked, gather, run_at_hand
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import opsctl
from tests.unit.slurm.test_process import fake


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with an environment script, of an account that has nothing else, on a host without Slurm."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("OPSCTL_RUN", "OPSCTL_CLUSTER", "HF_TOKEN", "HF_HOME", "HF_TOKEN_PATH", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    path = write_run(tmp_path / "run")
    path.write_text(path.read_text().replace("[run]\n", '[run]\nenvironment = "env.sh"\n'))
    (path.parent / "env.sh").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')
    (path.parent / "output").mkdir()
    monkeypatch.chdir(path.parent)
    return path.parent


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Check -> (state, text)."""
    opsctl("doctor", "--json")
    return {one["name"]: (one["state"], one["text"]) for one in printed("doctor", capsys.readouterr().out)}


def broken_run_file(folder: Path) -> None:
    (folder / "run.toml").write_text("[run]\nname = 1\n")


def no_script(folder: Path) -> None:
    (folder / "env.sh").unlink()


def script_fails(folder: Path) -> None:
    (folder / "env.sh").write_text("echo no module cuda >&2; exit 1\n")


def script_of_all(folder: Path) -> None:
    (folder / "env.sh").chmod(0o666)


def profile_of_all(folder: Path) -> None:
    path = Path(os.environ["XDG_CONFIG_HOME"], "opsctl", "profile.toml")
    path.parent.mkdir()
    path.write_text("[slurm]\n")
    path.chmod(0o666)


def no_group(folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(path.read_text().replace("[run]\n", '[run]\ngroup = "no-such-group"\n'))


def file_for_a_folder(folder: Path) -> None:
    (folder / "output").rmdir()
    (folder / "output").touch()


def evaluated(folder: Path, **keys: str) -> None:
    """An lm-eval's notes where the run's own variables say, and tasks that are wanted of it."""
    notes = folder / "packages" / "lm_eval-9.9.dist-info" / "METADATA"
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("Metadata-Version: 2.1\nName: lm_eval\nVersion: 9.9\n")
    said = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    path = folder / "run.toml"
    path.write_text(path.read_text() + f'PYTHONPATH = "{folder / "packages"}"\n[evaluation]\ntasks = ["cats"]\n{said}')


def no_lm_eval(folder: Path) -> None:
    evaluated(folder)
    shutil.rmtree(folder / "packages")


def no_python(folder: Path) -> None:
    evaluated(folder, python=str(folder / "none"))


def python_of_all(folder: Path) -> None:
    (folder / "python").write_text("#!/bin/sh\n")
    (folder / "python").chmod(0o777)
    evaluated(folder, python=str(folder / "python"))


def test_the_lm_eval_of_a_run_is_found_by_its_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "lm-eval" not in states(capsys)
    evaluated(folder)
    assert states(capsys)["lm-eval"] == ("ok", f"lm-eval 9.9 in {sys.executable}")


@pytest.mark.parametrize(
    ("breaks", "check", "state", "words"),
    [
        (broken_run_file, "run file", "missing", "[run] name = 1"),
        (no_script, "environment script", "missing", "env.sh"),
        (script_fails, "environment script", "missing", "no module cuda"),
        (script_of_all, "environment script", "unknown", "env.sh"),
        (profile_of_all, "profiles", "missing", "profile.toml"),
        (no_group, "group", "missing", "'no-such-group'"),
        (file_for_a_folder, "output folder", "missing", "output"),
        (no_lm_eval, "lm-eval", "missing", "[evaluation]"),
        (no_python, "lm-eval", "missing", "/none"),
        (python_of_all, "lm-eval", "unknown", "python"),
    ],
)
def test_what_was_broken_is_what_it_says(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    breaks: Callable[[Path], None],
    check: str,
    state: str,
    words: str,
) -> None:
    breaks(folder)
    found = states(capsys)[check]
    assert found[0] == state and words in found[1]


def test_it_changes_nothing_and_tries_locks_and_clocks_without_leaving_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def everything() -> list[tuple[str, int, int]]:
        found = [path for path in tmp_path.rglob("*") if path.name != "__pycache__"]
        return sorted((str(path), path.stat().st_mode, path.stat().st_mtime_ns) for path in found)

    before = everything()
    found = states(capsys)
    assert found["locks"][0] == found["clock"][0] == "ok"
    # Those that the test above breaks.
    for check in ("run file", "environment script", "profiles", "group", "output folder", "extension locks", "lm-eval"):
        assert found.get(check, ("ok", ""))[0] in ("ok", "optional"), found[check]
    assert everything() == before


def test_on_a_laptop_without_a_run_it_says_what_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert opsctl("doctor") == 1
    lines = capsys.readouterr().out.splitlines()
    assert not any("run file" in line for line in lines)
    assert any(line.startswith("missing") and "sbatch" in line for line in lines)
    assert lines[-1].strip().startswith("-> load Slurm's module")


def test_a_run_that_was_named_and_is_not_there_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("doctor", "--run", "nobody") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_source_that_hangs_or_fails_blinds_only_its_own_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def fails(_: Asked) -> None:
        raise RuntimeError("unforeseen")

    def hangs(_: Asked) -> None:
        assert threading.current_thread().daemon, "it would keep the process from ending"
        released.wait(600)

    monkeypatch.setitem(gathering.SOURCES, "home", hangs)
    monkeypatch.setitem(gathering.SOURCES, "host", fails)
    loaded, seen = run_at_hand(None)
    began = time.monotonic()
    found = gather(Asked(loaded, Cluster(), os.environ), seen, deadline_s=3.0)
    released.set()
    assert time.monotonic() - began < 60
    assert found.problems["home"] == "no answer within 3 s" and found.problems["host"] == "RuntimeError: unforeseen"
    assert found.software is not None and found.output is not None and found.output.has_locks


def test_a_slurm_that_never_answers_is_given_up_and_said_and_blinds_nothing_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every one of its commands hangs; what it has started is ended with it."""
    (tmp_path / "slurm").mkdir()
    for name in ("scontrol", "sinfo", "squeue", "sacct"):
        fake(tmp_path / "slurm", name, f"echo $$ >> {tmp_path}/asked; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm'}:{os.environ['PATH']}")
    monkeypatch.setattr(sources, "_SLURM_S", 1.0)
    found = states(capsys)
    assert found["controller"][0] == "unknown" and "1 s" in found["controller"][1], found["controller"]
    assert found["output folder"][0] == found["environment script"][0] == "ok"
    assert not {"partition", "accounting"} & found.keys()  # the first of those that are blind says why
    asked = (tmp_path / "asked").read_text().split()
    assert asked and not [pid for pid in asked if Path("/proc", pid, "cmdline").exists() and is_sleeping(pid)]
    assert opsctl("doctor") == 1


def is_sleeping(pid: str) -> bool:
    return b"sleep" in Path("/proc", pid, "cmdline").read_bytes()


def test_a_token_is_found_where_huggingface_hub_looks_and_never_read(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert not sources.has_hub_token(home)
    path = tmp_path / ".cache" / "huggingface" / "token"
    path.parent.mkdir(parents=True)
    path.write_text("hf_x")
    path.chmod(0)
    assert sources.has_hub_token(home) and sources.has_hub_token({**home, "HF_TOKEN": "x"})
    assert not sources.has_hub_token({**home, "HF_HOME": str(tmp_path / "else")})
