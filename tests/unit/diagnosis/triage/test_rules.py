"""The table of rules, and a site's own table before it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from opsctl.cli import COMMANDS, LazyGroup
from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.diagnosis.triage import patterns
from opsctl.diagnosis.triage.decide import decide, todo
from opsctl.diagnosis.triage.findings import MATCHED_CHARACTERS, findings_of_line
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import Fault, Rule, load_rules, shipped_rules, site_rules
from opsctl.run.attempts.verdict import Cause
from opsctl.run.config.profile import triage_rules_files

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OWN = """
[[rule]]
name = "our-switch"
words = ["SWITCH-7 PORT"]
pattern = 'PORT (?P<node>\\w+) FLAPS'
cause = "network"
fault = "node"
weight = 0.99

[advice]
network = { say = "Tell the switch team.", type = ["opsctl submit --exclude {node}"] }
"""


def site(tmp_path: Path, text: str = OWN) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


def test_every_cause_has_advice_and_names_of_rules_are_unique() -> None:
    rules = shipped_rules()
    assert set(rules.advice) == set(Cause)
    assert len({row.name for row in rules.rows}) == len(rules.rows)


def test_a_rule_about_hardware_is_never_the_users_fault_nor_the_other_way_round() -> None:
    hardware = {Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE}
    for row in shipped_rules().rows:
        assert (row.fault is Fault.NODE) or row.cause not in hardware, row.name


SLOW = OWN.replace("PORT (?P<node>\\w+) FLAPS", "(([a-z])+.)+[A-Z]([a-z])+$")


def test_a_sites_pattern_that_takes_for_ever_costs_its_rule_and_nothing_else(tmp_path: Path) -> None:
    """It would block the whole program: `re` lets no other thread run, and no thread can end it."""
    text = f"{SLOW}\n{OWN.partition('[advice]')[0].replace('our-switch', 'their-switch')}"
    rules = site_rules([site(tmp_path, text)])
    log = tmp_path / "main_log.txt"
    log.write_text(f"SWITCH-7 PORT {'a' * 2000}\nSWITCH-7 PORT x12 FLAPS\nSWITCH-7 PORT {'b' * 1900}\n")
    facts = read_log(LogPart(log), rules, 20)
    assert [(one.rule.name, one.node) for one in facts.findings] == [("their-switch", "x12")]
    assert len(facts.unread) == 1 and "our-switch" in facts.unread[0] and "0.25 s" in facts.unread[0]


@pytest.mark.parametrize("cause", list(Cause))
def test_every_command_that_is_advised_is_one_that_opsctl_takes(cause: Cause) -> None:
    for line in todo(shipped_rules().advice[cause], "", "node07")[1:]:
        program, *words = line.split()
        assert program == "opsctl" and words[0] in COMMANDS
        group = LazyGroup("opsctl")
        context = click.Context(group, info_name="opsctl")
        command = group.get_command(context, words[0])
        assert command is not None
        parsed(command, words[1:], context)


def parsed(command: click.Command, words: list[str], parent: click.Context) -> None:
    context = command.make_context(command.name, list(words), parent=parent, resilient_parsing=False)
    if isinstance(command, click.Group) and words:
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None, words
        parsed(inner, rest, context)


def test_without_a_node_no_command_is_advised_that_needs_one() -> None:
    assert todo(shipped_rules().advice[Cause.GPU_ECC], "", "")[1:] == ()


def test_a_sites_rule_comes_before_the_shipped_ones_and_names_the_node(tmp_path: Path) -> None:
    rules = site_rules([site(tmp_path)])
    found = findings_of_line(rules, "SWITCH-7 PORT n042 FLAPS: Connection reset by peer", "log", 0, NOON)
    assert found is not None and (found.rule.name, found.node) == ("our-switch", "n042")
    assert "switch team" in rules.advice[Cause.NETWORK].say
    assert rules.advice[Cause.GPU_ECC] == shipped_rules().advice[Cause.GPU_ECC]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[rule]\n", "TOML"),
        (OWN.replace('"network"\nfault', '"netwrok"\nfault'), "'netwrok'"),
        (OWN.replace("weight = 0.99", "weight = 2"), "weight = 2"),
        (OWN.replace("FLAPS'", "FLAPS('"), "regular expression"),
        (OWN.replace('words = ["SWITCH-7 PORT"]', "words = []"), "words"),
        (OWN.replace("weight", "wieght"), "`wieght`"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_and_the_rules(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(OpsctlError) as refused:
        load_rules(site(tmp_path, text))
    assert str(tmp_path / "rules.toml") in str(refused.value) and says in str(refused.value)
    assert ("our-switch" in str(refused.value)) is (says != "TOML")


def test_the_profile_names_the_sites_file_relative_to_itself(tmp_path: Path) -> None:
    profile = tmp_path / "opsctl" / "profile.toml"
    profile.parent.mkdir()
    profile.write_text('[triage]\nrules = "own.toml"\n')
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert triage_rules_files(environment)[0] == profile.parent / "own.toml"
    profile.write_text("[triage]\nrule = 3\n")
    with pytest.raises(RunFileError, match="rule"):
        triage_rules_files(environment)


#: Texts that a rule's pattern is built of, for lines that begin to match it in as many places as they can.
_LITERALS = re.compile(r"[A-Za-z./_][A-Za-z ./_]{2,}")


@pytest.mark.nightly
@pytest.mark.parametrize("rule", [row for row in shipped_rules().rows if row.pattern], ids=lambda row: row.name)
def test_a_line_made_to_be_slow_costs_a_rule_less_than_half_a_second_of_the_processor(rule: Rule) -> None:
    assert isinstance(rule.pattern, re.Pattern)
    literals = dict.fromkeys([*rule.texts, *_LITERALS.findall(rule.pattern.pattern)])
    together = " ".join(literals)
    for text in [*literals, *(f"error {text} " for text in literals), together]:
        line = (text * MATCHED_CHARACTERS)[:MATCHED_CHARACTERS]
        began = time.process_time()
        rule.pattern.search(line)
        assert time.process_time() - began < 0.5, line[:80]


def test_of_a_line_that_is_too_long_its_head_and_its_tail_are_looked_at() -> None:
    for line in (f"MemoryError {'x' * 8000}", f"{'x' * 8000} MemoryError"):
        found = findings_of_line(shipped_rules(), line, "log", 0, NOON)
        assert found is not None and found.rule.name == "host-memory"
    middle = f"{'x' * 4000} MemoryError {'x' * 4000}"
    assert findings_of_line(shipped_rules(), middle, "log", 0, NOON) is None


@pytest.mark.parametrize(
    "line",
    [
        "INFO: this run restarts itself on node failure",
        "requeue_on = NODE_FAIL,PREEMPTED",
        "0 DBE errors detected",
        "no DBE errors detected",
        "ECC errors: 0 uncorrectable ECC, row remap pending: no",
        "GPU 3: 0 uncorrectable ECC errors",
        "Row remap failure: no",
        "opsctl: node node3 is excluded for 7 days (uncorrectable ECC error)",
        "opsctl: the nodes are tested: node3 CUDA error: out of memory",
    ],
)
def test_a_line_that_says_that_nothing_is_wrong_means_nothing(line: str) -> None:
    assert findings_of_line(shipped_rules(), line, "log", 0, NOON) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("slurmstepd: error: *** JOB 7 ON n3 CANCELLED AT 2026-11-21T12:00:00 DUE TO NODE FAILURE ***", "node-failure"),
        ("slurmstepd: error: *** STEP 7.0 ON n3 CANCELLED AT 2026-11-21T12:00:00 DUE TO PREEMPTION ***", "preempted"),
        ("srun: error: Node failure on n3", "node-failure"),
        ("slurmstepd: error: Node failure on n3", "node-failure"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-ecc"),
        ("DBE (double bit error) detected in DRAM Bank 2", "gpu-ecc"),
        ("GPU 0 row remapping failure", "gpu-ecc"),
        ("GPU 0: 12 uncorrectable ECC errors", "gpu-ecc"),
        ("opsctl: cannot start the step: [Errno 28] No space left on device", "disk-full"),
        (
            "rank 0 (local rank 0 on n3) failed: killed by SIGBUS: /d/a.bin has 0 bytes, but its index a.idx "
            "ends at 8: one of the two is cut short or from another preparation; copy both again",
            "data",
        ),
    ],
)
def test_what_slurm_and_gpus_say_of_a_failure_is_still_one(line: str, name: str) -> None:
    found = findings_of_line(shipped_rules(), line, "log", 0, NOON)
    assert found is not None and found.rule.cause == name


def test_a_rank_of_five_thousand_digits_is_none() -> None:
    line = f"[Rank 1] Rank {'1' * 1500} failed to pass monitoredBarrier"
    found = findings_of_line(shipped_rules(), line, "log", 0, NOON)
    assert found is not None and found.rule.name == "barrier-names-rank" and found.rank is None


def cause_of_traceback(tmp_path: Path, file: str, error: str, prefix: str = "") -> str:
    frames = [f'  File "{file}", line 3, in load', "    raise", f'  File "{file}", line 9, in read', "    step()"]
    log = tmp_path / "log"
    log.write_text("".join(f"{prefix}{line}\n" for line in ("Traceback (most recent call last):", *frames, error)))
    rules = shipped_rules()
    return decide(read_log(LogPart(log), rules, 20), rules).cause


SAVING = "/x/torch/distributed/checkpoint/planner.py"


def test_a_peer_lost_while_a_checkpoint_is_saved_or_data_is_read_is_neither_the_checkpoints_nor_the_datas(
    tmp_path: Path,
) -> None:
    error = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:36270: Connection reset by peer."
    for file in (SAVING, "/x/torch/utils/data/dataloader.py"):
        assert cause_of_traceback(tmp_path, file, error) == Cause.NETWORK
    assert cause_of_traceback(tmp_path, SAVING, "KeyError: 'optimizer.state'") == Cause.CHECKPOINT


@pytest.mark.parametrize("home", ["/data/u/proj", "/data", "/scratch/checkpoint-exp/proj", "/work/tokenizers/a/b"])
def test_where_a_program_lies_says_nothing_of_what_it_was_doing(tmp_path: Path, home: str) -> None:
    said = cause_of_traceback(tmp_path, f"{home}/train.py", "ValueError: 5 heads")
    assert said == cause_of_traceback(tmp_path, "/home/u/proj/train.py", "ValueError: 5 heads")


@pytest.mark.parametrize("prefix", ["[default0]:", "[rank0]: ", "0: [default0]:", "[rank0]:", ""])
def test_the_frames_of_a_traceback_are_seen_behind_any_prefix(tmp_path: Path, prefix: str) -> None:
    assert cause_of_traceback(tmp_path, SAVING, "KeyError: 'optimizer.state'", prefix) == Cause.CHECKPOINT


def test_a_site_pattern_has_its_time_only_from_when_its_process_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, wait = list[float](), patterns.PatternProcess._line_within

    def noted(process: patterns.PatternProcess, seconds: float) -> str:
        waits.append(seconds)
        return wait(process, seconds)

    monkeypatch.setattr(patterns.PatternProcess, "_line_within", noted)
    pattern = patterns.BoundedPattern("b+", patterns.PatternProcess())
    found = pattern.search("abb")
    assert found is not None and (found.start(), pattern.given_up) == (1, "")
    assert waits == [patterns._READY_S, patterns._ANSWER_S] and patterns._READY_S > patterns._ANSWER_S


def test_a_site_pattern_whose_process_is_never_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_ready = tmp_path / "program.py"
    never_ready.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(patterns, "_PROGRAM", never_ready)
    monkeypatch.setattr(patterns, "_READY_S", 0.05)
    process = patterns.PatternProcess()
    pattern = patterns.BoundedPattern("b+", process)
    assert pattern.search("abb") is None and "0.05 s" in pattern.given_up
    assert process._running is None
