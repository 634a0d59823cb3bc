"""Speedup of fronts with cascades over hand-designed networks, by average latency per image.

    python -m experiments.worth_it.on_average NAME=RUN ... NAME=BASELINE OUT.csv

BASELINE is the run of the hand-designed networks. Each RUN is compared twice: with the networks of
BASELINE, and with its networks and cascades. The script prints the minimum, the maximum and the
geometric mean of each comparison. OUT.csv has a row for each member of the baseline.
"""

import csv
import re
import sys
from pathlib import Path

from hwnas.analysis import run_fronts
from hwnas.analysis.fronts import FrontPoint, Objective
from hwnas.tasks.metrics.budget import Budget
from hwnas.workflows.search import baseline

_ACCURACY = Objective("accuracy", maximise=True)


def main() -> None:
    """Compare each run with the baseline."""
    *arguments, out = sys.argv[1:]
    *runs, (_, baseline_path) = [argument.split("=", 1) for argument in arguments]
    rows = []
    for name, path in runs:
        networks, cascades = _read_front(path)
        baseline_networks, baseline_cascades = _read_front(baseline_path)
        for title, others in (("networks", []), ("networks and cascades", baseline_cascades)):
            speedup = baseline.compare_cascades(
                networks, cascades, baseline_networks, others, _ACCURACY
            )
            if speedup is None or speedup.range is None:
                raise SystemExit(f"{path}: no cascades, or no accuracy of the baseline is reached.")
            bounds = speedup.range.lowest, speedup.range.highest, speedup.range.mean
            minimum, maximum, mean = (_format(r.value, r.interval) for r in bounds)
            print(
                f"{name} compared with {title}: minimum {minimum}, maximum {maximum}, "
                f"geometric mean {mean}"
            )
            rows += [{"run": name, "baseline": title, **row} for row in speedup.rows()]
    with open(out, "w", newline="", encoding="utf-8") as file:
        omitted = re.compile("gain|_at_|_id$")
        columns = [column for column in rows[0] if not omitted.search(column)]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _format(value: float, interval: tuple[float, float] | None) -> str:
    interval_text = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
    return f"{value:.2f}{interval_text}"


def _read_front(path: str) -> tuple[list[FrontPoint], list[FrontPoint]]:
    """Return the verified networks of a run, and its cascades."""
    run = run_fronts.read_run_folder(Path(path))
    return list(run.verified or []), baseline.of_run(Path(path), _ACCURACY.name, Budget())


if __name__ == "__main__":
    main()
