"""`opsctl doctor` and `env build --job` beside a real Slurm."""

from __future__ import annotations

from pathlib import Path

from uv import find_uv_bin

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.printed_json import printed
from tests.unit.run.environments.built_runs import seen_by, write_built_run


def test_the_doctor_knows_the_cluster_and_names_a_partition_that_it_has_not(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    loaded = write_built_run(tmp_path)
    text = loaded.path.read_text()

    def states(partition: str) -> dict[str, tuple[str, str]]:
        loaded.path.write_text(text.replace("[slurm]\n", f'[slurm]\npartition = "{partition}"\n'))
        said = Opsctl(local_cluster, tmp_path)("doctor", "--json")
        assert said.code == 1  # there is no environment yet
        return {one["name"]: (one["state"], one["text"]) for one in printed("doctor", said.out)}

    well = states("main")
    assert well["controller"][0] == well["partition"][0] == well["slurm's commands"][0] == "ok"
    state, words = well["environment script"]
    assert state == "missing" and str(tmp_path / "environment" / "activate.sh") in words
    state, words = states("gpu_p13")["partition"]
    assert state == "missing" and "gpu_p13" in words and "main" in words


def test_an_environment_is_built_by_a_job_and_is_the_next_ones(local_cluster: RunningCluster) -> None:
    with open_folder() as folder:
        loaded = write_built_run(folder, more=f'imports = ["tiny"]\npython = "{_python()}"')
        opsctl = Opsctl(local_cluster, folder)
        command = opsctl.ok("env", "build", "--job").strip()

        def state() -> str:
            (found,) = printed("jobs list", opsctl.ok("jobs", "--json"))
            return str(found["state"])

        wait_until(lambda: state() in ("done", "failed", "lost", "stopped"), 60, "the build to end")
        assert state() == "done", (command, opsctl("jobs", "logs", command))
        assert seen_by(loaded.folder / "environment" / "activate.sh", "import tiny; print(tiny.VERSION)") == "1.0"
        checked = opsctl("env", "check")
        assert (checked.code, checked.out) == (0, "")


def _python() -> str:
    """Beside uv: the Python of these tests."""
    return str(Path(find_uv_bin()).parent / "python")
