"""Prediction error for a space from the operators of a few of its networks.

python -m experiments.cpu_at_once.foretell

The shipped tables have timings of all operators and of 143 complete networks. Here a table is
limited to the operators of some of these networks, and predicts the others: operators.csv.
"""

import csv
import json
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hwnas.core import package
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.operator_prediction import OperatorPredictions
from hwnas.hardware.costs.table_cost import fit_calibration, latency_features
from hwnas.hardware.latency_tables.latency_table import LatencyTable, load_table
from hwnas.hardware.target import Target, from_facts
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature, distinct_ops
from hwnas.workflows.device import SHIPPED

_KNOWN, _DRAWS = (10, 16, 32), 5
_SPACE = "mbconv_small"


def main() -> None:
    """Predict the networks of each table, write the errors, and print them."""
    facts = yaml.safe_load((package.ROOT / "conf/target/cpu.yaml").read_text(encoding="utf-8"))
    rows = []
    for path in sorted((SHIPPED / "cpu").iterdir()):
        runtime, dtype = path.name.split("-")[:2]
        target = replace(from_facts(facts), runtime=runtime, dtype=dtype)
        for n in _KNOWN:
            rows.append({"table": path.name, "networks": n, **_errors(load_table(path), target, n)})
            print(rows[-1])
    with (Path(__file__).parent / "operators.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _errors(table: LatencyTable, target: Target, n: int) -> dict[str, Any]:
    """Return the errors on networks for a table limited to the operators of ``n`` others."""
    networks = _networks(table, target)
    timed = {op: entry.timing.median_ms for op, entry in table.entries.items()}
    errors, whole, counts, single = list[float](), list[float](), list[int](), list[float]()
    for draw in range(_DRAWS):
        random.Random(draw).shuffle(networks)
        known, others = networks[:n], networks[n:]
        own = {op: timed[op] for op in distinct_ops(net for net, _ in known)}
        counts.append(len(own))
        told = OperatorPredictions.of(own).predict(op for op in timed if op not in own)
        single += [abs(ms / timed[op] - 1) for op, (ms, _, _) in told.items()]
        latencies = own | {op: ms for op, (ms, _, _) in told.items()}
        for found, operators in ((errors, latencies), (whole, timed)):
            calibration = fit_calibration(
                [(latency_features(net, operators), ms) for net, ms in known]
            )
            found += [
                abs(calibration.predict(latency_features(net, operators))[0] / ms - 1)
                for net, ms in others
            ]
    return {
        "operators": statistics.mean(counts), "operator_mape": f"{statistics.mean(single):.4f}",
        "mape": f"{statistics.mean(errors):.4f}", "within_5": f"{_share(errors, 0.05):.3f}",
        "within_10": f"{_share(errors, 0.1):.3f}",
        "mape_all_timed": f"{statistics.mean(whole):.4f}",
        "within_5_all_timed": f"{_share(whole, 0.05):.3f}",
    }  # fmt: skip


def _networks(table: LatencyTable, target: Target) -> list[tuple[Graph, float]]:
    searched = spaces.load_space(spaces.find(_SPACE))
    family, found = families.family_of(searched), []
    for row in table.networks:
        genotype = searched.genotype(json.loads(row["genotype"]))
        lowered = fused_graph(family.lower(searched, genotype, Signature(1, 10)), target)
        found.append((lowered, float(row["measured_ms"])))
    return found


def _share(errors: list[float], within: float) -> float:
    return sum(error <= within for error in errors) / len(errors)


if __name__ == "__main__":
    main()
