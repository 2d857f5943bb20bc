"""Loading run files: values, precedence, and one line for each error."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config import profile
from opsctl.run.config.load import expanded_file, load_run_file
from tests.facts import missing
from tests.unit.run.config.run_files import VALID, changed, loaded, refusal, written


def test_a_valid_file_gives_its_values_and_the_defaults(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    assert run.file.run.name == "small"
    assert run.file.slurm.nodes == 4
    assert run.file.slurm.exit_margin == "10:00"
    assert run.file.trainer["train_samples"] == 5120
    assert run.folder == tmp_path
    assert run.paths.output == tmp_path / "output"
    assert run.sha256 == hashlib.sha256(VALID.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ("nodes = 4", "node = 4", ("[slurm] node ", "nodes")),
        ("nodes = 4", 'nodes = "4"', ('[slurm] nodes = "4"', "whole number")),
        ("nodes = 4", "nodes = true", ("[slurm] nodes = true", "whole number")),
        ("nodes = 4", "nodes = 0", ("[slurm] nodes = 0", "1 to 100000")),
        ("nodes = 4\n", "", ("[slurm] nodes", "missing")),
        ('name = "small"', "", ("[run] name", "missing")),
        ('name = "small"', 'name = "small"\npublish = "me"', ('[run] publish = "me"', '"group"', '"owner"')),
        ("[slurm]", "[slrum]", ("[slrum]", "[slurm]")),
        ("[slurm]", "[zzz]\nx = 1\n[slurm]", ("[zzz]", "[run], [slurm], [array]")),
        ("[run]", 'name = "x"\n[run]', ("name", "[run]")),
        ("[run]", "expect = 1\n[run]", ("expect = 1", "[expect]")),
        ("num_layers = 4", "num_layer = 4", ("[trainer] num_layer ", "num_layers")),
        ("num_layers = 4", "num-layers = 4", ("[trainer] num-layers", "num_layers")),
        ("num_layers = 4", 'num_layers = "4"', ('[trainer] num_layers = "4"', "whole number")),
        ("num_layers = 4", "num_layers = 0", ("[trainer] num_layers = 0", "at least 1")),
        ("num_layers = 4", "num_layers = 4.0", ("[trainer] num_layers = 4.0", "whole number")),
        ("lr = 3e-3", "lr = nan", ("[trainer] lr = NaN", "finite")),
        ("train_samples = 5_120", "train_samples = 99_999_999_999_999_999", ("train_samples", "9007199254740992")),
        ("num_layers = 4", "save_interval = 4", ("[trainer] save_interval", "[checkpoints]")),
        ("num_layers = 4", 'save = "x"', ("[trainer] save:", "opsctl")),
        ("num_layers = 4", "fp32_residual_connection = true", ("[trainer] fp32_residual_connection",)),
        ("num_layers = 4", "exit_margin = 4", ("[trainer] exit_margin", "[slurm]")),
        ("[data]", "[env]\nX = 1\n[data]", ("[env] X = 1", "quotes")),
        ("[data]", '[env]\n"A B" = "1"\n[data]', ("[env]", "A B")),
        ("[data]", '[env]\nHF_TOKEN = "hf_abc"\n[data]', ("[env] HF_TOKEN", "secret")),
        ("[data]", '[env]\nRANK = "1"\n[data]', ("[env] RANK", "Slurm")),
        ("[data]", '[array]\ntasks = "1-3%1; rm"\n[data]', ('[array] tasks = "1-3%1; rm"', "1-10%1")),
        ("[data]", '[array]\ntasks = "3-1"\n[data]', ('[array] tasks = "3-1"', "empty")),
        ("[data]", '[array]\ntasks = "1-3%2"\n[data]', ('[array] tasks = "1-3%2"', "2 tasks")),
        ("[data]", "[expect]\nsave_seconds = 0\n[data]", ("[expect] save_seconds = 0.0", "above 0")),
    ],
)
def test_an_error_is_one_line_that_names_the_key_and_the_remedy(
    tmp_path: Path, old: str, new: str, facts: tuple[str, ...]
) -> None:
    assert missing(refusal(tmp_path, changed(old, new)), *facts) == []


@pytest.mark.parametrize(
    "name", ["", "a b", "-x", ".hidden", "$(touch x)", "a/b", 'quo"te', "x" * 129, "ünïcode", "a\\nb", "`id`"]
)
def test_hostile_run_names_are_refused(tmp_path: Path, name: str) -> None:
    line = refusal(tmp_path, changed('name = "small"', f"name = '{name}'"))
    assert line.startswith("[run] name = ")


@pytest.mark.parametrize("output", ['"a\\nb"', '"a\\u0000b"', '""'])
def test_an_output_folder_that_no_line_can_name_is_refused(tmp_path: Path, output: str) -> None:
    assert "[run] output" in refusal(tmp_path, changed('name = "small"', f'name = "small"\noutput = {output}'))


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ("--job-name=x", "--job-name"),
        ("--dependency=1", "--dependency"),
        ("--output=x", "--output"),
        ("--time=1", "--time"),
        ("--comment=x", "--comment"),
        ("--signal=USR1", "--signal"),
        ("--arr=1-2", "--array"),  # sbatch takes abbreviations
        ("--nodes=2", "[slurm] nodes"),
        ("--hint=a b", "--hint=a b"),
        ("hint", "hint"),
        ("-w", "-w"),
        ("--mail-user=x\\n#SBATCH --uid=0", "--mail-user"),
        ("--hint='$(id)'", "$(id)"),
    ],
)
def test_extra_sbatch_lines_cannot_replace_options_that_opsctl_sets(tmp_path: Path, extra: str, named: str) -> None:
    line = refusal(tmp_path, changed("nodes = 4", f'nodes = 4\nextra = ["{extra}"]'))
    assert line.startswith("[slurm] extra ") and named in line


@pytest.mark.parametrize("extra", ["--hint=nomultithread", "--mem=0", "--exclusive", "--mail-type=END", "--switches=1"])
def test_other_sbatch_lines_are_let_through(tmp_path: Path, extra: str) -> None:
    assert loaded(tmp_path, changed("nodes = 4", f'nodes = 4\nextra = ["{extra}"]')).file.slurm.extra == (extra,)


@pytest.mark.parametrize("line", ["spare = -1", "spare = 1001", 'probe = "thorough"', 'probe = ""'])
def test_spare_nodes_and_probes_are_numbers_and_words_that_there_are(tmp_path: Path, line: str) -> None:
    assert f"[slurm] {line}: expected " in refusal(tmp_path, changed("nodes = 4", f"nodes = 4\n{line}"))


def test_nodes_are_tested_where_there_are_spare_ones_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    said = {"": "off", "spare = 1": "quick", 'spare = 1\nprobe = "off"': "off", 'probe = "full"': "full"}
    for lines, effort in said.items():
        assert loaded(tmp_path, changed("nodes = 4", f"nodes = 4\n{lines}")).file.slurm.effort == effort


@pytest.mark.parametrize("value", ["a b", "-x", "a'b", "#x", "", "a\\tb"])
def test_values_for_sbatch_are_single_words(tmp_path: Path, value: str) -> None:
    assert "[slurm] partition" in refusal(tmp_path, changed("nodes = 4", f'nodes = 4\npartition = "{value}"'))


@pytest.mark.parametrize(
    ("key", "value"),
    [("time", "20h"), ("time", "0"), ("exit_margin", "20:00:00"), ("exit_margin", "0"), ("time", "UNLIMITED")],
)
def test_durations_are_slurms_and_the_margin_fits_in_the_limit(tmp_path: Path, key: str, value: str) -> None:
    text = changed(
        'time = "20:00:00"', f'time = "{value}"' if key == "time" else f'time = "20:00:00"\n{key} = "{value}"'
    )
    assert refusal(tmp_path, text).startswith(f"[slurm] {key} = ")


def test_toml_errors_say_line_and_column(tmp_path: Path) -> None:
    line = refusal(tmp_path, changed("nodes = 4", "nodes = = 4"))
    assert line.startswith("not TOML: ") and "line 5, column 9" in line


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"[run]\nname = '\xff'\n")
    with pytest.raises(RunFileError, match=r"line 2: not UTF-8"):
        load_run_file(path, {})


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "none.toml" if kind == "missing" else tmp_path
    with pytest.raises(RunFileError, match=re.escape(str(path))):
        load_run_file(path, {})


class TestVariables:
    TEXT = changed('name = "small"', 'name = "small"\noutput = "${SCRATCH}/runs"')

    def test_loading_keeps_them_and_expanding_replaces_them(self, tmp_path: Path) -> None:
        text = changed("data/corpus", "${WORK}/corpus", self.TEXT) + '\n[env]\nCACHE = "${WORK}/models"\n'
        run = loaded(tmp_path, text, SCRATCH="/scratch", WORK="/work dir")
        assert run.file.data["data_path"] == "${WORK}/corpus_text_document"
        assert run.paths.output == Path("/scratch/runs")
        expanded = expanded_file(run)
        assert expanded.data["data_path"] == "/work dir/corpus_text_document"
        assert expanded.env["CACHE"] == "/work dir/models"
        assert expanded.run.output == "/scratch/runs"
        assert expanded_file(replace(run, file=expanded)) == expanded

    def test_an_unset_variable_is_one_line_that_names_the_key(self, tmp_path: Path) -> None:
        run = loaded(tmp_path, self.TEXT)
        for use in (lambda: run.paths, lambda: expanded_file(run)):
            with pytest.raises(RunFileError, match=r"\[run\] output: .*\$\{SCRATCH\}.*export SCRATCH"):
                use()

    def test_where_a_secret_is_may_be_said(self, tmp_path: Path) -> None:
        for where in ("/secure/token", "${HOME}/token"):
            run = loaded(tmp_path, VALID + f'\n[env]\nHF_TOKEN_PATH = "{where}"\n')
            assert run.file.env["HF_TOKEN_PATH"] == where

    def test_plain_values_of_env_count_as_set(self, tmp_path: Path) -> None:
        run = loaded(tmp_path, self.TEXT + '\n[env]\nSCRATCH = "/from/env"\n', SCRATCH="/from/shell")
        assert run.paths.output == Path("/from/env/runs")

    def test_relative_data_becomes_absolute_from_the_run_files_folder(self, tmp_path: Path) -> None:
        text = changed('data_path = "data/corpus_text_document"', 'data_path = [0.3, "a", "0.7", "../b"]')
        assert expanded_file(loaded(tmp_path, text)).data["data_path"] == [
            0.3,
            f"{tmp_path}/a",
            "0.7",
            f"{tmp_path.parent}/b",
        ]

    def test_prefixes_inside_weighted_groups_become_absolute(self, tmp_path: Path) -> None:
        text = changed("data_path = ", 'valid_weighted_split_paths = ["v: 0.5 0:0.5 x, 0.5 0:1 /y"]\n#')
        groups = expanded_file(loaded(tmp_path, text)).data["valid_weighted_split_paths"]
        assert groups == [f"v: 0.5 0:0.5 {tmp_path}/x, 0.5 0:1 /y"]

    def test_a_group_that_cannot_be_read_is_left_for_the_check_to_name(self, tmp_path: Path) -> None:
        text = changed("data_path = ", 'valid_weighted_split_paths = ["v: 0.5 0:0.5 x, 0.5 0-1 y"]\n#')
        groups = expanded_file(loaded(tmp_path, text)).data["valid_weighted_split_paths"]
        assert groups == ["v: 0.5 0:0.5 x, 0.5 0-1 y"]


class TestProfiles:
    def test_the_run_file_wins_over_the_persons_profile_and_that_over_the_systems(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        system, home = tmp_path / "etc.toml", tmp_path / "config"
        (home / "opsctl").mkdir(parents=True)
        system.write_text('[slurm]\naccount = "a-system"\npartition = "p-system"\nqos = "q-system"\n')
        (home / "opsctl" / "profile.toml").write_text('[slurm]\npartition = "p-mine"\nqos = "q-mine"\n')
        monkeypatch.setattr(profile, "SYSTEM_PROFILE", system)
        run = loaded(tmp_path, changed("nodes = 4", 'nodes = 4\nqos = "q-run"'), XDG_CONFIG_HOME=str(home))
        assert (run.file.slurm.account, run.file.slurm.partition, run.file.slurm.qos) == ("a-system", "p-mine", "q-run")

    def test_the_environment_wins_over_the_run_file(self, tmp_path: Path) -> None:
        run = loaded(
            tmp_path, changed("nodes = 4", 'nodes = 4\nqos = "q-run"'), OPSCTL_QOS="q-env", OPSCTL_ACCOUNT="a-env"
        )
        assert (run.file.slurm.qos, run.file.slurm.account) == ("q-env", "a-env")

    @pytest.mark.parametrize(
        ("text", "facts"),
        [
            ("[slurm]\npartitoin = 'x'\n", ("[slurm] partitoin ", "partition")),
            ("[run]\nname = 'x'\n", ("[run]",)),
            ("[slurm]\nnodes = '4'\n", ('[slurm] nodes = "4"', "whole number")),
            ("[cron]\ntime = 'soon'\n", ('[cron] time = "soon"',)),
            ("[alerts]\nquiet = '7-22'\n", ("[alerts] quiet", "7-22")),
        ],
    )
    def test_a_wrong_profile_is_named(self, tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
        path = tmp_path / "config" / "opsctl" / "profile.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        with pytest.raises(RunFileError) as caught:
            load_run_file(written(tmp_path, VALID), {"XDG_CONFIG_HOME": str(tmp_path / "config")})
        assert str(caught.value).startswith(f"{path}: ") and missing(str(caught.value), *facts) == []


def test_what_some_editors_put_before_the_text_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode())
    assert load_run_file(path, {}).file.run.name == "small"


def test_a_fifo_in_place_of_the_run_file_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.toml")
    with pytest.raises(RunFileError, match=re.escape(str(tmp_path / "run.toml"))):
        load_run_file(tmp_path / "run.toml", {})
