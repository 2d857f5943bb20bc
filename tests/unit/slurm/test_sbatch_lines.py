"""`#SBATCH` lines as sbatch reads them."""

from __future__ import annotations

import pytest

from opsctl.slurm.sbatch_lines import directives


def test_short_long_and_lone_options_come_with_their_lines_up_to_the_first_command() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=4 -C a100   # said why\n##SBATCH --nodes=5\n\n#SBATCH --time 1:00:00\n"
        "#SBATCH --exclusive -pbig\necho\n#SBATCH --account=late\n"
    )
    assert [(one.name, one.value, one.line) for one in directives(text)] == [
        ("nodes", "4", 2),
        ("constraint", "a100", 2),
        ("time", "1:00:00", 5),
        ("exclusive", None, 6),
        ("partition", "big", 6),
    ]


@pytest.mark.parametrize("line", ["#SBATCH what", "#SBATCH --comment='x"])
def test_what_is_no_option_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="#SBATCH"):
        list(directives(f"#!/bin/bash\n{line}\n"))
