"""Custom evaluators and cost models from Python: their results are validated."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from hwnas.core.errors import ConfigError, RunError
from hwnas.core.quantity import SOURCES, Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.derived_metrics import DerivedMetrics
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics import is_better, metric_of
from hwnas.training.evaluation.interfaces import Evaluator


@final
class CheckedEvaluator:
    """A custom evaluator whose scores are validated."""

    def __init__(self, evaluator: Evaluator, metric: str):
        self._evaluator, self._metric = evaluator, metric

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the score of a genotype, with numbers of arrays and tensors as Python numbers.

        Raises:
            ConfigError: the result is no ``hwnas.Score``, is out of the metric's range, has an
                unknown source, or a number that is not finite.
        """
        source = f"evaluator= for network {genotype.id}"
        result: object = self._evaluator.score(genotype, incumbent)
        if not isinstance(result, Score):
            raise ConfigError(
                f"{source} returns {_describe_value(result)}. It must return a score, for example "
                'hwnas.Score(hwnas.Quantity(0.9, "modelled")).'
            )
        figure = _figure(result.figure, f"{source}: {self._metric}")
        _check_bounds(figure.value, self._metric, source)
        return replace(
            result,
            figure=figure,
            n_images=None if result.n_images is None else int(result.n_images),
            stopped=bool(result.stopped),
            details=_numbers(result.details, source),
        )


@final
class CheckedCostModel:
    """A custom cost model whose costs are validated: complete, finite, with a known source.

    Raises:
        ConfigError: the cost model has no attribute ``max_cost_queries``.
    """

    def __init__(self, model: CostModel, derives: DerivedMetrics, needed: Sequence[str]):
        if not hasattr(model, "max_cost_queries"):
            raise ConfigError(
                "cost_model= has no attribute max_cost_queries. Add it to the class: the maximum "
                "number of networks whose costs the sampler computes per proposal, or None for no "
                "limit."
            )
        self._model, self._derives, self._needed = model, derives, needed
        self.max_cost_queries = model.max_cost_queries

    def cost(self, genotype: Genotype) -> Cost:
        """Return the costs of a genotype by name, with derived metrics.

        Raises:
            CompileError: the cost model rejects the network.
            ConfigError: the result is no ``hwnas.Cost``, lacks an objective or a limited cost, has
                an unknown source, or a number that is not finite.
        """
        result = self._validated_cost(genotype)
        missing = [name for name in self._needed if name not in result.figures]
        if missing and not result.reason:
            raise ConfigError(
                f"cost_model= returns no {', '.join(missing)}. It must return latency_ms and all "
                "costs among the objectives and limits. Add them, or set for example "
                'objectives=["accuracy","latency_ms"], budget="none".'
            )
        return result

    def _validated_cost(self, genotype: Genotype) -> Cost:
        source = f"cost_model= for network {genotype.id}"
        result: object = self._model.cost(genotype)
        if not isinstance(result, Cost):
            raise ConfigError(
                f"{source} returns {_describe_value(result)}. It must return costs, for example "
                'hwnas.Cost({"latency_ms": hwnas.Quantity(1.5, "modelled")}).'
            )
        return replace(
            result,
            figures=self._derives(_figures(result.figures, source)),
            details=_numbers(result.details, source),
            segments=tuple(_figures(segment, source) for segment in result.segments),
        )


def _check_bounds(value: float, metric: str, source: str) -> None:
    """Reject a value out of the metric's range: it probably has another unit."""
    perfect, worst = metric_of(metric).perfect, metric_of(metric).worst
    if perfect is not None and is_better(metric, value, perfect):
        raise ConfigError(
            f"{source}: {metric} is {value:g}, better than the best possible value {perfect:g}. "
            f"{'Return a fraction, not per cent' if perfect == 1 else 'Correct the result'}."
        )
    if worst is not None and is_better(metric, worst, value):
        raise ConfigError(
            f"{source}: {metric} is {value:g}, worse than the worst possible value {worst:g}. "
            "Correct the result."
        )


def _figures(figures: Mapping[str, Quantity], source: str) -> dict[str, Quantity]:
    return {name: _figure(figure, f"{source}: {name}") for name, figure in figures.items()}


def _numbers(details: Mapping[str, float], source: str) -> dict[str, float]:
    return {name: _number(value, f"{source}: {name}") for name, value in details.items()}


def _figure(figure: object, label: str) -> Quantity:
    """Return a quantity with plain numbers.

    Raises:
        ConfigError: it is no quantity, or an invalid one.
    """
    if not isinstance(figure, Quantity):
        raise ConfigError(
            f"{label} is {_describe_value(figure)}. Return hwnas.Quantity(VALUE, SOURCE)."
        )
    if figure.source not in SOURCES:
        raise ConfigError(
            f"{label} has the source {figure.source!r}. Allowed: {', '.join(SOURCES)}."
        )
    value = _number(figure.value, label)
    ends = [e if e is None else _number(e, f"{label} at an end") for e in (figure.low, figure.high)]
    low, high = ends
    if (low is not None and low > value) or (high is not None and high < value):
        raise ConfigError(
            f"{label} is {value:g}, which is not between the ends of its own 95 % interval, "
            f"low={low} and high={high}. Correct the returned hwnas.Quantity."
        )
    return Quantity(value, figure.source, low, high)


def _number(value: object, label: str) -> float:
    """Return a number of any library as a float.

    Raises:
        ConfigError: it is no number, or not finite.
    """
    try:
        number = float("" if isinstance(value, str) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of several elements
        raise ConfigError(f"{label} is {_describe_value(value)}. It must be a number.") from None
    if not math.isfinite(number):
        raise ConfigError(f"{label} is {number}. It must be a finite number.")
    return number


def _describe_value(value: object) -> str:
    """Return type and value in one line."""
    return f"{type(value).__name__} {' '.join(reprlib.repr(value).split())}"


_DIGESTS = {"evaluator": "own evaluator", "cost_model": "own cost model"}


@dataclass(frozen=True)
class CustomComponents:
    """Evaluator and cost model that a search from Python is given; a run records their classes.

    Raises:
        ConfigError: an object lacks its method.
    """

    evaluator: Evaluator | None = None  #: scores networks; final weights follow ``accuracy=``
    cost_model: CostModel | None = None  #: of candidates; compiled files are costed as usual

    def __post_init__(self) -> None:
        for keyword, component, has in (
            ("evaluator", self.evaluator, "score"),
            ("cost_model", self.cost_model, "cost"),
        ):
            if component is not None and not callable(getattr(component, has, None)):
                raise ConfigError(
                    f"{keyword}= is {_describe_value(component)}, which has no method {has}. See "
                    "help(hwnas.search)."
                )

    @property
    def named(self) -> dict[str, str]:
        """Names of the objects' classes, by keyword ``evaluator`` or ``cost_model``."""
        components = {"evaluator": self.evaluator, "cost_model": self.cost_model}
        return {
            keyword: f"{type(o).__module__}.{type(o).__qualname__}"
            for keyword, o in components.items()
            if o is not None
        }

    @property
    def digests(self) -> dict[str, str]:
        """Names of the objects' classes, by ``own evaluator`` or ``own cost model``."""
        return {_DIGESTS[keyword]: name for keyword, name in self.named.items()}

    def check_resumed(self, earlier: Row, folder: str) -> None:
        """Refuse to resume a run without its objects, or with those of other classes.

        Args:
            earlier: Manifest of the run; empty for a new run.
            folder: Folder of the run, for messages.

        Raises:
            RunError: a class differs.
        """
        if not earlier:
            return
        recorded: Mapping[str, str] = earlier.get("own", {})
        for keyword in {**recorded, **self.named}:
            if recorded.get(keyword) == self.named.get(keyword):
                continue
            if keyword not in recorded:
                raise RunError(
                    f"run.resume={folder}: that search had no custom {keyword}. Resume it without "
                    f"{keyword}=, or start a new search."
                )
            raise RunError(
                f"run.resume={folder}: that search used a custom {keyword} of class "
                f"{recorded[keyword]}. Resume it from Python with an object of this class: "
                f'hwnas.search(resume="{folder}", {keyword}=...).'
            )

    def check_alone(self, n_targets: int, workers: int | None) -> None:
        """Reject custom objects in several processes, and a cost model for several targets.

        Raises:
            ConfigError: they are combined.
        """
        if self.named and (workers or 1) > 1:
            raise ConfigError(
                f"study.workers={workers} is not possible with {'= and '.join(self.named)}=: "
                "custom objects run in one process only. Remove study.workers."
            )
        if self.cost_model is not None and n_targets > 1:
            raise ConfigError(
                f"cost_model= is for one target, got {n_targets}. Search for each target "
                "separately."
            )
