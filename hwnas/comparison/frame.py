"""The frame of a comparison: ideal and reference point, by which objectives are normalised."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.comparison.fronts import Array, Objective
from hwnas.errors import ConfigError
from hwnas.records import read_yaml

FORMAT = 1  #: of files that a comparison writes; earlier ones, and those of people, say none
_MARGIN = 0.1  # of the range, that the reference point is beyond the worst


@dataclass(frozen=True)
class Frame:
    """Two points in the units of the objectives: nothing is expected beyond either."""

    objectives: tuple[Objective, ...]
    ideal: Array  #: ``(objectives,)``
    reference: Array  #: ``(objectives,)``; worse than the ideal in each
    origin: str  #: in words

    @property
    def maximise(self) -> list[bool]:
        """Which objectives are to be maximised."""
        return [objective.maximise for objective in self.objectives]

    @property
    def volume(self) -> float:
        """The volume between the two points, in the product of the objectives' units."""
        return float(np.prod(np.abs(self.reference - self.ideal)))

    def normalised(self, values: Array) -> Array:
        """Return values to be minimised: 0 at the ideal, 1 at the reference point."""
        return (values - self.ideal) / (self.reference - self.ideal)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return what a later comparison reads by ``reference=FILE``."""
        return {
            "ideal": self._named(self.ideal),
            "reference": self._named(self.reference),
        }

    def _named(self, point: Array) -> dict[str, float]:
        return {o.name: float(x) for o, x in zip(self.objectives, point, strict=True)}


def spanned(values: Array, objectives: Sequence[Objective]) -> Frame:
    """Return the frame of all compared points ``(n, objectives)``.

    The ideal is the best of each objective, the reference point the worst and a tenth of the range
    beyond. Where all points are equal in an objective, a tenth of its value stands in for that.
    """
    sign = np.array([-1.0 if o.maximise else 1.0 for o in objectives])
    best, worst = (values * sign).min(axis=0), (values * sign).max(axis=0)
    span = worst - best
    equal = span <= 0
    margin = np.where(equal, np.where(best == 0, 1.0, np.abs(best)), span) * _MARGIN
    origin = f"the worst of all compared points and {_MARGIN:.0%} of the range beyond"
    return Frame(tuple(objectives), best * sign, (worst + margin) * sign, origin)


def read(path: Path, objectives: Sequence[Objective]) -> Frame:
    """Read the frame of an earlier comparison, or a small JSON or YAML file of one.

    Raises:
        ConfigError: it does not name both points in these objectives, or is of a newer version.
    """
    where = f"reference={path}"
    try:
        content = read_yaml(dict[str, Any], path, ConfigError, where, newest=FORMAT)
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no such file.") from None
    points = [_point(content, key, objectives, where) for key in ("ideal", "reference")]
    for objective, best, worst in zip(objectives, *points, strict=True):
        if not (best > worst if objective.maximise else best < worst):
            raise ConfigError(
                f"{where}: the reference point must be worse than the ideal, but for "
                f"{objective.name} they are {worst:g} and {best:g}."
            )
    ideal, reference = (np.array(point) for point in points)
    return Frame(tuple(objectives), ideal, reference, f"that of {path}")


def _point(content: Any, key: str, objectives: Sequence[Objective], where: str) -> list[float]:
    point = content.get(key) if isinstance(content, dict) else None
    example = json.dumps({"ideal": {"accuracy": 0.9}, "reference": {"accuracy": 0.5}})
    names = [o.name for o in objectives]
    if not isinstance(point, Mapping) or not all(_is_number(point.get(n)) for n in names):
        raise ConfigError(
            f"{where}: '{key}' must give a number for each of {', '.join(names)}, as in {example}."
        )
    return [float(point[name]) for name in names]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
