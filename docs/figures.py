"""Draw the figures of the documentation: ``python docs/figures.py``."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

DOCS = Path(__file__).parent
DATA = DOCS.parent / "experiments" / "worth_it"
SEEDS = {"front_long.csv": "#00796b", "front_long_2.csv": "#4db6ac", "front_long_3.csv": "#a5d6cf"}
Point = tuple[float, float, float, float]  #: latency, accuracy, ends of its interval


def _front(name: str) -> list[Point]:
    """Return the members of a front, fastest first."""
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["verified_on_front"] == "True"]
    columns = ("latency_ms", "accuracy_int8", "accuracy_int8_low", "accuracy_int8_high")
    points = [tuple(float(row[f"verified_{column}"]) for column in columns) for row in rows]
    front: list[Point] = []
    for latency, accuracy, low, high in sorted(points):
        if not front or accuracy > front[-1][1]:
            front.append((latency, accuracy, low, high))
    return front


def _draw(axes: Axes, points: list[Point], label: str, colour: str, marker: str) -> None:
    latencies, accuracies, lows, highs = zip(*points, strict=True)
    below = [a - low for a, low in zip(accuracies, lows, strict=True)]
    above = [high - a for a, high in zip(accuracies, highs, strict=True)]
    axes.step(latencies, accuracies, where="post", color=colour, linewidth=1.6)
    axes.errorbar(
        latencies, accuracies, [below, above], fmt=marker, color=colour, markersize=5,
        elinewidth=0.8, label=label,
    )  # fmt: skip


def main() -> None:
    """Draw the fronts of three seeds and the hand-designed networks."""
    figure, axes = plt.subplots(figsize=(8.4, 4.6), layout="constrained")
    for i, (name, colour) in enumerate(SEEDS.items(), start=1):
        _draw(axes, _front(name), f"hwnas, seed {i}", colour, "o")
    _draw(axes, _front("baselines_3.csv"), "best of 30 hand-designed networks", "#b5651d", "D")
    axes.set_xscale("log")
    axes.set_xticks([0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("latency [ms], estimated by Arm Vela")
    axes.set_ylabel("accuracy (int8, test images)")
    axes.set_title("Fashion-MNIST on an Arm Ethos-U55-128", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(DOCS / "img" / "front.png", dpi=140)


if __name__ == "__main__":
    main()
