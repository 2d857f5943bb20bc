"""The requirement line by which a frozen environment installs a package again."""

from __future__ import annotations

from opsctl.run.environments.inspection import pinned
from trainer.formats.attempt.environment import Environment, Package


def test_a_package_is_pinned_to_its_version_or_to_the_commit_that_it_was_built_from() -> None:
    nothing_used_in_place = Environment()
    of_the_index = Package("2.0")
    of_a_repository = Package("2.0", url="git+https://host.invalid/team/tiny.git", commit="0123abc")
    assert pinned("tiny", of_the_index, nothing_used_in_place) == "tiny==2.0"
    assert (
        pinned("tiny", of_a_repository, nothing_used_in_place)
        == "tiny @ git+https://host.invalid/team/tiny.git@0123abc"
    )
