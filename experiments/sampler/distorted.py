"""Write a benchmark table with modified accuracies, as a replacement for other data sets.

    python experiments/sampler/distorted.py nb201_cifar10.parquet --accuracy test_accuracy \
        --kind harder --out harder.parquet

A sampler that was tuned on one data set should be evaluated on others. Kinds:

- ``harder``: accuracies are transformed monotonically to the range of a harder data set. Noise
  changes the order of networks with similar accuracies.
- ``mixed``: accuracies follow a randomly weighted sum of the ranks of accuracy and of parameters,
  with noise.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]


def main() -> None:
    """Write the table."""
    arguments = _parse()
    table = pq.read_table(arguments.table)
    accuracy = table[arguments.accuracy].to_numpy().astype(np.float64)
    params = table["params"].to_numpy().astype(np.float64)
    rng = np.random.default_rng(arguments.seed)
    modified = {"harder": _harder, "mixed": _mixed}[arguments.kind](accuracy, params, rng)
    index = table.column_names.index(arguments.accuracy)
    table = table.set_column(index, arguments.accuracy, pa.array(modified))
    pq.write_table(table, Path(arguments.out))


def _harder(accuracy: Array, params: Array, rng: np.random.Generator) -> Array:
    """Return accuracies in per cent from 1 to 74, as with 100 classes, with noise of 0.4."""
    error = 100 - accuracy
    relative = np.log(error / error.min()) / np.log(error.max() / error.min())
    exponent = 0.8 + 0.4 * rng.random()
    noise = rng.normal(0, 0.4, len(error))
    return np.asarray(np.clip(74 - 73 * relative**exponent + noise, 1, 99))


def _mixed(accuracy: Array, params: Array, rng: np.random.Generator) -> Array:
    """Return accuracies in per cent that follow the ranks of accuracy and of parameters."""
    n = len(accuracy)
    weight = 0.3 + 0.4 * rng.random()
    rank = (1 - weight) * rankdata(accuracy) / n + weight * rankdata(params) / n
    return np.asarray(40 + 50 * rank**1.5 + rng.normal(0, 0.5, n))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", help="a Parquet file with a column 'params'")
    parser.add_argument("--accuracy", default="accuracy", metavar="COLUMN")
    parser.add_argument("--kind", choices=["harder", "mixed"], default="harder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="a Parquet file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
