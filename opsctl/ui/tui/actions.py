"""What can be done from the screen that stays: commands that anybody could type, each asked about first. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Act:
    """One of them."""

    key: str
    title: str
    meaning: str  # what comes of it
    words: tuple[str, ...]  # of the command, after `opsctl`
    why_option: str = ""  # the option that takes a reason; empty: none does

    def command(self, why: str = "") -> tuple[str, ...]:
        """The words of the command, with the reason that a person gave."""
        return (*self.words, self.why_option, why) if self.why_option and why else self.words

    def typed(self, why: str = "") -> str:
        """As a person would type it."""
        return shlex.join(("opsctl", *self.command(why)))


def kill_switch_act(run_file: str, is_triggered: bool) -> Act:
    """Triggering the kill switch, or taking it back."""
    if is_triggered:
        return Act(
            "k",
            "deactivate the kill switch",
            "The next task trains again.",
            ("kill-switch", "deactivate", "--run", run_file),
        )
    return Act(
        "k",
        "trigger the kill switch",
        "The training saves and leaves at its next iteration, and every queued task leaves in seconds, "
        "until the switch is deactivated.",
        ("kill-switch", "trigger", "--run", run_file, "--no-wait"),
        "--reason",
    )


def request_acts(run_file: str, cluster: str | None) -> tuple[Act, ...]:
    """What the owner's job can be asked for; whether it does it is its own word."""
    at = ("--run", run_file, *(("--cluster", cluster) if cluster else ()))
    meant = (
        ("s", "save", "a checkpoint now, and train on"),
        ("e", "stop", "this job saves and leaves; what is queued goes on"),
        ("u", "requeue", "this job saves, leaves, and goes back into the queue"),
        ("t", "stacks", "where every rank is, also of ranks that hang"),
        ("h", "hold-queued", "what is queued does not start until it is released"),
        ("r", "release-queued", "what is queued and held may start again"),
        ("c", "cancel-queued", "what is queued is cancelled; what runs goes on"),
        ("x", "extend-chain", "one more array behind the last one"),
    )
    return tuple(Act(key, name, meaning, ("request", name, *at), "--why") for key, name, meaning in meant)
