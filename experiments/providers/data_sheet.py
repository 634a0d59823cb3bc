"""Latencies measured on a GPU, compared with those that its data sheet predicts.

python -m experiments.providers.data_sheet

Prints, for each batch size, the slowdown relative to the data sheet, the time per operator, and
Spearman's correlations with the measured latency.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from hwnas.core.agreement import agreement
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.roofline_cost import RooflineCostModel
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature, n_macs
from hwnas.models.spaces import Genotype
from tests.conftest import target

HERE = Path(__file__).parent
IMAGES = Signature(in_channels=1, n_outputs=10)


def networks(batch: int) -> Iterator[dict[str, float]]:
    """Yield the measured latency, the latency by data sheet, and the size of each network."""
    device = replace(target("nvidia_h100"), batch=batch)
    space = spaces.load_space(spaces.find("mbconv_small"))

    def lower(genotype: Genotype) -> Graph:
        return fused_graph(families.get(space.family).lower(space, genotype, IMAGES), device)

    model = RooflineCostModel(device, lower)
    rows = pd.read_csv(HERE / f"h200_batch_{batch}.csv")
    for text, passes in rows.groupby("genotype"):
        genotype = space.genotype(json.loads(str(text)))
        graph = lower(genotype)
        yield {
            "measured_ms": passes.p50_ms.min(),
            "sheet_ms": model.cost(genotype).figures["latency_ms"].value,
            "operators": len(graph.nodes),
            "macs": n_macs(graph),
        }


def main() -> None:
    """Print a line for each batch size."""
    for batch in (1, 64):
        table = pd.DataFrame(networks(batch))
        slowdown = table.measured_ms / table.sheet_ms
        correlations = {
            name: agreement(table[name], table.measured_ms)["spearman"]
            for name in ("sheet_ms", "operators", "macs")
        }
        us = 1e3 * np.median(table.measured_ms / table.operators)
        print(
            f"batch {batch}: {len(table)} networks, {slowdown.min():.2f} to {slowdown.max():.2f} "
            f"times (median {slowdown.median():.2f}) the latency by data sheet, {us:.1f} us per "
            f"operator; Spearman "
            + ", ".join(f"{name} {value:.2f}" for name, value in correlations.items())
        )


if __name__ == "__main__":
    main()
