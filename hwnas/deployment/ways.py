"""Which pools requests of a class go to, of those that servers run."""

from collections.abc import Iterator, Mapping, Sequence

from hwnas.deployment.pools import Deployed, by_hour
from hwnas.planning.plan import Plan, Route
from hwnas.planning.summary import spelt

_HEAD = """
## Where requests go

Requests of a class are sent to its graph of `kserve/`, or, where it has none, to the Service
`http://POOL:8000/v2/models/POOL/infer`. Without KServe, whoever sends them keeps to these shares:
those of each hour are the routes of `plan.yaml`.

| class | graph | hours of the plan | share | pool | what goes on, and where to |
|---|---|---|---|---|---|
"""

Way = tuple[str, str | None, float]  #: its pools, and the confidence below which requests go on


def ways(plan: Plan, klass: str, names: Mapping[str, str]) -> list[list[Route]]:
    """Return the ways of a class that servers run, by hour.

    Args:
        plan: The plan.
        klass: The class.
        names: Of pools that servers run, by how the plan calls them.
    """
    return [
        [r for r in hour.routes
         if r.klass == klass and r.first in names and (r.second is None or r.second in names)]
        for hour in by_hour(plan)
    ]  # fmt: skip


def way(route: Route) -> Way:
    """Return what tells a way from others."""
    return route.first, route.second, route.threshold


def table(plan: Plan, pools: Sequence[Deployed], graphs: Mapping[str, str]) -> str:
    """Return a table of where requests go; empty where no server answers any.

    Args:
        plan: The plan.
        pools: Those that servers run.
        graphs: Names of graphs by class.
    """
    names = {pool.of: pool.name for pool in pools}
    rows = [row for klass in plan.classes for row in _rows(plan, klass, names, graphs)]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows) if rows else ""


def _rows(
    plan: Plan, klass: str, names: Mapping[str, str], graphs: Mapping[str, str]
) -> Iterator[list[str]]:
    """Yield a row for each way of a class, with the hours in which it is taken."""
    every = ways(plan, klass, names)
    found: dict[Way, dict[int, float]] = {}
    for hour, routes in enumerate(every):
        for route in routes:
            share = route.rate / sum(r.rate for r in routes)
            shares = found.setdefault(way(route), {})
            shares[hour] = shares.get(hour, 0.0) + share
    graph = f"`{graphs[klass]}`" if klass in graphs else ""
    for (first, second, threshold), shares in found.items():
        onward = _onward(plan, (first, second, threshold), names)
        hours = "all" if len(shares) == len(every) else spelt([*shares])
        yield [f"`{klass}`", graph, hours, _range([*shares.values()]), f"`{names[first]}`", onward]


def _onward(plan: Plan, taken: Way, names: Mapping[str, str]) -> str:
    """Return where requests go on to, and which."""
    first, second, threshold = taken
    if second is None:
        return ""
    if plan.is_split(first, second):
        return f"`{names[second]}`, always: it reads what the first answers"
    return f"`{names[second]}`, below {threshold:.4g}"


def _range(shares: Sequence[float]) -> str:
    """Return shares in per cent, from the least to the largest."""
    ends = dict.fromkeys(f"{100 * end:.3g}" for end in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %"
