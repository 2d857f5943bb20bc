"""Test what a member of the group has the owner's job do on a real Slurm, and that no one else can."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opsctl.run.config.paths import RunPaths
from opsctl.run.state.requests import Action, Request, ask
from tests.cluster.commands import Answer, Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training
from tests.printed_json import printed
from tests.users import as_user

GROUP = f"ocreq{os.getpid()}"
#: What ann shares with others: no run of hers.
OTHERS = f"ocall{os.getpid()}"


@dataclass(frozen=True)
class Shared:
    """A run of ann's, which ben shares and eve does not."""

    training: Training
    ann: str
    ben: str
    eve: str

    @property
    def paths(self) -> RunPaths:
        return self.training.paths

    def says(self, user: str, *words: str) -> Answer:
        return self.training.opsctl.says(user, *words)

    def ok(self, user: str, *words: str) -> Answer:
        answer = self.says(user, *words)
        assert answer.code == 0, (words, answer)
        return answer

    def submit(self, *words: str) -> int:
        return int(self.ok(self.ann, "submit", *words).out)

    def queue(self) -> list[str]:
        return self.training.opsctl.queue("%i %t %r")

    def audit(self) -> list[dict[str, Any]]:
        if not self.paths.audit.exists():
            return []
        return [json.loads(line) for line in self.paths.audit.read_text().splitlines()]

    def wait_for_audit(self, number: int) -> dict[str, Any]:
        wait_until(lambda: len(self.audit()) >= number, START_S, f"{number} answers")
        return self.audit()[number - 1]


@pytest.fixture
def shared(local_cluster: RunningCluster, unix_user: Callable[..., str]) -> Iterator[Shared]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write(group=f'"{GROUP}"')
        people = (
            unix_user("ann", groups_of=[GROUP, OTHERS]),
            unix_user("ben", groups_of=[GROUP]),
            unix_user("eve", groups_of=[OTHERS]),
        )
        yield Shared(training, *people)
        local_cluster.cancel_everything()


def test_a_member_has_the_owners_training_saved_looked_into_and_requeued(shared: Shared) -> None:
    training, ann, ben = shared.training, shared.ann, shared.ben
    chain = shared.submit("--array", "1-3")
    training.wait_for_iteration(2)

    saved = printed("request save", shared.ok(ben, "request", "save", "--why", "power cut", "--json").out)
    assert (saved["outcome"], saved["asked_by"], saved["why"]) == ("done", ben, "power cut")
    (iteration,) = map(int, re.findall(r"\d+", saved["words"]))
    assert (shared.paths.checkpoints / f"global_step{iteration}" / "manifest.json").exists()
    training.wait_for_iteration(iteration + 2)
    assert re.search(rf"opsctl: .*{ben}.*: power cut", training.log())

    stacks = shared.ok(ben, "request", "stacks")
    assert re.search(r"\b2 ranks\b|\brank \d on node\d\b", stacks.err), stacks.err
    told = next((shared.paths.logs / "attempts").glob("*/stacks-*.txt")).read_text()
    assert told.count("=== rank ") == 2 and "trainer/loop/train.py" in told

    shared.ok(ben, "request", "requeue", "--why", "node1 is slow", "--no-wait")
    last = shared.wait_for_audit(3)
    assert last["outcome"] == "done" and f"{chain}_1" in last["words"], last
    first = training.recorded()[0]
    assert (first["reason"], first["exit_code"]) == ("requeued", 0)
    assert first["note"].startswith(ben) and first["note"].endswith(": node1 is slow")
    before = len(training.iterations())
    training.wait_for_iteration(first["iteration_at_end"] + 1, after_lines=before)  # the next task goes on
    assert training.iterations()[before] == first["iteration_at_end"] + 1
    assert any(line.startswith((f"{chain}_1 PD", f"{chain}_[1,3%1] PD")) for line in shared.queue()), shared.queue()

    shared.ok(ben, "request", "stop", "--why", "enough", "--queued-too")
    training.wait_until_left(chain)
    second = training.recorded()[1]
    assert second["reason"] == "stop-request" and re.fullmatch(rf"{ben} .*: enough", second["note"])
    assert [line["outcome"] for line in shared.audit()] == ["done"] * 4
    assert {line["asked_by"] for line in shared.audit()} == {ben}
    listed = printed("request list", shared.ok(ann, "request", "list", "--json").out)
    assert [(one["action"], one["state"]) for one in listed] == [
        ("save", "answered"),
        ("stacks", "answered"),
        ("requeue", "answered"),
        ("stop", "answered"),
    ]


def test_a_training_that_hangs_is_told_apart_and_ended_and_the_next_task_goes_on(shared: Shared) -> None:
    training, ben = shared.training, shared.ben
    chain = shared.submit("--array", "1-2")
    training.wait_for_iteration(2)
    job = training.recorded()[0]["job_id"]
    os.kill(training.rank(job, 1)["pid"], signal.SIGSTOP)
    # Of ann's job, so by a request. On a busy machine the job's answer takes longer than the command waits.
    for _ in range(4):
        answer = shared.says(ben, "triage", "--stacks", "--json")
        if answer.out:
            break
    assert answer.code == 1, answer
    odd, *others = printed("triage", answer.out)["groups"]
    assert (odd["ranks"], odd["is_odd"], sum(one["count"] for one in others)) == ("1", True, 1), odd
    shared.ok(ben, "request", "save", "--no-wait")
    # Once this job has taken it: otherwise the next one carries it out.
    wait_until(lambda: list((shared.paths.requests / "taken").iterdir()), what="the save to be taken")
    shared.ok(ben, "request", "stop", "--within", "0:03", "--no-wait", "--why", "hangs")
    wait_until(lambda: {"save", "stop"} <= {line["action"] for line in shared.audit()}, what="both answers")
    training.wait_for_log("attempt 2")
    first = training.recorded()[0]
    assert first["reason"] == "stop-request" and re.fullmatch(rf"{ben} .*: hangs", first["note"])
    by_action = {line["action"]: line for line in shared.audit()}
    assert by_action["stop"]["outcome"] == "done" and "ended" in by_action["stop"]["words"]
    assert by_action["save"]["outcome"] == "failed", by_action["save"]
    shared.ok(ben, "kill-switch", "trigger", "--no-wait")
    training.wait_until_left(chain)


def test_a_member_holds_releases_extends_and_cancels_what_the_owner_has_queued(shared: Shared) -> None:
    ann, ben = shared.ann, shared.ben
    chain = shared.submit("--begin", "now+1day", "--array", "1-3")
    carry = ["request", "carry-out"]

    def asked(*words: str) -> dict[str, Any]:
        number = len(shared.audit()) + 1
        answer = shared.ok(ben, "request", *words)
        assert ann in answer.err and "opsctl request carry-out" in answer.err, answer.err
        shared.ok(ann, *carry)
        return shared.wait_for_audit(number)

    assert asked("hold-queued")["outcome"] == "done"
    assert shared.queue() == [f"{chain}_[1-3%1] PD JobHeldUser"]
    assert asked("release-queued")["outcome"] == "done"
    assert shared.queue()[0].startswith(f"{chain}_[1-3%1] PD") and "Held" not in shared.queue()[0]
    extended = asked("extend-chain", "2", "--why", "the weekend")
    assert extended["outcome"] == "done", extended
    last = shared.training.opsctl.chains()[-1]
    assert (last["array"], last["user"], last["after"], last["how"]) == ("1-2%1", ann, [str(chain)], "request")
    assert f"{chain}_2" in asked("stop", "--job", f"{chain}_2")["words"]
    assert [line.split()[0] for line in shared.queue()] == [f"{chain}_[1,3%1]", f"{last['chain']}_[1-2%1]"]
    assert asked("cancel-queued")["outcome"] == "done"
    wait_until(lambda: not shared.queue(), 20, "an empty queue")
    assert [line["by"].split("@")[0] for line in shared.audit()] == [ann] * 5

    # What was asked about a chain does nothing to one that came after it.
    chain = shared.submit("--begin", "now+1day", "--array", "1-2")
    shared.ok(ben, "request", "cancel-queued")
    shared.ok(ann, "cancel", "--queued")
    again = shared.submit("--begin", "now+1day", "--array", "1-2")
    shared.ok(ann, *carry)
    assert shared.audit()[-1]["outcome"] == "too-late" and shared.queue()[0].startswith(f"{again}_")


def test_two_who_ask_for_one_more_array_at_once_get_one(shared: Shared) -> None:
    ann, ben = shared.ann, shared.ben
    chain = shared.submit("--begin", "now+1day", "--array", "1-1")
    for user in (ben, ann):
        shared.ok(user, "request", "extend-chain", "3", "--no-wait")
    shared.ok(ann, "request", "carry-out")
    assert sorted(line["outcome"] for line in shared.audit()) == ["done", "too-late"]
    assert [one["chain"] > chain for one in shared.training.opsctl.chains()] == [False, True]


def test_what_cannot_be_is_refused_by_name_at_once(shared: Shared) -> None:
    ben, eve = shared.ben, shared.eve
    assert "no output yet" in shared.says(ben, "request", "save").last_line
    chain = shared.submit("--begin", "now+1day", "--array", "1-2")
    for words, said in (
        (["save"], "save"),
        (["stacks", "--job", f"{chain}_1"], f"job {chain}_1 "),
        (["requeue", "--job", f"{chain}_9"], f"job {chain}_9 "),
        (["release-queued"], "held"),
        (["extend-chain", "5000"], "1000"),
    ):
        answer = shared.says(ben, "request", *words)
        assert answer.code == 1 and said in answer.last_line, (words, answer)
    assert shared.says(ben, "request", "dance").code == 2
    for action in Action:
        answer = shared.says(eve, "request", action)
        assert answer.code in (1, 2) and "Traceback" not in answer.err, (action, answer)
    assert not shared.audit() and not list(shared.paths.requests.glob("*.json"))


def test_an_account_outside_gets_nothing_done_by_whatever_it_puts_anywhere(shared: Shared) -> None:
    training, ann, ben, eve = shared.training, shared.ann, shared.ben, shared.eve
    training.write(group=f'"{GROUP}"', ranks=1)
    chain = shared.submit("--array", "1-2")
    training.wait_for_iteration(2)
    attempt = training.recorded()[0]["id"]
    stop = Request(action=Action.STOP, owner=ann, job=f"{chain}_1", attempt=attempt, chains=(chain,))
    with pytest.raises(OSError, match="ermission denied"):
        as_user(eve, lambda: ask(shared.paths, stop))

    # Where a user lets her in: a file of hers, and links and hard links to what others wrote.
    text = json.dumps({"action": "stop", "owner": ann, "job": f"{chain}_1", "attempt": attempt, "chains": [chain]})
    elsewhere = training.opsctl.folder / "elsewhere.json"
    as_user(ann, lambda: elsewhere.write_text(text))
    shared.ok(ben, "request", "save")
    place = shared.paths.requests
    for name, moment in (("hers", None), ("past", 0), ("future", 4_000_000_000)):
        path = place / f".{name}"
        path.write_text(text)
        path.chmod(0o640)
        os.chown(path, pwd.getpwnam(eve).pw_uid, place.stat().st_gid)
        if moment is not None:
            os.utime(path, (moment, moment))
        path.rename(place / f"{name}.json")
    (place / "link.json").symlink_to(elsewhere)
    (place / "hard.json").hardlink_to(elsewhere)
    for number in range(2, 7):
        assert shared.wait_for_audit(number)["outcome"] == "refused"
    assert {line["asked_by"] for line in shared.audit()[1:]} == {eve, ann, "root"}
    assert {line["action"] for line in shared.audit()[1:]} == {""}
    assert elsewhere.read_text() == text

    # A folder of her own with the run's id in it: ann's command there does nothing to ann's jobs.
    own = training.opsctl.folder / "eves"
    run_id = training.opsctl.run_id()
    as_user(eve, lambda: _copy_as_own(training.opsctl.folder, own, run_id, OTHERS))
    cancel = Request(action=Action.CANCEL_QUEUED, owner=ann, chains=(chain,))
    as_user(eve, lambda: ask(RunPaths(own / "output"), cancel))
    answer = shared.says(ann, "request", "carry-out", str(own / "run.toml"))
    assert "Traceback" not in answer.err, answer
    assert "too-late" in answer.out, answer
    assert any(line.startswith(f"{chain}_2 PD") for line in shared.queue()), (answer, shared.queue())
    before = len(training.iterations())
    training.wait_for_iteration(training.iterations()[-1] + 2, after_lines=before)


def _copy_as_own(source: Path, own: Path, run_id: str, group: str) -> None:
    state = own / "output" / ".opsctl"
    state.mkdir(parents=True)
    for folder in (own, own / "output", state):
        os.chown(folder, -1, grp.getgrnam(group).gr_gid)
        folder.chmod(0o2775)
    text = (source / "run.toml").read_text()
    (own / "run.toml").write_text("\n".join(line for line in text.splitlines() if not line.startswith("group =")))
    (state / "run-id").write_text(f"{run_id}\n")
