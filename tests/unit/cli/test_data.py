"""`opsctl data prepare`: the same options as the trainer's module, started without importing it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from opsctl.cli import data, main
from opsctl.cli.long_command import JOB_OPTIONS
from tests.printed_json import printed
from tests.unit.cli.called import forked
from trainer.data import prepare as trainer_prepare
from trainer.formats.distribution import install_command

OPSCTL = [sys.executable, "-m", "opsctl", "data", "prepare"]


def test_it_has_the_options_of_the_trainers_module() -> None:
    ours = {name for option in data.prepare.params for name in (*option.opts, *option.secondary_opts) if name[0] == "-"}
    theirs = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", trainer_prepare.parser().format_usage().partition(" [")[2]))
    assert ours - JOB_OPTIONS - {"-q", "--quiet"} == theirs - {"-h", "--steps-to"}


def test_it_prepares_a_folder_and_passes_every_option_on(tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "tests").mkdir(parents=True)
    (source / "a.py").write_text("value = 1\n" * 30)
    (source / "b.txt").write_text("left out")
    (source / "tests" / "t.py").write_text("left out")
    # A folder named trainer, and one that looks like an option: neither is taken for what it is not.
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("raise SystemExit(9)")
    words = ["--output-prefix", "--out/c", "--vocab-size", "257", "--include", "*.py", "--exclude", "tests"]
    ran = subprocess.run(
        [*OPSCTL, *words, "--no-append-eod", "--json-key", "body", "--workers", "1", "--json", "--overwrite", "src"],
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path,
    )  # fmt: skip
    noted = printed("data prepare", ran.stdout)
    assert (noted["documents"], noted["tokens"], noted["eod"], noted["vocab_size"]) == (1, 300, None, 257)
    assert noted["data_path"] == "--out/c_body_document" and ran.stderr == ""
    assert (tmp_path / "--out" / "c_body_document.idx").is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["none", "--output-prefix", "c"], 1, "opsctl: .*none"),
        (["."], 2, "opsctl: Missing option '--output-prefix'."),
        ([".", "--output-prefix", "c", "--vocab-size", "9"], 2, r"--vocab-size.*257"),
        ([".", "--output-prefix", "c", "--vocab-size", "300", "--tokenizer", "t"], 2, "--vocab-size"),
    ],
)
def test_what_cannot_work_is_one_line_and_the_designed_code(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    ran = forked(tmp_path, "data", "prepare", *words, environment=os.environ)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert re.search(said, ran.stderr) and ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_the_command_stops_the_preparation_with_it(tmp_path: Path, number: signal.Signals) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((json.dumps({"text": "words and words; " * 500}) + "\n") * 3000)
    command = [*OPSCTL, "corpus.jsonl", "--output-prefix", "out/c", "--vocab-size", "300"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("*.bin.partial")):  # locked by then, so that it may clean up
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    # The terminal's Ctrl-C reaches the whole foreground group, a plain SIGTERM only the process it names.
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "opsctl: interrupted" in err
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else find(name))
    with pytest.raises(SystemExit) as end:
        main(["data", "prepare", str(tmp_path), "--output-prefix", str(tmp_path / "c")])
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert re.fullmatch(rf"opsctl: tokenizers .*: {re.escape(install_command('trainer'))}\n", said)


def test_the_command_imports_neither_numpy_nor_tokenizers() -> None:
    script = "import sys, opsctl.cli.data; print({'numpy', 'tokenizers', 'torch'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "set()\n"
    assert isinstance(data.command, click.Group)
