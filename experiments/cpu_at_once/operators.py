"""Compute the prediction error if only the operators of a few networks are timed.

    python -m experiments.cpu_at_once.operators

The shipped tables have timings of all operators and of 143 complete networks. Here a table is
limited to the operators of some of these networks, and the latencies of the other networks are
predicted. Writes ``operators.csv`` to this folder.
"""

import csv
import json
import random
import statistics
from collections.abc import Mapping, Sequence
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
from hwnas.models.graph import Graph, OpSpec, Signature, distinct_ops
from hwnas.workflows.device import SHIPPED

_N_MEASURED = (10, 16, 32)  # networks whose operators are timed
_DRAWS = 5
_SPACE = "mbconv_small"
Network = tuple[Graph, float]  #: fused operators, measured latency in ms


def main() -> None:
    """Compute the errors for each table; print them and write them to a file."""
    facts = yaml.safe_load((package.ROOT / "conf/target/cpu.yaml").read_text(encoding="utf-8"))
    rows = []
    for path in sorted((SHIPPED / "cpu").iterdir()):
        runtime, dtype = path.name.split("-")[:2]
        target = replace(from_facts(facts), runtime=runtime, dtype=dtype)
        for n in _N_MEASURED:
            rows.append({"table": path.name, "networks": n, **_errors(load_table(path), target, n)})
            print(rows[-1])
    with (Path(__file__).parent / "operators.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _errors(table: LatencyTable, target: Target, n: int) -> dict[str, Any]:
    """Return mean errors if only the operators of ``n`` networks are timed."""
    networks = _networks(table, target)
    all_timed = {op: entry.timing.median_ms for op, entry in table.entries.items()}
    n_timed, operator_errors = list[int](), list[float]()
    errors, errors_all_timed = list[float](), list[float]()
    for draw in range(_DRAWS):
        random.Random(draw).shuffle(networks)
        measured, others = networks[:n], networks[n:]
        timed = {op: all_timed[op] for op in distinct_ops(net for net, _ in measured)}
        n_timed.append(len(timed))
        predictions = OperatorPredictions.of(timed).predict(
            op for op in all_timed if op not in timed
        )
        predicted = {op: ms for op, (ms, _, _) in predictions.items()}
        operator_errors += [abs(ms / all_timed[op] - 1) for op, ms in predicted.items()]
        errors += _network_errors(measured, others, timed | predicted)
        errors_all_timed += _network_errors(measured, others, all_timed)
    return {
        "operators": statistics.mean(n_timed),
        "operator_mape": f"{statistics.mean(operator_errors):.4f}",
        "mape": f"{statistics.mean(errors):.4f}",
        "within_5": f"{_share(errors, 0.05):.3f}",
        "within_10": f"{_share(errors, 0.1):.3f}",
        "mape_all_timed": f"{statistics.mean(errors_all_timed):.4f}",
        "within_5_all_timed": f"{_share(errors_all_timed, 0.05):.3f}",
    }


def _network_errors(
    measured: Sequence[Network], others: Sequence[Network], operator_ms: Mapping[OpSpec, float]
) -> list[float]:
    """Return the relative errors on ``others`` after a calibration on ``measured``."""
    calibration = fit_calibration(
        [(latency_features(net, operator_ms), ms) for net, ms in measured]
    )
    return [
        abs(calibration.predict(latency_features(net, operator_ms))[0] / ms - 1)
        for net, ms in others
    ]


def _networks(table: LatencyTable, target: Target) -> list[Network]:
    space = spaces.load_space(spaces.find(_SPACE))
    family, networks = families.family_of(space), []
    for row in table.networks:
        genotype = space.genotype(json.loads(row["genotype"]))
        graph = fused_graph(family.lower(space, genotype, Signature(1, 10)), target)
        networks.append((graph, float(row["measured_ms"])))
    return networks


def _share(errors: list[float], limit: float) -> float:
    """Return the share of errors up to a limit."""
    return sum(error <= limit for error in errors) / len(errors)


if __name__ == "__main__":
    main()
