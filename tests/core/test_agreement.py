import math

import pytest

from hwnas.core.agreement import agreement


def test_statistics_match_hand_computed_values() -> None:
    result = agreement([1.05, 1.8, 3.0, 5.0], [1.0, 2.0, 3.0, 4.0])  # +5 %, -10 %, 0, +25 %
    assert result["mape"] == pytest.approx(0.1)
    assert result["bias"] == pytest.approx(0.05)
    assert (result["within_5"], result["within_10"], result["within_20"]) == (0.5, 0.75, 0.75)
    assert result["spearman"] == pytest.approx(1.0)
    assert result["kendall"] == pytest.approx(1.0)


def test_rank_correlations_match_hand_computed_values() -> None:
    # Ranks 1 2 3 4 against 2 1 4 3: sum of squared differences 4, 4 concordant and 2 discordant.
    result = agreement([2.0, 1.0, 4.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    assert result["spearman"] == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert result["kendall"] == pytest.approx((4 - 2) / 6)


def test_constant_predictions_have_no_rank_correlation() -> None:
    result = agreement([1.0, 1.0], [1.0, 2.0])
    assert math.isnan(result["spearman"])
    assert math.isnan(result["kendall"])
    assert result["mape"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [0.0, 1.0]), ([math.nan, 1.0], [1.0, 1.0])],
)
def test_invalid_pairs_are_refused(predicted: list[float], measured: list[float]) -> None:
    with pytest.raises(ValueError, match=r"one shape|finite"):
        agreement(predicted, measured)
