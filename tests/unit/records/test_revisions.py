import json
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.errors import OpsctlError
from opsctl.records import revisions
from opsctl.records.run_view import view
from opsctl.runs.load import LoadedRun, load_run_file
from opsctl.shipped import templates_folder
from tests.tiny_run import expand, write_run
from trainer.recipe.options import OptionsError

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((templates_folder() / "examples").glob("*.toml"))


def loaded(folder: Path, **changes: object) -> LoadedRun:
    return load_run_file(write_run(folder, **changes), {"HOME": "/nowhere"})  # type: ignore[arg-type]


def publish(run: LoadedRun, note: str = "") -> revisions.Revision:
    return revisions.publish(expand(run), note)


def names(run: LoadedRun) -> list[str]:
    """Of all revisions, oldest first."""
    return sorted(path.name for path in run.paths.revisions.iterdir())


def test_a_revision_holds_all_that_a_task_needs(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    revision = publish(run, note="why")
    assert sorted(path.name for path in revision.folder.iterdir()) == [
        "engine.json",
        "revision.json",
        "run.json",
        "step.sh",
        "trainer-arguments.json",
    ]
    assert revision.folder.name == f"0001-{revision.digest[:12]}"
    assert revision.file.run.output == str(tmp_path / "output")
    assert revision.trainer_arguments[:2] == ["--num-layers", "2"]
    assert json.loads((revision.folder / "engine.json").read_text())["train_batch_size"] == 8
    assert revision.step_script.startswith("#!/bin/bash\n") and "export OMP_NUM_THREADS=" in revision.step_script
    assert revision.created_at.tzinfo is not None
    assert (revision.note, revision.run_file, revision.run_file_sha256) == ("why", run.path, run.sha256)
    assert revisions.newest(run.paths) == revision


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_published_is_read_back(tmp_path: Path, example: Path) -> None:
    (tmp_path / "run.toml").write_text(example.read_text())
    run = expand(load_run_file(tmp_path / "run.toml", {"six_ALL_CCFRWORK": "/work"}))
    revisions.publish(run, "n\u00f6te")
    found = revisions.newest(run.paths)
    assert found is not None and found.note == "n\u00f6te" and found.run_file_sha256 == run.sha256
    assert (found.file, tuple(found.trainer_arguments), found.options()) == (run.file, run.arguments, run.options)


def test_publishing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    run = loaded(tmp_path)
    run.path.write_text("# only a comment\n" + run.path.read_text())
    assert publish(load_run_file(run.path, {})) == first
    assert names(run) == [first.name]


def test_each_change_is_a_new_revision_and_the_old_stays(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    second = publish(loaded(tmp_path, lr="2e-3"))
    assert (first.number, second.number) == (1, 2)
    assert first.digest != second.digest
    assert names(loaded(tmp_path)) == [first.name, second.name]


def test_going_back_to_old_content_is_a_revision_of_its_own(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    publish(loaded(tmp_path, lr="2e-3"))
    third = publish(loaded(tmp_path))
    assert third.number == 3 and third.digest == first.digest


def test_a_withdrawn_revision_is_gone(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    revisions.withdraw(publish(loaded(tmp_path, lr="2e-3")))
    assert revisions.newest(loaded(tmp_path).paths) == first
    assert [path.name for path in loaded(tmp_path).paths.revisions.iterdir()] == [first.name]


def published_on_a_small_disk(folder: Path, files: int) -> tuple[str, list[str]]:
    """Publish where the disk, a real one in memory, has room for so many files; what was refused, what is there then.

    Needs a kernel that lets a user mount in a namespace of his own.
    """
    own_namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own_namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel gives users no namespaces of their own")
    output = loaded(folder).paths.output
    output.mkdir()
    folders = 4  # of the disk itself, .opsctl, revisions, and the revision that is being built
    mount = f'mount -t tmpfs -o mode=700,nr_inodes={folders + files} none "$0" && exec "$@"'
    script = f"""
import json, pathlib
from opsctl.errors import OpsctlError
from tests.unit.records.test_revisions import loaded, publish
run, said = loaded(pathlib.Path({str(folder)!r})), ""
try:
    publish(run)
except OpsctlError as error:
    said = str(error)
print(json.dumps([said, [path.name for path in run.paths.revisions.iterdir()]]))
"""
    words = [*own_namespace, "sh", "-c", mount, str(output), sys.executable, "-c", script]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    said, left = json.loads(ran.stdout)
    return said, left


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_full_disk_at_any_file_leaves_nothing(tmp_path: Path, failing: int) -> None:
    said, left = published_on_a_small_disk(tmp_path, failing - 1)
    assert said.startswith("cannot publish a revision: no space left at ")
    assert "; nothing was changed" in said
    assert left == []


def test_a_disk_with_room_for_each_file_takes_the_revision(tmp_path: Path) -> None:
    said, left = published_on_a_small_disk(tmp_path, 5)
    assert said == "" and [name[:5] for name in left] == ["0001-"]


def test_what_a_killed_publish_left_does_not_count(tmp_path: Path) -> None:
    paths = loaded(tmp_path).paths
    (paths.revisions / ".new-host-1").mkdir(parents=True)
    assert revisions.newest(paths) is None
    assert publish(loaded(tmp_path)).number == 1


def test_the_run_file_differs_where_a_value_does_not_where_a_comment_does(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    revision = publish(run)
    run.path.write_text("# a comment\n" + run.path.read_text())
    assert revisions.differs_from_published(load_run_file(run.path, {}), revision) == []
    edited = loaded(tmp_path, lr="2e-3", nodes=4, slurm='constraint = "fast"')
    assert sorted(revisions.differs_from_published(edited, revision)) == [
        "slurm.constraint",
        "slurm.nodes",
        "trainer.lr",
    ]


def test_the_tenth_thousandth_revision_is_newer_than_the_one_before(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    about = json.loads((first.folder / "revision.json").read_text())
    for number in (9999, 10000):
        folder = first.folder.with_name(f"{number:04d}-{first.digest[:12]}")
        folder.mkdir()
        (folder / "revision.json").write_text(json.dumps({**about, "number": number}))
    found = revisions.newest(loaded(tmp_path).paths)
    assert found is not None and found.number == 10000


def test_a_broken_revision_is_named(tmp_path: Path) -> None:
    revision = publish(loaded(tmp_path))
    (revision.folder / "revision.json").write_text("{")
    with pytest.raises(OpsctlError, match=f"cannot read {revision.folder}/revision.json"):
        revisions.newest(loaded(tmp_path).paths)


def test_a_chains_own_arguments_are_understood_as_the_trainer_does(tmp_path: Path) -> None:
    revision = publish(loaded(tmp_path))
    asked = revision.options(["--train-sam", "100", "--exit_dur=5"])
    assert (asked.train_samples, asked.exit_duration_in_mins, asked.global_batch_size) == (100, 5, 8)
    assert asked.kill_switch_path == str(tmp_path / "output" / "kill-switch")
    assert revision.options().train_samples == 4000


def test_what_another_release_published_is_refused_by_name_and_no_reason_to_see_nothing(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    revision = publish(run)
    words = [*revision.trainer_arguments, "--of-another-release"]
    (revision.folder / "trainer-arguments.json").write_text(json.dumps(words))
    with pytest.raises(OptionsError, match="--of-another-release is no option of the trainer"):
        published(run).options()
    assert view(str(run.path)).options is None


@pytest.mark.parametrize("text", ["{", '{"run": {"name": "x"}, "slurm": {}, "of_another_release": {}}'])
def test_a_published_run_that_cannot_be_read_is_one_line(tmp_path: Path, text: str) -> None:
    run = loaded(tmp_path)
    (publish(run).folder / "run.json").write_text(text)
    with pytest.raises(OpsctlError, match=r"run\.json: .*; opsctl revise publishes a new revision"):
        published(run).options()


def published(run: LoadedRun) -> revisions.Revision:
    """The newest revision, as a command that starts now reads it."""
    found = revisions.newest(run.paths)
    assert found is not None
    return found
