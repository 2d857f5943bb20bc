"""Going back to a checkpoint in the midst of a training, because of a spike: what was trained since is trained anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.into_engine import go_back, restore_random_states
from trainer.checkpoint.load import find_before, load_checkpoint
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.checkpoint.history import Progress
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.starting import is_whole_state_of
from trainer.formats.logs.guard_lines import NotRolledBack, write_not_rolled_back, write_rolled_back
from trainer.loop.guarding import Guarding
from trainer.loop.observer import Observer
from trainer.recipe.schedule import IterationRange
from trainer.recipe.spike_guard import GuardState, Window


@dataclass(frozen=True)
class RollingBack:
    """What a rollback works with. `progress` is the training's own, which goes back with it."""

    engine: PipelineEngine
    destination: Destination
    identity: Identity
    guarding: Guarding
    progress: Progress
    observers: Sequence[Observer]
    tell: Callable[[str], None]  # prints a line, on the first rank

    def if_due(self) -> bool:
        """Between two steps: go back where the guard asks for it and a checkpoint from before the spike is there.

        Whether it went back. Collective. Raises Refusal, and Overtaken where another writer has the training.
        """
        found_at, guard = self.progress.iteration, self.guarding.guard
        wanted = guard.window_to_leave_out(self.guarding.state, found_at) if guard is not None else None
        if wanted is None:
            return False
        for observer in self.observers:
            observer.before_going_back(self.progress)
        folder = self.destination.folder
        to = find_before(folder, wanted.first, self._is_on_the_way)
        if to is None:
            why = f"{folder.path} has no sound checkpoint from before iteration {wanted.first}"
            self.tell(write_not_rolled_back(NotRolledBack(found_at, why)))
            self.guarding.state = msgspec.structs.replace(self.guarding.state, unusual=())
            return False
        why = f"{len(self.guarding.state.unusual)} unusual iterations up to {found_at}"
        window = Window(wanted.first, wanted.last, why, to.manifest.iteration, found_at)
        self.tell(write_rolled_back(window))
        go_back(self.destination, to.manifest.iteration, found_at, f"spike guard: {why}, {_left_out(wanted)}")
        restore_random_states(load_checkpoint(self.engine, to, said_as=folder.path))
        self._take_over(to.manifest.spike_guard or GuardState(), window, to.manifest.counters())
        return True

    def _is_on_the_way(self, manifest: Manifest) -> bool:
        is_on_it = self.guarding.state.came_through(manifest.iteration, manifest.spike_guard)
        return is_on_it and manifest.not_finite is None and is_whole_state_of(manifest, self.identity)

    def _take_over(self, state: GuardState, window: Window, counters: dict[str, int]) -> None:
        """What was decided since the checkpoint stays decided."""
        windows = (*self.guarding.state.windows, window)
        self.guarding.state = msgspec.structs.replace(state, windows=windows)
        for name, value in counters.items():
            setattr(self.progress, name, value)
        for observer in self.observers:
            observer.after_going_back(self.progress)


def _left_out(window: IterationRange) -> str:
    return f"{window.words()} left out"
