"""Which models of a search are exported: by name, by id, or by what is asked of them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from hwnas import metrics
from hwnas.errors import ConfigError, RunError, unknown
from hwnas.export import expression
from hwnas.export.expression import Values
from hwnas.metrics import column, maximised, paid, quality
from hwnas.searching.verified_front import VerifiedFront

NAMES = ("knee", "most_accurate", "fastest", "smallest", "all")
Offers = Mapping[
    str, Values
]  #: verified values by column, by id; on several targets npu.latency_ms


def pick(front: VerifiedFront, wanted: str) -> list[str]:
    """Return the ids of what is wanted: a name of ``NAMES``, or an expression.

    Raises:
        ConfigError: nothing on the front is so, or the text means nothing.
        RunError: the front is empty, or no member is left on it after verification.
    """
    if not front.members:  # of several targets: each may have a front
        raise RunError(
            "No network was verified for all targets: say for which one with only=TARGET, or name "
            "a network by its id: pick=ID."
        )
    offers = offered(front)
    if not offers:
        raise RunError(
            "No member of the front fits the budget after verification; name one by its id: "
            "pick=ID."
        )
    if wanted == "all":
        return [*offers]
    if wanted in NAMES:
        return [_named(wanted, offers, front.objectives)]
    if re.fullmatch(r"[\w-]+", wanted):
        raise ConfigError(f"{unknown('pick', wanted, NAMES)} Or an id, or an expression.")
    columns = sorted(set.intersection(*map(set, offers.values())))
    query = expression.parse(wanted, columns)
    fitting = {name: values for name, values in offers.items() if query.holds(values)}
    if not fitting:
        named = [n for n in columns if n in wanted]
        raise ConfigError(
            f"None of {len(offers)} members of the front fulfils pick='{wanted}'. On the front: "
            f"{_ranges([*offers.values()], named, quality(front.objectives))}."
        )
    if query.column is None:
        return [*fitting]
    name, sign = query.column, -1 if query.maximise else 1
    return [_least(fitting, front.objectives, lambda values: sign * values[name])]


def offered(front: VerifiedFront) -> Offers:
    """Return those that stayed on a front, the worst answers first.

    The metric is that of the artefact itself; on several targets, that where it is worst.
    """
    offers = {
        member.candidate.id: {n: float(f.value) for n, f in sorted(member.all_figures.items())}
        for member in front.staying
    }
    return dict(sorted(offers.items(), key=lambda o: (-_error(o[1], front.objectives), o[0])))


def knee(offers: Offers, objectives: Sequence[str]) -> str:
    """Return the id of the member farthest above the chord of a front.

    All objectives are scaled to 0 to 1 over the front. With one cost the chord leads from the
    cheapest to the most accurate member; with several it is the plane on which the scaled metric is
    the mean of the scaled costs.

    Source: Das, "On characterizing the 'knee' of the Pareto curve based on normal-boundary
    intersection", Structural Optimization 1999, https://doi.org/10.1007/BF01195985.
    """
    metric, costs = quality(objectives), paid(objectives)

    def scaled(offer: Values, name: str) -> float:
        values = [other[name] for other in offers.values()]
        low, high = min(values), max(values)
        share = (offer[name] - low) / (high - low) if high > low else 0.0
        return 1 - share if column(name).maximise is not (name == metric) else share

    def height(offer: Values) -> float:
        return scaled(offer, metric) - sum(scaled(offer, c) for c in costs) / len(costs)

    return _least(offers, objectives, lambda offer: -height(offer))


def geometric_mean(offer: Values, name: str) -> float:
    """Return a cost; on several targets the geometric mean of them."""
    values = [value for n, value in offer.items() if n.rpartition(".")[2] == name]
    return math.exp(sum(math.log(max(v, 1e-12)) for v in values) / len(values))


def _named(name: str, offers: Offers, objectives: Sequence[str]) -> str:
    if name == "knee":
        return knee(offers, objectives)
    key: Mapping[str, Callable[[Values], float]] = {
        "most_accurate": lambda offer: _error(offer, objectives),
        "fastest": lambda offer: geometric_mean(offer, "latency_ms"),
        "smallest": lambda offer: geometric_mean(offer, "flash_kib"),
    }
    return _least(offers, objectives, key[name])


def _least(offers: Offers, objectives: Sequence[str], key: Callable[[Values], float]) -> str:
    """Return the id of what has least; among equals decide the metric, the costs, then the id."""
    names = paid(objectives)
    signs = [-1.0 if maximise else 1.0 for maximise in maximised(names)]

    def rank(offer: tuple[str, Values]) -> tuple[float | str, ...]:
        costs = (sign * offer[1][name] for sign, name in zip(signs, names, strict=True))
        return (key(offer[1]), _error(offer[1], objectives), *costs, offer[0])

    return min(offers.items(), key=rank)[0]


def _error(offer: Values, objectives: Sequence[str]) -> float:
    """Return the metric of an offer, to be minimised."""
    metric = quality(objectives)
    return -offer[metric] if column(metric).maximise else offer[metric]


def _ranges(offers: Sequence[Values], names: Iterable[str], metric: str) -> str:
    found = []
    for name in [*names] or [metric, *(n for n in metrics.costs() if n in offers[0])]:
        values = [offer[name] for offer in offers]
        found.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    return ", ".join(found)
