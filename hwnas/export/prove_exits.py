"""Runs the segments of an export on validation and test images, and chooses its thresholds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hwnas.core import files
from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity, QuantityRow
from hwnas.core.typed_files import to_json_bytes
from hwnas.export import early_exits
from hwnas.export.checks import Check, Floats, within_budget
from hwnas.export.proof_file import (
    EarlyExitsRecord,
    ExitStatisticsRecord,
    ThresholdRecord,
    figures_to_json,
    operators_to_json,
)
from hwnas.export.prove import Prover
from hwnas.export.reference_images import prepared
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.target import Target
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.nas.cascades import EXPECTED, LEAST
from hwnas.nas.early_exits import EarlyExits, ExitNetworkResults, ExitStatistics, swept, within
from hwnas.tasks.base import Targets
from hwnas.tasks.predictions import score_outputs

#: Allowed relative difference of the expected latency on the test split from its prediction, unless
#: the intervals of both are wider.
DEVIATION = 0.03


@dataclass(frozen=True)
class ExitNetworkFiles:
    """A network with early exits and the folder of its files."""

    id: str  #: id of the genotype
    folder: Path  #: folder of the unfinished export, with the files of all segments
    finished: DeployableNetwork  #: the network with its exits
    target: Target
    #: allowed loss by early exits on the validation split, in percentage points of accuracy
    max_drop: float


def prove(subject: ExitNetworkFiles, bench: Prover) -> tuple[EarlyExitsRecord, list[Check]]:
    """Choose thresholds on the validation split, and check them on the test split.

    The files ``exits.json`` and ``exits.npz`` are written into the folder. Returned are ``exits``
    of ``proof.json``, and the checks; a failed check raises no error.

    Raises:
        ConfigError: the validation split is too small to choose thresholds.
    """
    folder, network = subject.folder, subject.finished
    lowered, trained = network.graph, network.simulated is not None
    checks = _torch_checks(subject, bench)
    results, cost = _run_segments(subject, bench)
    swept_thresholds = swept(results)
    if (early := within(swept_thresholds, subject.max_drop)) is None:
        raise ConfigError(
            f"Choosing the thresholds of early exits of {subject.id} needs {2 * LEAST} or more "
            f"validation images; the data set has {len(bench.data.validation)}: use more, or "
            "choose a network without early exits."
        )
    checks += [_prediction_check(early), *_budget_checks(bench, cost, early)]
    names = early_exits.segment_files(folder, subject.target, len(lowered.outputs))
    content = {
        "segments": [of_segment[0] for of_segment in names],
        "thresholds": early.thresholds,
        "points": [*map(_point, swept_thresholds)],
    }
    files.write_file(folder / early_exits.EXITS, to_json_bytes(content))
    record: EarlyExitsRecord = {
        **_point(early),
        "operators": operators_to_json(lowered),
        "outputs": list(lowered.outputs),
        "segments": names,
        "max_drop": subject.max_drop,
        "trained": trained,
        "costs": [figures_to_json(figures) for figures in cost.segments],
        "worst": figures_to_json(cost.figures),
    }
    return record, checks


def _torch_checks(subject: ExitNetworkFiles, bench: Prover) -> list[Check]:
    """Write torch's outputs at each exit; return the checks of the segments against them."""
    folder, network = subject.folder, subject.finished
    images = prepared(bench.images.pixels, list(bench.data.mean), list(bench.data.std))
    with torch.inference_mode():
        reference = network.simulated or network.network
        expected = reference(torch.from_numpy(images), every=True).numpy()
    files.write_file(folder / early_exits.ANSWERS, early_exits.answers(expected))
    n_segments = len(network.graph.outputs)
    segments = early_exits.open_segments(folder, subject.target, bench.data.task, n_segments)
    return segments.checks(images, expected, network.simulated is not None)


def _budget_checks(bench: Prover, cost: Cost, early: EarlyExits) -> list[Check]:
    """Return the checks of the budget for an image that runs to the end, and for the average."""
    stages = [(cost.figures, "to the end"), (early.verified.costs, "on average, test split")]
    return [
        Check(f"exits.{c.name}", c.found, c.allowed, f"{c.words}, {condition}", c.is_least)
        for figures, condition in stages
        for c in within_budget(bench.limits, figures)
    ]


def _run_segments(subject: ExitNetworkFiles, bench: Prover) -> tuple[ExitNetworkResults, Cost]:
    """Run the segments on validation and test images."""
    data, lowered = bench.data, subject.finished.graph
    resolution, targets = lowered[0].op.in_shape[1], dict[str, list[Targets]]()
    splits = {"validation": data.validation, "test": data.test}

    def images() -> Iterator[Floats]:
        for name, split in splits.items():
            for batch in data.batches(split, resolution, rounded=True):
                targets.setdefault(name, []).append(batch[1].numpy())
                yield batch[0].numpy()

    paths = early_exits.paths(subject.folder, subject.target, len(lowered.outputs))
    outputs, cost = bench.artefacts.evaluate(paths, lowered, images())
    answered = {name: np.concatenate(parts) for name, parts in targets.items()}
    n = len(answered["validation"])
    parts = {"validation": outputs[:n], "test": outputs[n:]}
    of_exits = {
        name: score_outputs(data.task, part, answered[name]) for name, part in parts.items()
    }
    return ExitNetworkResults(subject.id, cost.figures, cost.segments, of_exits), cost


def _prediction_check(early: EarlyExits) -> Check:
    predicted, verified = early.predicted.costs[EXPECTED], early.verified.costs[EXPECTED]
    chance = (
        sum((quantity.upper - quantity.lower) / 2 for quantity in (predicted, verified))
        / predicted.value
    )
    description = f"relative difference of {EXPECTED} on the test split from its prediction"
    return Check(f"exits.{EXPECTED}", abs(early.deviation), max(DEVIATION, chance), description)


def _point(early: EarlyExits) -> ThresholdRecord:
    return {
        "thresholds": list(early.thresholds),
        "foreseen": _statistics(early.predicted),
        "found": _statistics(early.verified),
    }


def _statistics(statistics: ExitStatistics) -> ExitStatisticsRecord:
    return {
        "left": [_row(share) for share in statistics.left],
        "accuracy": _row(statistics.accuracy),
        "costs": {name: _row(figure) for name, figure in statistics.costs.items()},
    }


def _row(figure: Quantity) -> QuantityRow:
    return figure.value, figure.source, figure.low, figure.high
