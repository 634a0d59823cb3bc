"""Generated demand: rates over a day, and bursty arrivals.

    python -m experiments.fleet.trace FOLDER

Writes load.csv with one row per hour, and arrivals.csv with one row per request. The same seed
gives identical files.
"""

import csv
import sys
from pathlib import Path

import numpy as np

#: Requests per second at night and at the peak, and the hour of the peak.
CLASSES = {"counter": (2_000, 15_000, 13), "phone": (12_000, 40_000, 20)}
_PEAK_WIDTH_H = 4.5
_NOISE = 0.05  # standard deviation of the logarithm of a rate
#: Two states of arrivals (a Markov-modulated Poisson process; Heffes and Lucantoni, 1986): rates
#: relative to their mean, and the mean number of requests until the state changes.
_STATE_RATES, _MEAN_STATE_REQUESTS = (0.6, 2.2), 400.0
_N_ARRIVALS = 6_000


def load(rng: np.random.Generator) -> list[dict[str, float]]:
    """Return the rates of a day, one row per hour."""
    hours = np.arange(24)
    rates = {}
    for name, (night, peak, peak_hour) in CLASSES.items():
        shape = np.exp(-((((hours - peak_hour + 12) % 24 - 12) / _PEAK_WIDTH_H) ** 2))
        rates[name] = (night + (peak - night) * shape) * rng.lognormal(0.0, _NOISE, 24)
    return [{"hour": int(h), **{n: round(float(v[h]), 1) for n, v in rates.items()}} for h in hours]


def arrivals(rng: np.random.Generator) -> list[dict[str, float]]:
    """Return arrivals in seconds, one row per request, with a mean of about one per second."""
    time_s, state, rows = 0.0, 0, []
    for _ in range(_N_ARRIVALS):
        time_s += float(rng.exponential(1 / _STATE_RATES[state]))
        rows.append({"time": round(time_s, 6)})
        if rng.random() < 1 / _MEAN_STATE_REQUESTS:
            state = 1 - state
    return rows


def write(folder: Path, seed: int = 0) -> None:
    """Write both files into a folder."""
    rng = np.random.default_rng(seed)
    for name, rows in (("load", load(rng)), ("arrivals", arrivals(rng))):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
