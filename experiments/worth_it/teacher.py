"""Gain of a teacher: members fine-tuned with distillation, fine-tuned again without.

python -m experiments.worth_it.teacher RUN ID [ID ...]

RUN is a search with separately trained candidates. The named members, which it fine-tuned, are
fine-tuned again from the same weights with labels only. Each is printed as a row of
``teacher.csv``. The script uses one core: run other IDs in other processes.
"""

import argparse
from pathlib import Path

import pyarrow.parquet as pq
import torch

from experiments.worth_it.sides import network
from hwnas.core.progress import NullProgress
from hwnas.workflows import components
from hwnas.workflows.components import accuracies, at_recorded_fidelity
from hwnas.workflows.config.compose import with_networks
from hwnas.workflows.search.finisher import Finetuner


def main() -> None:
    """Fine-tune the members, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("ids", nargs="+", metavar="ID")
    asked = parser.parse_args()
    torch.set_num_threads(1)

    parts = components.parts(with_networks(str(asked.run))[0], NullProgress())
    rows = {
        row["id"]: row
        for row in pq.read_table(asked.run / "candidates.parquet").to_pylist()
        if row["accuracy_finished"] is not None
    }
    trained, metric = parts.config.trained, parts.config.metric
    left = {
        name: trained.n_read(metric, [n for n, value in row.items() if value is not None])
        for name, row in rows.items()
    }
    finisher = Finetuner(parts, at_recorded_fidelity(accuracies(parts, NullProgress()), left))
    for row in (rows[name] for name in asked.ids):
        _, genotype = network({name: str(value) for name, value in row.items()})
        alone = finisher.tuned(genotype).value
        latency_ms, taught = row["latency_ms"], row["accuracy_finished"]
        print(f"{row['id']},{latency_ms:.6f},{taught:.4f},{alone:.4f}", flush=True)


if __name__ == "__main__":
    main()
