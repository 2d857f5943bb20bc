"""How long a run is, whatever its data files are: they may be what is to be chosen."""

from __future__ import annotations

from opsctl.core.errors import RunFileError
from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import LoadedRun
from trainer.recipe.schedule import samples_to_train


def length_of_run(loaded: LoadedRun) -> tuple[int, int]:
    """Samples of the whole training, and tokens of each. Raises RunFileError where the run file does not say them."""
    options = find_problems(loaded, files=False).options
    if options.seq_length is None:
        raise RunFileError(f"{loaded.path}: [trainer] seq_length is missing, so nobody knows how long the training is")
    try:
        return samples_to_train(options), options.seq_length
    except (ValueError, TypeError) as error:
        raise RunFileError(f"{loaded.path}: how long is the training? {error}") from None
