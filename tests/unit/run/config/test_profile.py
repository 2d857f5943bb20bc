"""Profiles: what a cluster's runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.profile import cron_table, jobs_table, watch_table
from tests.facts import missing
from tests.unit.run.config.run_files import changed, loaded, refusal


def environment(folder: Path, text: str) -> dict[str, str]:
    (folder / "opsctl").mkdir(parents=True)
    (folder / "opsctl" / "profile.toml").write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)}


def test_the_run_file_wins_over_the_profile_key_by_key_also_with_a_default(tmp_path: Path) -> None:
    around = environment(tmp_path / "config", "[watch]\nmust_run = true\nspare_nodes = 3\n")
    run = loaded(tmp_path, changed("[trainer]", "[watch]\nmust_run = false\n\n[trainer]"), **around)
    watch = watch_table(run.file, around)
    assert (watch.must_run, watch.spare_nodes) == (False, 3)


def test_what_a_profile_says_is_not_the_runs_to_publish(tmp_path: Path) -> None:
    around = environment(tmp_path / "config", '[alerts]\nchannels = ["file:/home/ana/.slack"]\n')
    assert loaded(tmp_path, changed("nodes = 4", "nodes = 4"), **around).file.alerts == {}


def test_the_cron_table_is_for_profiles_only(tmp_path: Path) -> None:
    around = environment(tmp_path / "config", '[cron]\npartition = "prepost"\n')
    assert (cron_table(around).partition, cron_table(around).nice) == ("prepost", 10_000)
    line = refusal(tmp_path, changed("[trainer]", '[cron]\npartition = "x"\n\n[trainer]'))
    assert missing(line, "[cron]", "profile") == []


def test_the_jobs_table_is_for_profiles_only(tmp_path: Path) -> None:
    around = environment(tmp_path / "config", '[jobs]\npartition = "prepost"\ntime = "20:00:00"\n')
    table = jobs_table(around)
    assert (table.partition, table.internet_partition, table.time) == ("prepost", None, "20:00:00")
    line = refusal(tmp_path, changed("[trainer]", '[jobs]\npartition = "x"\n\n[trainer]'))
    assert missing(line, "[jobs]", "profile") == []


@pytest.mark.parametrize("text", ["[jobs]\nnice = -1\n", "[jobs]\ninternet_partition = ' '\n", "[jobs]\ntime = '0'\n"])
def test_a_wrong_table_of_jobs_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunFileError, match=r"\[jobs\]"):
        jobs_table(environment(tmp_path / "config", text))


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("[watch]\nwait_most = 'long'\n", "[watch] wait_most"),
        ("[watch]\nmust_run = 1\n", "[watch] must_run = 1"),
        ("[watch]\nfull_percent = 0\n", "[watch] full_percent = 0"),
        ("[alerts]\nquiet = '22-7'\n", "[alerts] quiet"),
        ("[alerts]\nremind_after = '0'\n", "[alerts] remind_after"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, table: str, line: str) -> None:
    assert line in refusal(tmp_path, changed("[trainer]", f"{table}\n[trainer]"))


@pytest.mark.parametrize("text", ["[cron]\nnice = -1\n", "[cron]\npartition = ' '\n"])
def test_a_wrong_cron_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunFileError, match=r"\[cron\]"):
        cron_table(environment(tmp_path / "config", text))
