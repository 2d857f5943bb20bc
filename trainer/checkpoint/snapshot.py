"""What one rank will write of a checkpoint, taken from the engine without touching a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.host_copies import HostCopies
from trainer.formats.checkpoint.partitions import is_weights_file

#: File name -> gives what goes into it, plain data and tensors; asked once, as the file is written.
Snapshot = dict[str, Callable[[], Any]]


def snapshot(
    engine: PipelineEngine,
    client_state: Mapping[str, Any],
    with_optimizer: bool = True,
    copies: HostCopies | None = None,
) -> Snapshot:
    """This rank's files of a checkpoint, with DeepSpeed's names and contents. Collective.

    `client_state` goes into DeepSpeed's own files and must be plain data. Tensors are the engine's own, so a plain
    snapshot has to be written before the next step; one layer's weights at a time are copied into the host's memory as
    they are. One with `copies` has all tensors there, in the host's memory, as much as the files hold, and may be
    written whenever there is time, before the next one is taken into the same copies.
    """
    taking = _TakingCheckpointEngine(with_optimizer, copies)
    usual, shards = engine.checkpoint_engine, engine.save_zero_checkpoint
    engine.checkpoint_engine, engine.save_zero_checkpoint = taking, shards and with_optimizer
    engine._copy_recovery_script = lambda _folder: None  # it writes past the checkpoint engine; `publish` leaves them
    try:
        engine.save_checkpoint("snapshot", tag="snapshot", client_state=dict(client_state), save_latest=False)
    finally:
        engine.checkpoint_engine, engine.save_zero_checkpoint = usual, shards
        del engine._copy_recovery_script
    if copies is not None:
        copies.wait()
    return taking.files


class _TakingCheckpointEngine(CheckpointEngine):
    """Stands in for DeepSpeed's writer during one save and keeps what it is handed."""

    def __init__(self, with_optimizer: bool, copies: HostCopies | None) -> None:
        super().__init__()
        self.name = "TakingCheckpointEngine"
        self.files: Snapshot = {}
        self._with_optimizer, self._copies = with_optimizer, copies

    def preserves_storage_sharing(self) -> bool:
        """Whether DeepSpeed has to copy the weights, which share one storage: no, `save` sees to it."""
        return False

    def save(self, state_dict: Any, path: str) -> None:
        if not self._with_optimizer and isinstance(state_dict, dict):
            state_dict = {key: None if key == "optimizer" else value for key, value in state_dict.items()}
        name = Path(path).name
        if self._copies is not None:
            state_dict = self._copies.of(name, state_dict)
        # torch.save writes a tensor's whole storage, and all weights share one.
        shares = self._copies is None and is_weights_file(name)
        self.files[name] = partial(clone_tensors_for_torch_save if shares else _as_it_is, state_dict)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def create(self, info: CheckpointCommitInfo) -> None:
        pass

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        raise NotImplementedError("this engine only takes")


def _as_it_is(state: Any) -> Any:
    return state
