"""The image for compute nodes: its definition, and the `python` that has steps run in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = (ROOT / "containers/opsctl.def").read_text()
PYTHON = ROOT / "containers/bin/python"
#: Where no Apptainer can be had: says what it was called with, and runs nothing.
STAND_IN = '#!/bin/bash\nprintf "%s\\n" "$$" "$@"\n'


def section(name: str) -> str:
    """The lines of a section of the definition, as Apptainer takes them."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no %{name}"
    return found[1]


def shellcheck(text: str, shell: str) -> str:
    """Return what it finds; nothing where all is well."""
    program = Path(sys.executable).with_name("shellcheck")
    words = [str(program), f"--shell={shell}", "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, timeout=60).stdout


def test_every_value_that_the_definition_is_built_with_has_a_default() -> None:
    declared = set(re.findall(r"^ +(\w+)=", section("arguments"), re.MULTILINE))
    assert set(re.findall(r"\{\{ (\w+) \}\}", DEFINITION)) == declared


def test_what_it_installs_is_there_to_install() -> None:
    copied = [line.split()[0] for line in section("files").strip().splitlines()]
    assert [one for one in copied if "{{" not in one and not (ROOT / one).is_file()] == []
    extras = re.search(r"\$\{wheel\}\[([\w,]+)\]", section("post"))
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("name", ["post", "test", "runscript"])
def test_its_scripts_are_sound(name: str) -> None:
    assert shellcheck(section(name).replace("{{ TORCH }}", "torch"), "sh") == ""


@pytest.mark.parametrize("name", ["activate.sh", "bin/python"])
def test_what_has_steps_run_in_it_is_sound(name: str) -> None:
    assert shellcheck((ROOT / "containers" / name).read_text(), "bash") == ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's output folder with an attempt's in it, beside an image and a stand-in for Apptainer."""
    (tmp_path / "output/logs/attempts/7").mkdir(parents=True)
    (tmp_path / "opsctl.sif").touch()
    (tmp_path / "apptainer").write_text(STAND_IN)
    (tmp_path / "apptainer").chmod(0o755)
    return tmp_path


def start(folder: Path, path: str, **environment: str) -> subprocess.Popen[str]:
    own = {"PATH": path, "OPSCTL_ATTEMPT_FOLDER": str(folder / "output/logs/attempts/7"), **environment}
    words = ["python", "-P", "-m", "trainer.launch", "two words", "$HOME"]
    return subprocess.Popen(
        ["/bin/bash", "-c", f'source {ROOT}/containers/activate.sh && exec "$0" "$@"', *words],
        cwd=folder,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_steps_python_is_the_images_in_the_same_process_with_the_runs_folders(folder: Path) -> None:
    child = start(folder, f"{folder}:{os.defpath}", OPSCTL_IMAGE=str(folder / "opsctl.sif"), OPSCTL_BINDS="/data")
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    binds = ["--bind", str(folder), "--bind", str(folder / "output"), "--bind", "/data"]
    gpus = ["--nv"] if Path("/dev/nvidiactl").exists() else []
    image = [str(folder / "opsctl.sif"), "/opt/opsctl/bin/python", "-P", "-m", "trainer.launch", "two words", "$HOME"]
    assert out.splitlines() == [str(child.pid), "exec", *binds, *gpus, *image]


@pytest.mark.parametrize(("lacking", "fact"), [("opsctl.sif", "opsctl.sif"), ("apptainer", "apptainer")])
def test_a_node_without_image_or_apptainer_prints_one_line(folder: Path, lacking: str, fact: str) -> None:
    (folder / lacking).unlink()
    child = start(folder, f"{folder}:{os.defpath}", OPSCTL_IMAGE=str(folder / "opsctl.sif"))
    _, err = child.communicate(timeout=30)
    assert child.returncode == 1 and fact in err and err.count("\n") == 1


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("apptainer") is None, reason="no apptainer in PATH: Debian has it in sid alone")
def test_the_image_is_built_and_a_steps_python_starts_the_launcher_in_it(folder: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    image = folder / "built"  # a folder: packing it into a file takes ten minutes of a core
    #: A folder with a Debian's files, where the hub of images is not reached.
    base = os.environ.get("OPSCTL_IMAGE_BASE")
    chosen = {"WHEEL": wheel, **({"BOOTSTRAP": "localimage", "BASE": base} if base else {})}
    given = [word for name, value in chosen.items() for word in ("--build-arg", f"{name}={value}")]
    build = ["apptainer", "build", "--sandbox", *given, str(image), "containers/opsctl.def"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=3000)  # its %test starts the launcher
    (folder / "apptainer").unlink()
    child = start(folder, os.environ["PATH"], OPSCTL_IMAGE=str(image))
    _, err = child.communicate(timeout=300)
    assert child.returncode == 2 and "trainer.launch: error: the following arguments are required" in err, err
    done = subprocess.run(["apptainer", "run", image, "--version"], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("opsctl, version")
