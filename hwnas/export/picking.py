"""Selects the members of a front to export: by name, by id, or by an expression."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hwnas.core.errors import ConfigError, RunError, unknown_name
from hwnas.nas.front import Front
from hwnas.nas.member import Member
from hwnas.tasks import metrics
from hwnas.tasks.metrics import costs_in, maximise_flags, metric_of, quality_in

NAMES = ("knee", "most_accurate", "fastest", "smallest", "all")
Values = Mapping[str, float]  #: verified values of one network, by column
#: values of networks by id; columns of a search for several targets: ``npu.latency_ms``
Offers = Mapping[str, Values]

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM = "[COLUMN max|min] [where COLUMN <= NUMBER and ...]"


@dataclass(frozen=True)
class Query:
    """The parsed form of ``pick='accuracy max where latency_ms <= 0.8 and flash_kib < 300'``."""

    column: str | None  #: the column to optimise; ``None``: select all networks within the limits
    maximise: bool  #: whether ``column`` is maximised
    limits: Sequence[tuple[str, str, float]]  #: column, comparison and number

    def holds(self, values: Values) -> bool:
        """Return True if the values of a network meet all limits.

        ``values`` must have all columns of the limits.
        """
        return all(_COMPARISONS[sign](values[name], number) for name, sign, number in self.limits)


def parse(text: str, columns: Collection[str]) -> Query:
    """Return the parsed form of ``[COLUMN max|min] [where COLUMN <= NUMBER {and ...}]``.

    Comparisons are ``<=``, ``>=``, ``<`` and ``>``.

    Args:
        text: The expression.
        columns: Allowed columns.

    Raises:
        ConfigError: the text is empty or has another form, or names a column that is not in
            ``columns``.
    """
    # Names of targets are free text, so that known columns are matched before words.
    known = "|".join(map(re.escape, sorted(columns, key=len, reverse=True))) or "(?!)"
    name = rf"((?:{known})(?![\w.])|[A-Za-z_][\w.]*)"
    limit = rf"{name}\s*(<=|>=|<|>)\s*({_NUMBER})"
    goal = rf"{name}\s+(max|min)"
    form = rf"\s*(?:{goal})?\s*(?:(?<!\S)where\s+({limit}(?:\s+and\s+{limit})*))?\s*"
    match = re.fullmatch(form, text) if text.strip() else None
    if match is None:
        raise ConfigError(f"pick='{text}': expected {_FORM}. Columns: {', '.join(columns)}.")
    limits = [(n, sign, float(number)) for n, sign, number in re.findall(limit, match[3] or "")]
    for used in filter(None, (match[1], *(n for n, _, _ in limits))):
        if used not in columns:
            raise ConfigError(f"pick: {unknown_name('column', used, columns)}")
    return Query(match[1], match[2] == "max", limits)


def pick(front: Front, wanted: str, *, force: bool = False) -> list[str]:
    """Return the ids of the selected members of a front.

    An expression without ``max`` or ``min``, and ``all``, select all members within the limits,
    those with the worst metric first. Others select one.

    Args:
        front: The verified front.
        wanted: A name of ``NAMES``, or an expression, see ``parse``. Ids are not accepted.
        force: Whether to include members that are not significantly better than a constant answer.

    Raises:
        ConfigError: no member is within the limits, or ``wanted`` is neither a name nor a valid
            expression.
        RunError: no member was verified, or none can be selected.
    """
    if not front.members:
        several = any("." in name for name in front.objectives)  # each target may have a front
        raise RunError(
            f"No network was verified{' for all targets' * several}: "
            + "choose one target by target_name=TARGET, or " * several
            + "select a network by its id."
        )
    offers = offered(front, force=force)
    if front.is_at_chance_level and not force:
        raise RunError(
            "No network is significantly better than a constant answer; select one by its id."
        )
    if not offers:
        raise RunError(
            "No member of the front is left after verification (over the budget, or no faster in "
            "int8 than in float32); select one by its id."
        )
    if wanted == "all":
        return [*offers]
    if wanted in NAMES:
        return [_id_by_name(wanted, offers, front.objectives)]
    if re.fullmatch(r"[\w-]+", wanted):
        example = "Or give an id, or an expression as 'accuracy max where latency_ms <= 0.8'."
        raise ConfigError(f"{unknown_name('pick', wanted, NAMES)} {example}")
    columns = sorted(set.intersection(*map(set, offers.values())))
    query = parse(wanted, columns)
    fitting = {name: values for name, values in offers.items() if query.holds(values)}
    if not fitting:
        named = [n for n in columns if n in wanted]
        raise ConfigError(
            f"None of {len(offers)} members of the front meets the limits of pick='{wanted}'. "
            "Change the limits; "
            f"on the front: {_ranges([*offers.values()], named, quality_in(front.objectives))}."
        )
    if query.column is None:
        return [*fitting]
    name, sign = query.column, -1 if query.maximise else 1
    return [_argmin(fitting, front.objectives, lambda values: sign * values[name])]


def offered(front: Front, *, force: bool = False) -> Offers:
    """Return the verified values of members on the front by id, those with the worst metric first.

    Members that verification removed from the front are left out; without ``force`` also those that
    are not significantly better than a constant answer. The metric is that of the compiled
    artefact; of several targets, the worst one.
    """
    offers = {
        member.candidate.id: {n: float(f.value) for n, f in sorted(member.all_figures.items())}
        for member in (front.remaining if force else front.recommendable)
    }
    return dict(sorted(offers.items(), key=lambda o: (-_error(o[1], front.objectives), o[0])))


def recommended(front: Front) -> Member | None:
    """Return the knee (see ``knee``) of the members that are better than a constant answer.

    ``None`` if no member on the front is significantly better than that.
    """
    if not (offers := offered(front)):
        return None
    name = knee(offers, front.objectives)
    return next(member for member in front.members if member.candidate.id == name)


def knee(offers: Offers, objectives: Sequence[str]) -> str:
    """Return the id of the member farthest above the line between the ends of a front.

    All objectives are scaled to 0 to 1 over the front. With one cost the chord leads from the
    cheapest to the most accurate member; with several it is the plane on which the scaled metric is
    the mean of the scaled costs. Ties: the better metric, then the lower costs, then the lower id.

    Args:
        offers: Values of at least one member, by id.
        objectives: Columns of the metric and of one or more costs.

    Source: Das, "On characterizing the 'knee' of the Pareto curve based on normal-boundary
    intersection", Structural Optimization 1999, https://doi.org/10.1007/BF01195985.
    """
    metric, costs = quality_in(objectives), costs_in(objectives)

    def scaled(offer: Values, name: str) -> float:
        values = [other[name] for other in offers.values()]
        low, high = min(values), max(values)
        share = (offer[name] - low) / (high - low) if high > low else 0.0
        return 1 - share if metric_of(name).maximise is not (name == metric) else share

    def height(offer: Values) -> float:
        return scaled(offer, metric) - sum(scaled(offer, c) for c in costs) / len(costs)

    return _argmin(offers, objectives, lambda offer: -height(offer))


def geometric_mean(offer: Values, name: str) -> float:
    """Return the geometric mean of a cost over the targets; with one target, the cost.

    Args:
        offer: Values of a network.
        name: The cost without its target: ``latency_ms``. Values are raised to at least 1e-12.
    """
    values = [value for n, value in offer.items() if n.rpartition(".")[2] == name]
    return math.exp(sum(math.log(max(v, 1e-12)) for v in values) / len(values))


def _id_by_name(name: str, offers: Offers, objectives: Sequence[str]) -> str:
    if name == "knee":
        return knee(offers, objectives)
    key: Mapping[str, Callable[[Values], float]] = {
        "most_accurate": lambda offer: _error(offer, objectives),
        "fastest": lambda offer: geometric_mean(offer, "latency_ms"),
        "smallest": lambda offer: geometric_mean(offer, "flash_kib"),
    }
    return _argmin(offers, objectives, key[name])


def _argmin(offers: Offers, objectives: Sequence[str], key: Callable[[Values], float]) -> str:
    """Return the id with the lowest key; ties: the better metric, the lower costs, the lower id."""
    names = costs_in(objectives)
    signs = [-1.0 if maximise else 1.0 for maximise in maximise_flags(names)]

    def rank(offer: tuple[str, Values]) -> tuple[float | str, ...]:
        costs = (sign * offer[1][name] for sign, name in zip(signs, names, strict=True))
        return (key(offer[1]), _error(offer[1], objectives), *costs, offer[0])

    return min(offers.items(), key=rank)[0]


def _error(offer: Values, objectives: Sequence[str]) -> float:
    """Return the metric of a network, negated if it is to be maximised."""
    metric = quality_in(objectives)
    return -offer[metric] if metric_of(metric).maximise else offer[metric]


def _ranges(offers: Sequence[Values], names: Iterable[str], metric: str) -> str:
    ranges = []
    for name in [*names] or [metric, *(n for n in metrics.cost_names() if n in offers[0])]:
        values = [offer[name] for offer in offers]
        ranges.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    return ", ".join(ranges)
