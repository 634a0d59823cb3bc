"""Which models of a search are exported: by name, by id, or by what is asked of them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hwnas import metrics
from hwnas.errors import ConfigError, RunError, unknown
from hwnas.export import expression
from hwnas.metrics import column, paid, quality
from hwnas.searching import member
from hwnas.verified import FrontFile

NAMES = ("knee", "most_accurate", "fastest", "smallest", "all")
_VERIFIED = "verified_"


@dataclass(frozen=True)
class Offer:
    """A member of a front as verification found it."""

    id: str
    figures: Mapping[str, float]  #: verified, by column; on several targets ``npu.latency_ms``
    on_front: bool  #: whether it fits the budget and stayed on the front

    def cost(self, name: str) -> float:
        """Return a cost; on several targets the geometric mean of them."""
        values = [v for n, v in self.figures.items() if n.rpartition(".")[2] == name]
        return math.exp(sum(math.log(max(v, 1e-12)) for v in values) / len(values))


@dataclass(frozen=True)
class Front:
    """The members of a front, and what was optimised."""

    offers: Sequence[Offer]
    objectives: Sequence[str]

    @property
    def standing(self) -> list[Offer]:
        """Those that stayed on the front, the worst answers first."""
        return sorted(
            (offer for offer in self.offers if offer.on_front),
            key=lambda offer: (-_error(offer, self.objectives), offer.id),
        )


def read(content: FrontFile) -> Front:
    """Return the front that a run's ``front.json`` holds.

    The metric is that of the artefact itself; on several targets, that where it is worst.
    """
    offers, metric = [], quality(content["objectives"])
    worst = min if column(metric).maximise else max
    for row in content["members"]:
        names = [n.removeprefix(_VERIFIED) for n in row if f"{n}_source" in row]
        found = {n: row[_VERIFIED + n] for n in names if row.get(_VERIFIED + n) is not None}
        figures = {n: float(v) for n, v in found.items()}
        for target in {n.rpartition(".")[0] for n in figures}:
            prefix = f"{target}." if target else ""
            own = member.own(metric, [n.removeprefix(prefix) for n in figures])
            figures[f"{prefix}{metric}"] = figures[f"{prefix}{own}"]
        figures[metric] = worst(v for n, v in figures.items() if n.rpartition(".")[2] == metric)
        offers.append(Offer(row["id"], dict(sorted(figures.items())), row["verified_on_front"]))
    return Front(offers, tuple(content["objectives"]))


def pick(front: Front, wanted: str) -> list[str]:
    """Return the ids of what is wanted: a name of ``NAMES``, or an expression.

    Raises:
        ConfigError: nothing on the front is so, or the text means nothing.
        RunError: the front is empty, or no member is left on it after verification.
    """
    standing = front.standing
    if not front.offers:  # of several targets: each may have a front
        raise RunError(
            "No network was verified for all targets: say for which one with only=TARGET, or name "
            "a network by its id: pick=ID."
        )
    if not standing:
        raise RunError(
            "No member of the front fits the budget after verification; name one by its id: "
            "pick=ID."
        )
    if wanted == "all":
        return [offer.id for offer in standing]
    if wanted in NAMES:
        return [_named(wanted, standing, front.objectives).id]
    if re.fullmatch(r"[\w-]+", wanted):
        raise ConfigError(f"{unknown('pick', wanted, NAMES)} Or an id, or an expression.")
    columns = sorted(set.intersection(*(set(offer.figures) for offer in standing)))
    query = expression.parse(wanted, columns)
    fitting = [offer for offer in standing if query.holds(offer.figures)]
    if not fitting:
        raise ConfigError(
            f"None of {len(standing)} members of the front fulfils pick='{wanted}'. On the front: "
            f"{_ranges(standing, [n for n in columns if n in wanted], quality(front.objectives))}."
        )
    if query.column is None:
        return [offer.id for offer in fitting]
    name, sign = query.column, -1 if query.maximise else 1
    return [_least(fitting, lambda o: (sign * o.figures[name], *_rank(o, front.objectives))).id]


def _named(name: str, offers: Sequence[Offer], objectives: Sequence[str]) -> Offer:
    key: Mapping[str, Callable[[Offer], float]] = {
        "most_accurate": lambda offer: _error(offer, objectives),
        "fastest": lambda offer: offer.cost("latency_ms"),
        "smallest": lambda offer: offer.cost("flash_kib"),
    }
    if name == "knee":
        return knee(offers, objectives)
    return _least(offers, lambda offer: (key[name](offer), *_rank(offer, objectives)))


def knee(offers: Sequence[Offer], objectives: Sequence[str]) -> Offer:
    """Return the member farthest above the chord of a front.

    All objectives are scaled to 0 to 1 over the front. With one cost the chord leads from the
    cheapest to the most accurate member; with several it is the plane on which the scaled metric is
    the mean of the scaled costs.

    Source: Das, "On characterizing the 'knee' of the Pareto curve based on normal-boundary
    intersection", Structural Optimization 1999, https://doi.org/10.1007/BF01195985.
    """
    metric, costs = quality(objectives), paid(objectives)

    def scaled(offer: Offer, name: str) -> float:
        values = [other.figures[name] for other in offers]
        low, high = min(values), max(values)
        share = (offer.figures[name] - low) / (high - low) if high > low else 0.0
        return 1 - share if column(name).maximise is not (name == metric) else share

    def height(offer: Offer) -> float:
        return scaled(offer, metric) - sum(scaled(offer, c) for c in costs) / len(costs)

    return _least(offers, lambda offer: (-height(offer), *_rank(offer, objectives)))


def _rank(offer: Offer, objectives: Sequence[str]) -> tuple[float | str, ...]:
    """Return what decides among equals: the metric, then the costs, then the id."""
    names = paid(objectives)
    costs = [offer.figures[n] * (-1.0 if column(n).maximise else 1.0) for n in names]
    return (_error(offer, objectives), *costs, offer.id)


def _error(offer: Offer, objectives: Sequence[str]) -> float:
    """Return the metric of an offer, to be minimised."""
    metric = quality(objectives)
    value = offer.figures[metric]
    return -value if column(metric).maximise else value


def _least(offers: Sequence[Offer], key: Callable[[Offer], tuple[float | str, ...]]) -> Offer:
    return min(offers, key=key)


def _ranges(offers: Sequence[Offer], names: Sequence[str], metric: str) -> str:
    found = []
    for name in names or [metric, *(n for n in metrics.costs() if n in offers[0].figures)]:
        values = [offer.figures[name] for offer in offers]
        found.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    return ", ".join(found)
