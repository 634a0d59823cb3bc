"""What a teacher is worth: members that one taught, finished again without, or by others.

python -m experiments.worth_it.teacher RUN ID [ID ...] [--by ID [ID ...]] [--alpha SHARE]

RUN is a search whose candidates were trained alone. Those named, which it finished, are finished
once more from the same weights: with nothing but the labels (``teacher.csv``), or taught by the
mean of what other members answer, as the run finished these (``teachers.csv``). Each is printed as
a row. It uses one core: name some in one process, others in another.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from experiments.worth_it.sides import network
from hwnas import build
from hwnas.api.composition import with_networks
from hwnas.finishing import finish
from hwnas.finishing.finisher import Finisher
from hwnas.finishing.lesson import Origin
from hwnas.finishing.teachers import Member, Members
from hwnas.manifest import teachers_of
from hwnas.progress import Silent
from hwnas.space import Genotype
from hwnas.weights import accuracies, as_left


def main() -> None:
    """Finish them, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("ids", nargs="+", metavar="ID")
    parser.add_argument("--by", nargs="+", metavar="ID", default=[])
    parser.add_argument("--alpha", type=float, default=0.5, help="share of the loss on answers")
    asked = parser.parse_args()
    torch.set_num_threads(1)

    parts = build.parts(with_networks(str(asked.run))[0], Silent())
    table = pq.read_table(asked.run / "candidates.parquet").to_pylist()
    rows = {row["id"]: row for row in table if row["accuracy_finished"] is not None}
    trained, metric = parts.config.trained, parts.config.metric
    left = {
        name: trained.n_read(metric, [n for n, value in row.items() if value is not None])
        for name, row in rows.items()
    }
    weights = as_left(accuracies(parts, Silent()), left)
    done = json.loads((asked.run / "manifest.json").read_text())["finishing"]
    searched = Finisher(parts, weights, [_genotype(rows[name]) for name in teachers_of(done)])

    def member(genotype: Genotype) -> Member:
        network, words = searched.network(genotype), f"as {asked.run.resolve()} finished it"
        return Member(network, genotype, parts.setup_of(genotype), words, Silent())

    tutor = Members([member(_genotype(rows[name])) for name in asked.by]) if asked.by else None
    config = replace(searched.config, alpha=asked.alpha)
    for row in (rows[name] for name in asked.ids):
        genotype = _genotype(row)
        origin = Origin(parts.setup_of(genotype), weights, genotype, tutor)
        found = finish.tuned(origin, config, Silent()).figure.value
        latency_ms, taught = row["latency_ms"], row["accuracy_finished"]
        print(f"{row['id']},{latency_ms:.6f},{taught:.4f},{found:.4f}", flush=True)


def _genotype(row: dict[str, Any]) -> Genotype:
    return network({name: str(value) for name, value in row.items()})[1]


if __name__ == "__main__":
    main()
