import pytest

from opsctl.errors import UsageError
from opsctl.slurm.arrays import count_tasks, one_at_a_time


@pytest.mark.parametrize(
    ("array", "tasks"), [("1-3%1", 3), ("7", 1), ("1-10:3", 4), ("1,3,5-7%1", 5), ("2-3%1", 2), ("1-3,2-4", 4)]
)
def test_tasks_are_counted_as_slurm_makes_them(array: str, tasks: int) -> None:
    assert count_tasks(array) == tasks


def test_tasks_of_a_training_run_one_at_a_time() -> None:
    assert one_at_a_time("1-3%1") == "1-3%1"
    assert one_at_a_time("1-3") == "1-3%1"
    with pytest.raises(UsageError, match="side by side; use 1-3%1"):
        one_at_a_time("1-3%2")


@pytest.mark.parametrize("array", ["", "a", "3-1", "1-3%", "1-3:0", "-1", "1-3%1\n", "1-9999999999", "$(x)"])
def test_what_is_no_array_is_refused(array: str) -> None:
    with pytest.raises(UsageError, match="--array"):
        one_at_a_time(array.replace("\n", "x"))
