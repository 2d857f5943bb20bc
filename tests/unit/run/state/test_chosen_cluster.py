"""Test which Slurm is meant, and what of that a run's folder may say."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsctl.core.errors import RunFileError, SlurmError, SlurmUnreachable, UsageError
from opsctl.core.files.state_files import write_state
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chosen_cluster import (
    ClusterRecord,
    choose_cluster,
    cluster_to_submit_to,
    find_cluster,
    is_same_cluster,
    read_record,
    record_of,
)
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import NO_CONF, Cluster
from opsctl.slurm.commands import CommandClient
from tests.facts import missing


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    for name in ("SLURM_CONF", "OPSCTL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    paths = RunPaths(tmp_path / "output")
    paths.state.mkdir(parents=True)
    return paths


def conf_in(folder: Path, **more: Any) -> str:
    """A slurm.conf, with a local cluster's description beside it if there is more to say; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=lab\n")
    if more:
        (folder / "cluster.json").write_text(json.dumps({"name": "lab", "slurm_conf": str(conf), **more}))
    return str(conf)


def record(paths: RunPaths, **values: str | None) -> None:
    write_state(paths.output, paths.cluster, ClusterRecord(**values))


def test_before_the_first_submit_it_is_what_this_shell_is_set_up_for(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_cluster(None, paths) == Cluster()
    monkeypatch.setenv("SLURM_CONF", "/x/slurm.conf")
    assert choose_cluster(None, paths) == Cluster(slurm_conf="/x/slurm.conf")


def test_an_exported_configuration_is_remembered_and_asked_from_a_shell_without_it(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = conf_in(tmp_path / "lab")
    monkeypatch.setenv("SLURM_CONF", conf)
    write_state(paths.output, paths.cluster, record_of(choose_cluster(None, paths), Asked()))
    for other in (None, conf_in(tmp_path / "elsewhere")):
        monkeypatch.delenv("SLURM_CONF")
        if other:
            monkeypatch.setenv("SLURM_CONF", other)
        assert choose_cluster(None, paths).slurm_conf == conf
        monkeypatch.setenv("SLURM_CONF", "")
    assert read_record(paths) == ClusterRecord("lab", "ctl", conf)


def test_a_submit_goes_where_this_shell_points_before_where_the_run_was(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = conf_in(tmp_path / "here"), conf_in(tmp_path / "there")
    record(paths, name="lab", controller="c", slurm_conf=there)
    assert cluster_to_submit_to(None, paths).slurm_conf == there
    monkeypatch.setenv("SLURM_CONF", here)
    assert cluster_to_submit_to(None, paths).slurm_conf == here
    assert choose_cluster(None, paths).slurm_conf == there


def test_a_run_on_the_machines_own_slurm_is_asked_for_there_whatever_is_exported(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(paths, name="lab", controller="ctl")
    monkeypatch.setenv("SLURM_CONF", "/x/slurm.conf")
    chosen = choose_cluster(None, paths)
    assert chosen.slurm_conf == NO_CONF
    assert "SLURM_CONF" not in chosen.environment()


def test_programs_that_an_old_record_names_are_passed_over(paths: RunPaths, tmp_path: Path) -> None:
    conf = conf_in(tmp_path / "lab")
    old = {"name": "lab", "slurm_conf": conf, "bin_folders": ["/trap"], "library_folders": ["/trap"]}
    paths.cluster.write_text(json.dumps(old))
    assert choose_cluster(None, paths) == Cluster("lab", conf)


def test_a_record_holds_no_programs(paths: RunPaths) -> None:
    cluster = Cluster("lab", "/x/slurm.conf", ("/x/bin",), ("/x/lib",))
    write_state(paths.output, paths.cluster, record_of(cluster, Asked()))
    assert set(json.loads(paths.cluster.read_text())) == {"name", "controller", "slurm_conf"}


def test_a_local_cluster_of_this_account_is_reached_with_its_own_programs(paths: RunPaths, tmp_path: Path) -> None:
    conf = conf_in(tmp_path / "home" / "opsctl" / "clusters" / "lab", bin_folders=["/opt/slurm/bin"])
    record(paths, name="lab", controller="c", slurm_conf=conf)
    assert choose_cluster(None, paths) == Cluster("lab", conf, ("/opt/slurm/bin",))


def test_a_cluster_that_only_root_and_we_can_change_brings_its_programs(paths: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "lab" / "bin").mkdir(parents=True)
    conf = conf_in(tmp_path / "lab", bin_folders=[str(tmp_path / "lab" / "bin")])
    record(paths, name="lab", controller="c", slurm_conf=conf)
    assert choose_cluster(None, paths).bin_folders == (str(tmp_path / "lab" / "bin"),)
    (tmp_path / "lab" / "bin").chmod(0o777)
    assert choose_cluster(None, paths) == Cluster("lab", conf)


@pytest.mark.parametrize("what", ["slurm.conf", "."])
def test_a_configuration_that_others_can_write_is_not_used(paths: RunPaths, tmp_path: Path, what: str) -> None:
    conf = conf_in(tmp_path / "lab it's")
    record(paths, name="lab", controller="ctl", slurm_conf=conf)
    place = Path(conf).parent / what
    place.chmod(place.stat().st_mode | stat.S_IWOTH)
    chosen = choose_cluster(None, paths)
    assert chosen.slurm_conf == NO_CONF
    with pytest.raises(SlurmUnreachable) as caught:
        client_for(chosen).jobs()
    said = str(caught.value)
    assert missing(said, "lab", "ctl", conf, "export SLURM_CONF='", "--cluster") == [] and "\n" not in said
    with pytest.raises(SlurmUnreachable, match="not contacted"):
        client_for(chosen).submit("")


def test_who_exports_the_very_file_has_said_that_it_is_trusted(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = conf_in(tmp_path / "lab")
    record(paths, name="lab", controller="ctl", slurm_conf=conf)
    Path(conf).chmod(0o666)
    monkeypatch.setenv("SLURM_CONF", conf)
    assert choose_cluster(None, paths) == Cluster(slurm_conf=conf)


def test_a_link_to_what_is_ours_is_followed_once(paths: RunPaths, tmp_path: Path) -> None:
    conf = conf_in(tmp_path / "lab")
    (tmp_path / "link").symlink_to(tmp_path / "lab")
    record(paths, name="lab", controller="ctl", slurm_conf=str(tmp_path / "link" / "slurm.conf"))
    assert choose_cluster(None, paths).slurm_conf == conf


@pytest.mark.parametrize("conf", ["slurm.conf", "/gone/slurm.conf", "/nul\0"])
def test_a_configuration_that_does_not_exist_is_not_used(paths: RunPaths, conf: str) -> None:
    record(paths, name="lab", controller="ctl", slurm_conf=conf)
    assert choose_cluster(None, paths).out_of_bounds


def test_a_damaged_record_is_no_reason_to_ask_another_slurm(paths: RunPaths) -> None:
    paths.cluster.write_text("null")
    chosen = choose_cluster(None, paths)
    with pytest.raises(SlurmUnreachable, match=rf"cannot read {paths.cluster}: .*remove it"):
        client_for(chosen).jobs()


def test_a_named_folder_that_others_can_write_is_refused_and_one_of_the_user_is_not(
    paths: RunPaths, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / "opsctl" / "clusters" / "lab"
    conf_in(folder, bin_folders=["/opt/slurm/bin"])
    assert find_cluster("lab").bin_folders == ("/opt/slurm/bin",)
    (tmp_path / "bin").mkdir()
    conf_in(folder, bin_folders=[str(tmp_path / "bin")])
    assert find_cluster(str(folder)).name == "lab"
    (folder.parent.parent / "other").mkdir()
    folder = folder.rename(folder.parent.parent / "other" / "lab")
    (tmp_path / "bin").chmod(0o777)
    with pytest.raises(UsageError, match=rf"{tmp_path}/bin .*SLURM_CONF"):
        find_cluster(str(folder))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("lab", "c1", None), ("lab", "c1", "/etc/slurm/slurm.conf"), True),
        (("lab", "c1", "/a"), ("lab", "c1", "/b"), True),
        (("lab", "c1", "/a"), ("lab", "c2", "/b"), False),
        (("lab", "c1", None), ("lab", None, None), True),
        (("lab", None, "/a"), ("lab", None, "/b"), False),
        ((None, None, None), (None, None, None), True),
    ],
)
def test_clusters_are_told_apart_by_file_or_by_name_and_controller(
    one: tuple[str, str, str], other: tuple[str, str, str], same: bool
) -> None:
    assert is_same_cluster(ClusterRecord(*one), ClusterRecord(*other)) is same


class Asked(CommandClient):
    """A Slurm as far as its configuration goes."""

    def __init__(self) -> None:
        super().__init__(Cluster(), None)

    def configuration(self) -> dict[str, str]:
        return {"ClusterName": "lab", "SlurmctldHost[0]": "ctl(10.0.0.1)", "SLURM_CONF": "/its/own"}


def test_what_slurm_does_not_tell_is_left_open() -> None:
    class Closed(Asked):
        def configuration(self) -> dict[str, str]:
            raise SlurmError("Slurm refused to show its configuration")

    assert record_of(Cluster("lab"), Closed()) == ClusterRecord("lab", None, None)


def test_the_environment_of_a_cluster_is_what_was_there_and_it() -> None:
    assert msgspec.to_builtins(Cluster("x")) == {"name": "x"}
    assert Cluster(slurm_conf="/x").environment({"SLURM_CONF": "/y"})["SLURM_CONF"] == "/x"
    assert Cluster().environment({"SLURM_CONF": "/y"})["SLURM_CONF"] == "/y"


def test_a_profile_chooses_the_backend_for_slurm(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(paths.output))
    monkeypatch.delenv("OPSCTL_SLURM_BACKEND", raising=False)
    profile = paths.output / "opsctl" / "profile.toml"
    profile.parent.mkdir()
    assert type(client_for(choose_cluster(None, paths))) is CommandClient
    profile.write_text('[cluster]\nbackend = "pyslurm"\n')
    assert choose_cluster(None, paths).backend == cluster_to_submit_to(None, paths).backend == "pyslurm"
    assert type(client_for(choose_cluster(None, paths))).__name__ == "PyslurmClient"
    monkeypatch.setenv("OPSCTL_SLURM_BACKEND", "commands")
    assert type(client_for(choose_cluster(None, paths))) is CommandClient
    monkeypatch.setenv("OPSCTL_SLURM_BACKEND", "rest")
    with pytest.raises(UsageError, match=r"'rest'.*commands.*pyslurm"):
        client_for(choose_cluster(None, paths))
    profile.write_text('[cluster]\nbackend = "slurmrestd"\n')
    with pytest.raises(RunFileError, match=r"backend = .*slurmrestd.*commands.*pyslurm"):
        choose_cluster(None, paths)
