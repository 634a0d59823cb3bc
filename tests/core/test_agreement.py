import math

import pytest

from hwnas.core.agreement import agreement


def test_statistics_equal_those_computed_by_hand() -> None:
    found = agreement([1.05, 1.8, 3.0, 5.0], [1.0, 2.0, 3.0, 4.0])  # +5 %, -10 %, 0, +25 %
    assert found["mape"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.05)
    assert (found["within_5"], found["within_10"], found["within_20"]) == (0.5, 0.75, 0.75)
    assert found["spearman"] == pytest.approx(1.0)
    assert found["kendall"] == pytest.approx(1.0)


def test_ranks_equal_those_computed_by_hand() -> None:
    # Ranks 1 2 3 4 against 2 1 4 3: sum of squared differences 4, 4 concordant and 2 discordant.
    found = agreement([2.0, 1.0, 4.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    assert found["spearman"] == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert found["kendall"] == pytest.approx((4 - 2) / 6)


def test_constant_predictions_have_no_rank_correlation() -> None:
    found = agreement([1.0, 1.0], [1.0, 2.0])
    assert math.isnan(found["spearman"])
    assert math.isnan(found["kendall"])
    assert found["mape"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [0.0, 1.0]), ([math.nan, 1.0], [1.0, 1.0])],
)
def test_pairs_that_have_no_agreement_are_refused(
    predicted: list[float], measured: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"pairs|finite"):
        agreement(predicted, measured)
