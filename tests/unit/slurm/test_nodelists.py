import pytest

from opsctl.slurm.nodelists import expand_nodes


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("x1", ["x1"]),
        ("x[01-03,05]", ["x01", "x02", "x03", "x05"]),
        ("x[8-11]", ["x8", "x9", "x10", "x11"]),
        ("b2,a[1-2]", ["b2", "a1", "a2"]),
        ("x[5,1-2]", ["x5", "x1", "x2"]),
        ("jean-zay-iam[09-10],gpu", ["jean-zay-iam09", "jean-zay-iam10", "gpu"]),
        ("", []),
    ],
)
def test_nodes_come_in_the_order_and_padding_of_the_list(folded: str, names: list[str]) -> None:
    assert expand_nodes(folded) == names


def test_racks_and_nodes_are_expanded_together() -> None:
    assert expand_nodes("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
