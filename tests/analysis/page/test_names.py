"""Units and order of columns by their names."""

import pytest

from hwnas.analysis.page.names import is_share, natural_order
from hwnas.analysis.result_section import genotype_words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", True),
        ("verified_accuracy_int8", True),
        ("npu.balanced_accuracy", True),
        ("macro_f1", True),
        ("mae", False),
        ("latency_ms", False),
    ],
)
def test_metrics_of_at_most_one_are_shares(name: str, expected: bool) -> None:
    assert is_share(name) == expected


def test_numbered_choices_are_in_their_order() -> None:
    names = [f"stages.0.blocks.{i}.heads" for i in (0, 1, 10, 2)]
    assert sorted(names, key=natural_order) == [names[0], names[1], names[3], names[2]]
    assert "heads 0/1/2/10" in genotype_words([(name, int(name.split(".")[3])) for name in names])
