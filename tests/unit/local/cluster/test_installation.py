"""Finding Slurm, and the message with the packages to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, SlurmMissing
from opsctl.local.cluster import installation
from opsctl.local.cluster.installation import find_installation

ALL = ("slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "munged")


def make_programs(folder: Path, names: tuple[str, ...], version: str = "slurm-wlm 22.05.8") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho '{version}'\n")
        (folder / name).chmod(0o755)


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a machine whose only folder for programs is `sbin`, which is not in PATH."""
    monkeypatch.setattr(installation, "SYSTEM_FOLDERS", (str(tmp_path / "sbin"),))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_without_slurm_one_line_says_what_to_install_and_what_still_works() -> None:
    with pytest.raises(SlurmMissing) as missing:
        find_installation()
    said = str(missing.value)
    assert "\n" not in said
    assert "apt-get install munge slurm-client slurmctld slurmd" in said
    assert all(fact in said for fact in ("root", "sudo", "plan"))


def test_only_what_is_missing_is_asked_for(empty_machine: Path) -> None:
    make_programs(empty_machine / "sbin", tuple(name for name in ALL if name != "munged"))
    with pytest.raises(SlurmMissing, match=r"apt-get install munge\."):
        find_installation()


def test_accounting_asks_for_its_own_packages(empty_machine: Path) -> None:
    make_programs(empty_machine / "sbin", ALL)
    assert find_installation().version == (22, 5)
    with pytest.raises(SlurmMissing, match=r"mariadb-server slurm-client slurm-wlm-mysql-plugin slurmdbd\."):
        find_installation(accounting=True)


def test_daemons_are_found_outside_path_and_clients_folder_is_told(empty_machine: Path) -> None:
    make_programs(empty_machine / "sbin", ALL)
    found = find_installation()
    assert found["slurmctld"] == str(empty_machine / "sbin" / "slurmctld")
    assert found.bin_folders == (str(empty_machine / "sbin"),)


def test_clients_in_path_need_nothing_put_before_it(empty_machine: Path) -> None:
    make_programs(empty_machine / "bin", ("sbatch", "scontrol", "sinfo"))
    make_programs(empty_machine / "sbin", ("slurmctld", "slurmd", "munged"))
    assert find_installation().bin_folders == ()


def test_a_prefix_is_taken_whole_and_never_mixed_with_the_machines_own(empty_machine: Path) -> None:
    make_programs(empty_machine / "sbin", ALL)
    prefix = empty_machine / "opt"
    make_programs(prefix / "bin", ("sbatch", "scontrol", "sinfo"))
    with pytest.raises(SlurmMissing, match=f"slurmctld, slurmd .*{prefix}/bin"):
        find_installation(str(prefix))
    make_programs(prefix / "sbin", ("slurmctld", "slurmd"), "slurm 25.11.1")
    found = find_installation(str(prefix))
    assert found.version == (25, 11)
    assert found["slurmd"] == str(prefix / "sbin" / "slurmd")
    assert found["munged"] == str(empty_machine / "sbin" / "munged")
    assert found.bin_folders == (str(prefix / "bin"), str(prefix / "sbin"))
    assert (found.library_folders, found.plugin_folder, found.stepd) == ((), "", "")
    (prefix / "lib" / "slurm").mkdir(parents=True)
    make_programs(prefix / "sbin", ("slurmstepd",))
    found = find_installation(str(prefix))
    assert found.library_folders == (str(prefix / "lib"), str(prefix / "lib" / "slurm"))
    assert (found.plugin_folder, found.stepd) == (found.library_folders[1], str(prefix / "sbin" / "slurmstepd"))


def test_a_slurmctld_that_does_not_run_is_said_so(empty_machine: Path) -> None:
    make_programs(empty_machine / "sbin", ALL)
    program = empty_machine / "sbin" / "slurmctld"
    program.write_text("#!/bin/sh\necho 'libmunge.so.2: cannot open shared object file' >&2\nexit 127\n")
    with pytest.raises(OpsctlError, match=r"libmunge\.so\.2: cannot open"):
        find_installation()
