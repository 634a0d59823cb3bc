"""Objects of the user's own as a search asks them: what they say is held to what files can say."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from hwnas.accuracy.base import Evaluator
from hwnas.cost.base import Cost, CostModel
from hwnas.errors import ConfigError
from hwnas.figure import SOURCES, Figure
from hwnas.metrics import better, column
from hwnas.metrics.deriving import Deriving
from hwnas.space import Genotype
from hwnas.tasks.score import Incumbent, Score


@final
class AskedEvaluator:
    """An evaluator of the user's own, held to say a score that can be kept."""

    def __init__(self, evaluator: Evaluator, metric: str):
        self._evaluator, self._metric = evaluator, metric

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the score of one genotype, its numbers plain ones.

        Raises:
            ConfigError: it is no score, or none that the metric can have.
        """
        where = f"evaluator= says of network {genotype.id}"
        found: object = self._evaluator.score(genotype, incumbent)
        if not isinstance(found, Score):
            raise ConfigError(
                f"{where} {_shown(found)}; it must return "
                'hwnas.Score(hwnas.Figure(0.9, "modelled")) or the like.'
            )
        figure = _figure(found.figure, f"{where} that {self._metric}")
        _check_bounds(figure.value, self._metric, where)
        return replace(
            found,
            figure=figure,
            n_images=None if found.n_images is None else int(found.n_images),
            stopped=bool(found.stopped),
            details=_numbers(found.details, where),
        )


@final
class AskedCostModel:
    """A cost model of the user's own, held to say all that is asked of it, and that soundly."""

    def __init__(self, model: CostModel, derives: Deriving, asked: Sequence[str]):
        if not hasattr(model, "n_affordable"):
            raise ConfigError(
                "cost_model= has no n_affordable: how many networks a sampler may ask about for "
                "each that it proposes; None is any number."
            )
        self._model, self._derives, self._asked = model, derives, asked
        self.n_affordable = model.n_affordable

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype, with what is derived from it.

        Raises:
            CompileError: it refuses the network.
            ConfigError: it is no cost, or does not say what objectives and budget are about.
        """
        found = self._said(genotype)
        missing = [name for name in self._asked if name not in found.figures]
        if missing and not found.reason:
            raise ConfigError(
                f"cost_model= says no {', '.join(missing)}: objectives, the limits of the budget "
                "and latency_ms are asked for; say them, or ask for less, as with objectives="
                '["accuracy","latency_ms"], budget="none".'
            )
        return found

    def _said(self, genotype: Genotype) -> Cost:
        where = f"cost_model= says of network {genotype.id}"
        found: object = self._model.cost(genotype)
        if not isinstance(found, Cost):
            raise ConfigError(
                f"{where} {_shown(found)}; it must return "
                'hwnas.Cost({"latency_ms": hwnas.Figure(1.5, "modelled")}) or the like.'
            )
        return replace(
            found,
            figures=self._derives(_figures(found.figures, where)),
            details=_numbers(found.details, where),
            segments=tuple(_figures(segment, where) for segment in found.segments),
        )


def _check_bounds(value: float, metric: str, where: str) -> None:
    """Refuse a value better than the perfect one, or worse than the worst: one of another unit."""
    perfect, worst = column(metric).perfect, column(metric).worst
    if perfect is not None and better(metric, value, perfect):
        raise ConfigError(
            f"{where} that {metric} is {value:g}, which is better than a perfect {perfect:g}"
            f"{'; say a fraction, not per cent' if perfect == 1 else ''}."
        )
    if worst is not None and better(metric, worst, value):
        raise ConfigError(f"{where} that {metric} is {value:g}; the worst there is is {worst:g}.")


def _figures(figures: Mapping[str, Figure], where: str) -> dict[str, Figure]:
    return {name: _figure(figure, f"{where} that {name}") for name, figure in figures.items()}


def _numbers(details: Mapping[str, float], where: str) -> dict[str, float]:
    return {name: _number(value, f"{where} that {name}") for name, value in details.items()}


def _figure(figure: object, what: str) -> Figure:
    """Return a figure whose numbers are plain ones.

    Raises:
        ConfigError: it is no figure, or one that a run could not be read with.
    """
    if not isinstance(figure, Figure):
        raise ConfigError(f"{what} is {_shown(figure)}; say hwnas.Figure(VALUE, SOURCE).")
    if figure.source not in SOURCES:
        raise ConfigError(
            f"{what} has the source {figure.source!r}; allowed: {', '.join(SOURCES)}."
        )
    value = _number(figure.value, what)
    ends = [e if e is None else _number(e, f"{what} at an end") for e in (figure.low, figure.high)]
    low, high = ends
    if (low is not None and low > value) or (high is not None and high < value):
        raise ConfigError(f"{what} is {value:g}, outside its interval from {low} to {high}.")
    return Figure(value, figure.source, low, high)


def _number(value: object, what: str) -> float:
    """Return a number of any library as a plain one.

    Raises:
        ConfigError: it is none, or not finite.
    """
    try:
        number = float("" if isinstance(value, str) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of several
        raise ConfigError(f"{what} is {_shown(value)}; it must be a number.") from None
    if not math.isfinite(number):
        raise ConfigError(f"{what} is {number}; it must be a finite number.")
    return number


def _shown(value: object) -> str:
    """Return a value in a few words of one line."""
    return f"{type(value).__name__} {' '.join(reprlib.repr(value).split())}"
