"""What `env build` and `env freeze` print for programs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from trainer.formats.attempt.environment import Environment


class BuiltEnvironment(Struct, frozen=True, kw_only=True):
    """What a build has left in use."""

    folder: Annotated[str, Meta(description="The environment that the next step starts with.")]
    new: Annotated[bool, Meta(description="False where it was there, built from the same.")]
    lock: Annotated[str, Meta(description="Requirements file that pins all of it.")]


def frozen(environment: Environment) -> Environment:
    """`environment` without who looked and how long that took: the same environment, the same text."""
    return msgspec.structs.replace(environment, node="", took_s=0.0, problems=())
