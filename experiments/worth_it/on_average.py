"""Fronts with cascades compared with hand-designed networks, by average latency per image.

python -m experiments.worth_it.on_average NAME=RUN ... NAME=BASELINE OUT.csv

The last name is the run of the baselines: it is compared once as single networks, once with its
cascades. Prints the range of each comparison; OUT.csv has a row for each member of the baseline.
"""

import csv
import sys
from pathlib import Path

from hwnas.analysis import run_fronts
from hwnas.analysis.fronts import FrontPoint, Objective
from hwnas.workflows.search import baseline

_ACCURACY = Objective("accuracy", maximise=True)


def main() -> None:
    """Compare each run with the last."""
    *named, out = sys.argv[1:]
    (*runs, base) = [word.split("=", 1) for word in named]
    rows = []
    for name, path in runs:
        own, cascades = _read(path)
        theirs, their_cascades = _read(base[1])
        for beside, more in (("networks", []), ("networks and cascades", their_cascades)):
            found = baseline.compare_cascades(own, cascades, theirs, more, _ACCURACY)
            if found is None or found.range is None:
                raise SystemExit(f"{path}: no cascades, or no accuracy of the baseline is reached.")
            ends = found.range.lowest, found.range.highest, found.range.mean
            least, most, mean = (_words(r.value, r.interval) for r in ends)
            print(
                f"{name} against {beside}: minimum {least}, maximum {most}, geometric mean {mean}"
            )
            rows += [{"run": name, "baseline": beside, **row} for row in found.rows()]
    with open(out, "w", newline="", encoding="utf-8") as file:
        kept = [k for k in rows[0] if "gain" not in k and "_at_" not in k and not k.endswith("_id")]
        writer = csv.DictWriter(file, kept, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _words(value: float, interval: tuple[float, float] | None) -> str:
    ends = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
    return f"{value:.2f}{ends}"


def _read(path: str) -> tuple[list[FrontPoint], list[FrontPoint]]:
    """Return the verified networks of a run, and its cascades."""
    run = run_fronts.read_run_folder(Path(path))
    return list(run.verified or []), baseline.of_run(Path(path), _ACCURACY.name)


if __name__ == "__main__":
    main()
