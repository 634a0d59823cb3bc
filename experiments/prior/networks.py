"""Train the networks of ``experiments/landscape`` on another data set.

python -m experiments.prior.networks OUT.csv [OPTION=VALUE ...]

The options are those of ``hwnas search +target=npu``, for example ``dataset=digits``. Each network
is trained separately like a candidate of that search, without early stopping. ``OUT.csv`` has the
columns of ``experiments/landscape/networks.csv``: choices, costs, and the accuracies after the
first and after the last fidelity. The script uses one core.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path

import torch

from experiments.landscape.landscape import NETWORKS_CSV, read_networks
from hwnas.core.progress import NullProgress
from hwnas.workflows import components
from hwnas.workflows.components import accuracies
from hwnas.workflows.config.compose import compose


def main() -> None:
    """Train all networks, and write a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with NETWORKS_CSV.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    with tempfile.TemporaryDirectory() as folder, arguments.out.open("w", newline="") as file:
        options = ["+target=npu", *arguments.options, f"run.supernets={folder}"]
        options += ["accuracy=trained", "trained.confidence=null"]
        parts = components.parts(compose("search", options), NullProgress())
        evaluator = accuracies(parts, NullProgress())
        (space,) = parts.space.members
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        for row, genotype in zip(rows, read_networks(space)[0], strict=True):
            start = time.monotonic()
            first, *_, last = evaluator.score(genotype).details.values()
            seconds = f"{time.monotonic() - start:.1f}"
            writer.writerow(
                row | {"after_1": f"{first:.4f}", "after_3": f"{last:.4f}", "seconds": seconds}
            )
            file.flush()


if __name__ == "__main__":
    main()
