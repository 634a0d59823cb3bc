"""Gain of a teacher: fine-tuning of the same members with and without distillation.

    python -m experiments.worth_it.teacher RUN ID [ID ...]

RUN is a search with separately trained candidates. It fine-tuned the members ID with a teacher. The
script fine-tunes them again from the same weights, with labels only, and prints a row of
``teacher.csv`` for each. It uses one core; run several processes to use more.
"""

import argparse
from pathlib import Path

import pyarrow.parquet as pq
import torch

from experiments.worth_it.comparison import network
from hwnas.core.progress import NullProgress
from hwnas.workflows import components
from hwnas.workflows.components import accuracies, at_recorded_fidelity
from hwnas.workflows.config.compose import with_networks
from hwnas.workflows.search.finisher import Finetuner


def main() -> None:
    """Fine-tune the members without a teacher, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("ids", nargs="+", metavar="ID")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    parts = components.parts(with_networks(str(arguments.run))[0], NullProgress())
    rows = {
        row["id"]: row
        for row in pq.read_table(arguments.run / "candidates.parquet").to_pylist()
        if row["accuracy_finished"] is not None
    }
    config, metric = parts.config.trained, parts.config.metric
    n_trainings = {
        name: config.n_read(metric, [n for n, value in row.items() if value is not None])
        for name, row in rows.items()
    }
    weights = at_recorded_fidelity(accuracies(parts, NullProgress()), n_trainings)
    finetuner = Finetuner(parts, weights)
    for row in (rows[name] for name in arguments.ids):
        _, genotype = network({name: str(value) for name, value in row.items()})
        without_teacher = finetuner.tuned(genotype).value
        latency_ms, with_teacher = row["latency_ms"], row["accuracy_finished"]
        print(f"{row['id']},{latency_ms:.6f},{with_teacher:.4f},{without_teacher:.4f}", flush=True)


if __name__ == "__main__":
    main()
