"""A front and its baseline by the latency of an image on the average: networks, and cascades."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hwnas.api.cascades import FILE, Cascades
from hwnas.comparison import foreign
from hwnas.comparison.fronts import Objective, Point, Run, RunFront, declared
from hwnas.comparison.speedup import Speedup, in_plane, speedup
from hwnas.searching.cascades import EXPECTED, LATENCY

_COST = Objective(EXPECTED, maximise=False)


def of_run(folder: Path, metric: str) -> list[Point]:
    """Return the cascades of a search, by what the test split says of them; it may have none.

    Args:
        folder: Of the search for its target.
        metric: Of the task.

    Raises:
        RunError: its table is damaged.
    """
    if not (folder / FILE).exists():
        return []
    names = {metric: f"verified_{metric}", EXPECTED: f"verified_{EXPECTED}"}
    columns = [Objective(names[metric], maximise=True), Objective(names[EXPECTED], maximise=False)]
    found = foreign.points(folder / FILE, columns)
    return [Point(p.id, {name: p.figures[column] for name, column in names.items()}) for p in found]


def of_front(cascades: Cascades, metric: str) -> list[Point]:
    """Return the cascades of a front, by what the test split says of them."""
    found = []
    for cascade in cascades.found:
        seen, ends = cascade.verified, f"{cascade.first.id} {cascade.second.id}"
        figures = {metric: seen.accuracy, EXPECTED: seen.costs[EXPECTED]}
        found.append(Point(f"{ends} {cascade.threshold:.6g}", figures))
    return found


def compared(
    own: Sequence[Point],
    cascades: Sequence[Point],
    base: Sequence[Point],
    base_cascades: Sequence[Point],
    quality: Objective,
) -> Speedup | None:
    """Hold the networks and cascades of a front against those of its baseline.

    Args:
        own: The verified members.
        cascades: Of these, as ``of_front`` returns them.
        base: The networks of the baseline.
        base_cascades: Of these, where they are known.
        quality: The metric.

    Returns:
        ``None`` where the front has no cascades.
    """
    if not cascades:
        return None
    return speedup(
        _front("front", [*_alone(own, quality), *cascades], quality),
        _front("baseline", [*_alone(base, quality), *base_cascades], quality),
        quality,
        _COST,
    )


def _alone(networks: Iterable[Point], quality: Objective) -> list[Point]:
    """Return networks by what each image costs."""
    return [
        Point(n.id, {quality.name: n.figures[quality.name], EXPECTED: n.figures[LATENCY]})
        for n in networks
    ]


def _front(name: str, points: Sequence[Point], quality: Objective) -> RunFront:
    run = Run(name, declared([quality.name, EXPECTED]), [], points)
    return in_plane(run, quality, _COST, "verified")
