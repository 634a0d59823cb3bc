"""Print the exact front of a benchmark table as a CSV file for ``hwnas compare``.

python experiments/front_comparison/exact_front.py TABLE --accuracy COLUMN --latency COLUMN
"""

import argparse
import csv
import sys

import numpy as np
import pyarrow.parquet as pq

from hwnas.core.pareto import non_dominated


def main() -> None:
    """Print the non-dominated rows, in ascending order of latency."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", metavar="FILE", help="a Parquet file")
    parser.add_argument("--accuracy", required=True, metavar="COLUMN")
    parser.add_argument("--latency", required=True, metavar="COLUMN")
    arguments = parser.parse_args()
    columns = [arguments.accuracy, arguments.latency]
    table = pq.read_table(arguments.table, columns=columns)
    points = np.stack([table[column].to_numpy() for column in columns], axis=1)
    front = points[non_dominated(points, [True, False])]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([("accuracy", "latency_ms"), *front[front[:, 1].argsort()].tolist()])


if __name__ == "__main__":
    main()
