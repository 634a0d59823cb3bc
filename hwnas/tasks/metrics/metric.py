"""What a metric is, and how one figure follows from another.

A metric that is derived has the source and the interval of the figure that it is computed from:
from a measured latency follows a measured throughput, and a measured cost at a stated price. Facts
of a target count as exact numbers, as the factor between two units does. How far off a price or a
grid's yearly mean is, no interval says; it is the same for all networks, and orders none of them
otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hwnas.core.quantity import Quantities, Quantity


class Target(Protocol):
    """The properties of a target from which metrics are derived."""

    @property
    def name(self) -> str:
        """Name of the target."""
        ...

    @property
    def batch(self) -> int:
        """Images per inference."""
        ...

    @property
    def facts(self) -> Mapping[str, float]:
        """Numbers by name, such as a price per hour."""
        ...


@dataclass(frozen=True)
class Metric:
    """What a figure is: its label for people, its unit, which direction is better, its origin."""

    name: str  #: of its column in all files, which ends with its unit
    label: str
    unit: str = ""
    maximise: bool = False
    perfect: float | None = None  #: value that no network betters; only metrics of tasks have one
    worst: float | None = None  #: value that no network is worse than, where there is one
    #: Computes it from the figures named in ``needs`` and from a target that states ``facts``;
    #: ``None``: a cost model, or reading images, says it.
    derive: Callable[[Quantities, Target], Quantity] | None = None
    needs: tuple[str, ...] = ()  #: the metrics that it is derived from
    #: The cost of which it is the mean over images that leave at early exits: it is known only once
    #: images were read; empty: it is no such mean.
    mean_of: str = ""
    #: What a target must state (``target.facts``), by name, in words.
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Label with unit, for axes and table heads."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def relation(self) -> str:
        """What a limit says: ``<=`` is an upper one, ``>=`` a lower one."""
        return ">=" if self.maximise else "<="

    def best(self, figure: Quantity) -> float:
        """Return the better end of a figure's interval."""
        end = figure.high if self.maximise else figure.low
        return figure.value if end is None else end

    def binding(self, figure: Quantity) -> float:
        """Return the end of a figure's interval that a limit is held against: the worse one."""
        return figure.lower if self.maximise else figure.upper

    def violation(self, figure: Quantity, limit: float) -> float:
        """Return how far a figure is on the wrong side of a limit, as a fraction of the limit.

        Zero or less fits.
        """
        share = self.binding(figure) / limit
        return 1.0 - share if self.maximise else share - 1.0


def times(figure: Quantity, factor: float) -> Quantity:
    """Return a figure times a positive factor."""
    low, high = (None if end is None else end * factor for end in (figure.low, figure.high))
    return Quantity(figure.value * factor, figure.source, low, high)


def over(number: float, figure: Quantity) -> Quantity:
    """Return a positive number over a positive figure: the ends of its interval change places.

    An end at zero is none for what is over it.
    """
    low, high = (number / end if end else None for end in (figure.high, figure.low))
    return Quantity(number / figure.value, figure.source, low, high)
