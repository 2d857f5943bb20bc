"""What is said of ranks whose sums differ."""

from __future__ import annotations

from trainer.loop.drift import Item, drift_line, drifts

WEIGHT = Item("final_layernorm.bias", "weight")


def test_what_all_ranks_hold_alike_is_no_drift() -> None:
    assert drifts([[WEIGHT]] * 4, [[7]] * 4) == []


def test_the_minority_is_named_and_without_one_both_sides_are() -> None:
    def words(*values: int) -> str:
        (found,) = drifts([[WEIGHT]] * len(values), [[value] for value in values])
        return found.words()

    assert words(7, 7, 8, 7) == "weight of final_layernorm.bias on rank 2 differs from ranks 0, 1 and 3"
    assert words(7, 8, 9, 7, 7) == "weight of final_layernorm.bias on ranks 1 and 2 differs from ranks 0, 3 and 4"
    assert words(7, 8) == "weight of final_layernorm.bias differs: rank 0 against rank 1"
    assert words(1, 1, 1, 2, 2, 2) == "weight of final_layernorm.bias differs: ranks 0 to 2 against ranks 3 to 5"


def test_parts_are_compared_among_themselves_and_shares_as_their_total() -> None:
    parts = [[Item("w", "weight", (rank % 2,))] for rank in range(4)]
    assert drifts(parts, [[1], [2], [1], [2]]) == []
    shares = [[Item("w", "exp_avg", (), holder=rank // 2)] for rank in range(4)]
    assert drifts(shares, [[1], [5], [4], [2]]) == []  # each holder cuts its shares elsewhere
    assert drifts(shares, [[2**63 - 1], [2], [-(2**63)], [1]]) == []  # modulo 2^64
    (found,) = drifts(shares, [[1], [5], [4], [3]])
    assert found.words() == "exp_avg of w differs: ranks 0 and 1 against ranks 2 and 3"


def test_the_line_is_one_and_counts_what_it_does_not_name() -> None:
    items = [Item(f"p{number}", "weight") for number in range(9)]
    line = drift_line(drifts([items] * 3, [[0] * 9, [0] * 9, [1] * 9]), 20)
    assert line.startswith("after iteration 20 ranks hold different numbers where they should hold the same: ")
    assert "weight of p2 on rank 2 differs from ranks 0 and 1; and 6 more. Nothing is saved of it: " in line
    assert "\n" not in line
