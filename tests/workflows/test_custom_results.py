"""Results of custom evaluators and cost models: conversion and errors."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.derived_metrics import DerivedMetrics
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score
from hwnas.workflows.search.custom import CheckedCostModel, CheckedEvaluator, CustomComponents

GENOTYPE = Genotype("tiny", (("depth", 1),))


class FixedResult:
    """Custom component that returns the same result for any network."""

    max_cost_queries: int | None = None

    def __init__(self, result: Any) -> None:
        self._result = result

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Any:
        return self._result

    def cost(self, genotype: Genotype) -> Any:
        return self._result


def _score(result: Any, metric: str = "accuracy") -> Score:
    return CheckedEvaluator(FixedResult(result), metric).score(GENOTYPE)


def _cost(result: Any) -> Cost:
    derives = DerivedMetrics(None, ())  # type: ignore[arg-type] # nothing is derived
    return CheckedCostModel(FixedResult(result), derives, ("latency_ms",)).cost(GENOTYPE)


def _figure(value: Any, source: Any = "modelled", low: Any = None, high: Any = None) -> Quantity:
    return Quantity(value, source, low, high)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5)])
def test_numbers_of_any_library_become_floats(value: Any) -> None:
    score = _score(Score(_figure(value), np.int64(9), details={"loss": value}))  # type: ignore[arg-type]
    cost = _cost(Cost({"latency_ms": _figure(value, high=value)}, {"cycles": value}))
    latency = cost.figures["latency_ms"]
    numbers = [score.figure.value, score.details["loss"], latency.value, cost.details["cycles"]]
    assert [*numbers, latency.high] == [0.5] * 5
    assert {type(number) for number in numbers} == {float}
    assert type(score.n_images) is int


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        (_figure(0.9, "proxy"), r"has the source 'proxy'\. Allowed: measured, compiler-estimate,"),
        (_figure(math.nan), r"is nan\. It must be a finite number"),
        (_figure(math.inf), r"is inf\. It must be a finite number"),
        (_figure("0.5"), r"is str '0.5'\. It must be a number"),
        (_figure(torch.ones(2)), r"is Tensor .*\. It must be a number"),
        (_figure(0.5, low=0.6), r"is 0\.5, which is not between .*, low=0.6 and high=None"),
        (_figure(0.5, low=math.nan), "at an end is nan"),
        (0.5, r"is float 0\.5\. Return hwnas\.Quantity\(VALUE, SOURCE\)"),
    ],
)
def test_invalid_figures_raise(figure: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^evaluator= for network .*: accuracy {message}"):
        _score(Score(figure))
    with pytest.raises(ConfigError, match=f"^cost_model= .*: latency_ms {message}"):
        _cost(Cost({"latency_ms": figure}))


def test_values_outside_metric_range_raise() -> None:
    with pytest.raises(
        ConfigError, match=r"accuracy is 50\.1, better than .* 1\. Return a fraction"
    ):
        _score(Score(_figure(50.1)))
    with pytest.raises(
        ConfigError, match=r"accuracy is -0\.5, worse than the worst possible value 0"
    ):
        _score(Score(_figure(-0.5)))
    with pytest.raises(ConfigError, match=r"mae is -0\.5, better than .* value 0\. Correct"):
        _score(Score(_figure(-0.5)), "mae")
    assert _score(Score(_figure(50.1)), "mae").figure.value == 50.1


def test_wrong_result_types_raise() -> None:
    with pytest.raises(ConfigError, match=r"float 0\.5\. It must return a score.* hwnas\.Score"):
        _score(0.5)
    with pytest.raises(ConfigError, match=r"dict .*\. It must return costs.* hwnas\.Cost"):
        _cost({"latency_ms": 0.5})


def test_incomplete_custom_components_raise() -> None:
    with pytest.raises(ConfigError, match=r"evaluator= is .* has no method score"):
        CustomComponents(evaluator=len)  # type: ignore[arg-type]
    model: Any = type("Model", (), {"cost": lambda self, genotype: Cost({})})()
    with pytest.raises(ConfigError, match="cost_model= has no attribute max_cost_queries"):
        CheckedCostModel(model, DerivedMetrics(None, ()), ())  # type: ignore[arg-type]
