"""What leaving early comes to, beside networks that run to the end: a table, and a picture."""

from collections.abc import Sequence

from hwnas.report.cascades import Layer, Point, drawn, number, spread
from hwnas.report.explorer import Picture, Table
from hwnas.searching.cascades import ENERGY, EXPECTED, LATENCY
from hwnas.searching.exits import NEVER, EarlyExits, Exiting


def table(found: Sequence[EarlyExits]) -> Table:
    """Return the thresholds that are on the front of all networks, evenly over it."""
    ahead = sorted(
        (each for each in found if each.on_front),
        key=lambda each: each.verified.costs[EXPECTED].value,
    )
    shown = spread(ahead)
    heads = (
        "network", "thresholds", "leave at", "accuracy", "95 %", "at the end", "expected ms",
        "95 %", "foreseen ms", "worst ms", "expected mJ",
    )  # fmt: skip
    note = (
        f"{len(shown)} of {len(ahead)}, on the front of all members with exits on the test split; "
        "all are in exits.csv. An image leaves at the first exit whose largest probability reaches "
        "its threshold. Foreseen: by the half of the validation split that chose no threshold."
    )
    return Table("Early exits", heads, [_cells(each) for each in shown], note)


def _cells(each: EarlyExits) -> list[str]:
    seen, network = each.verified, each.network
    latency = seen.costs[EXPECTED]
    thresholds = ("never" if t >= NEVER else f"{t:.3f}" for t in each.thresholds)
    return [
        network.id,
        ", ".join(thresholds),
        ", ".join(f"{share.value:.1%}" for share in seen.left),
        f"{seen.accuracy.value:.4f}",
        f"±{(seen.accuracy.upper - seen.accuracy.lower) / 2:.3f}",
        f"{network.accuracy('test'):.4f}",
        number(latency),
        f"{latency.lower:.4g} to {latency.upper:.4g}",
        number(each.predicted.costs[EXPECTED]),
        number(network.costs[LATENCY]),
        number(seen.costs.get(f"expected_{ENERGY}")),
    ]


def picture(networks: Sequence[Exiting], found: Sequence[EarlyExits]) -> Picture:
    """Return accuracy over expected latency on the test split, leaving early and at the end."""
    points = {True: list[Point](), False: list[Point]()}
    for each in found:
        seen = each.verified
        points[each.on_front].append((seen.costs[EXPECTED].value, seen.accuracy.value))
    ends = [(n.costs[LATENCY].value, n.accuracy("test")) for n in networks]
    layers = (
        Layer(points[False], "leaving early", filled=False),
        Layer(points[True], "leaving early, on the front"),
    )
    return drawn("Leaving early, beside running to the end", layers, ends, "running to the end")
