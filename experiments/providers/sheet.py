"""Slowdown of networks measured on a GPU relative to its data sheet, and rank correlations.

python -m experiments.providers.sheet
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
    """Yield the measured latency, the data sheet's latency, and the size of each network."""
    device = replace(target("nvidia_h100"), batch=batch)
    searched = spaces.load_space(spaces.find("mbconv_small"))

    def lower(genotype: Genotype) -> Graph:
        return fused_graph(families.get(searched.family).lower(searched, genotype, IMAGES), device)

    model = RooflineCostModel(device, lower)
    rows = pd.read_csv(HERE / f"h200_batch_{batch}.csv")
    for text, passes in rows.groupby("genotype"):
        genotype = searched.genotype(json.loads(str(text)))
        lowered = lower(genotype)
        yield {
            "measured_ms": passes.p50_ms.min(),
            "sheet_ms": model.cost(genotype).figures["latency_ms"].value,
            "operators": len(lowered.nodes),
            "macs": n_macs(lowered),
        }


def main() -> None:
    """Print a line for each batch size."""
    for batch in (1, 64):
        found = pd.DataFrame(networks(batch))
        ratio = found.measured_ms / found.sheet_ms
        order = {
            name: agreement(found[name], found.measured_ms)["spearman"]
            for name in ("sheet_ms", "operators", "macs")
        }
        us = 1e3 * np.median(found.measured_ms / found.operators)
        print(
            f"batch {batch}: {len(found)} networks, {ratio.min():.2f} to {ratio.max():.2f} times "
            f"(median {ratio.median():.2f}) the data sheet's latency, {us:.1f} us per operator; "
            f"Spearman {', '.join(f'{name} {value:.2f}' for name, value in order.items())}"
        )


if __name__ == "__main__":
    main()
