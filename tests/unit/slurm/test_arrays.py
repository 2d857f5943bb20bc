import pytest

from opsctl.core.errors import UsageError
from opsctl.slurm.arrays import count_tasks, largest_task, one_at_a_time, split_array


@pytest.mark.parametrize(
    ("array", "tasks"), [("1-3%1", 3), ("7", 1), ("1-10:3", 4), ("1,3,5-7%1", 5), ("2-3%1", 2), ("1-3,2-4", 4)]
)
def test_tasks_are_counted_as_slurm_makes_them(array: str, tasks: int) -> None:
    assert count_tasks(array) == tasks


def test_tasks_of_a_training_run_one_at_a_time() -> None:
    assert one_at_a_time("1-3%1") == "1-3%1"
    assert one_at_a_time("1-3") == "1-3%1"
    with pytest.raises(UsageError, match=r"1-3%2.*1-3%1"):
        one_at_a_time("1-3%2")


@pytest.mark.parametrize("array", ["", "a", "3-1", "1-3%", "1-3:0", "-1", "1-3%1\n", "1-9999999999", "$(x)"])
def test_what_is_no_array_is_refused(array: str) -> None:
    with pytest.raises(UsageError, match="--array"):
        one_at_a_time(array.replace("\n", "x"))


@pytest.mark.parametrize(
    ("array", "largest", "pieces"),
    [
        ("1-1000%1", 1000, ("1-1000%1",)),
        ("1-1001%1", 1000, ("1-1000%1", "1-1%1")),
        ("1-2500%1", 1000, ("1-1000%1", "1-1000%1", "1-500%1")),
        ("5,2000%1", 1000, ("1-2%1",)),
        ("0-999%1", 1000, ("0-999%1",)),
    ],
)
def test_an_array_is_split_into_as_many_tasks_of_numbers_that_slurm_takes(
    array: str, largest: int, pieces: tuple[str, ...]
) -> None:
    assert split_array(array, largest) == pieces
    assert sum(map(count_tasks, pieces)) == count_tasks(array)


def test_the_largest_task_number_is_one_less_than_the_array_size() -> None:
    assert largest_task({"MaxArraySize": "1001"}) == 1000
    assert largest_task({}) is largest_task({"MaxArraySize": "0"}) is None
