"""Runs the segments of an export over validation and test images, and chooses its thresholds."""

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
from hwnas.tasks import predictions
from hwnas.tasks.base import Targets

#: By which share the expected latency on the test split may be off what was foreseen, where the
#: intervals of both are not wider: on fewer images chance alone does more.
DEVIATION = 0.03


@dataclass(frozen=True)
class ExitNetworkFiles:
    """A network with exits whose files are in a folder."""

    id: str
    folder: Path
    finished: DeployableNetwork
    target: Target
    max_drop: float  #: points that leaving early may lose, on validation


def prove(subject: ExitNetworkFiles, bench: Prover) -> tuple[EarlyExitsRecord, list[Check]]:
    """Write thresholds and torch's answers into a folder; return what its segments show.

    Raises:
        ConfigError: there are too few validation images to choose thresholds by.
    """
    folder, network = subject.folder, subject.finished
    lowered, trained = network.lowered, network.simulated is not None
    checks = _as_in_torch(subject, bench)
    exiting, cost = _read(subject, bench)
    found = swept(exiting)
    if (early := within(found, subject.max_drop)) is None:
        raise ConfigError(
            f"{subject.id} has exits, whose thresholds are chosen on {2 * LEAST} validation images "
            f"or more; the data set has {len(bench.data.validation)}."
        )
    checks += [_came_true(early), *_within_budget(bench, cost, early)]
    names = early_exits.segment_files(folder, subject.target, len(lowered.outputs))
    run = [of_one[0] for of_one in names]
    said = {"segments": run, "thresholds": early.thresholds, "points": [*map(_point, found)]}
    files.write_file(folder / early_exits.EXITS, to_json_bytes(said))
    leaving: EarlyExitsRecord = {
        **_point(early),
        "operators": operators_to_json(lowered),
        "outputs": list(lowered.outputs),
        "segments": names,
        "max_drop": subject.max_drop,
        "trained": trained,
        "costs": [figures_to_json(figures) for figures in cost.segments],
        "worst": figures_to_json(cost.figures),
    }
    return leaving, checks


def _as_in_torch(subject: ExitNetworkFiles, bench: Prover) -> list[Check]:
    """Keep what torch answers at each exit; compare the segments with it."""
    folder, network = subject.folder, subject.finished
    images = prepared(bench.kept.pixels, list(bench.data.mean), list(bench.data.std))
    with torch.inference_mode():
        reference = network.simulated or network.network
        expected = reference(torch.from_numpy(images), every=True).numpy()
    files.write_file(folder / early_exits.ANSWERS, early_exits.answers(expected))
    n_segments = len(network.lowered.outputs)
    segments = early_exits.open_segments(folder, subject.target, bench.data.task, n_segments)
    return segments.checks(images, expected, network.simulated is not None)


def _within_budget(bench: Prover, cost: Cost, early: EarlyExits) -> list[Check]:
    """Return the limits of an image that runs to the end, and those of all on the average."""
    found = [(cost.figures, "to the end"), (early.verified.costs, "on the average, test split")]
    return [
        Check(f"exits.{c.name}", c.found, c.allowed, f"{c.words}, {of}", c.is_least)
        for figures, of in found
        for c in within_budget(bench.limits, figures)
    ]


def _read(subject: ExitNetworkFiles, bench: Prover) -> tuple[ExitNetworkResults, Cost]:
    """Run the segments over validation and test images."""
    data, lowered = bench.data, subject.finished.lowered
    resolution, targets = lowered[0].op.in_shape[1], dict[str, list[Targets]]()
    splits = {"validation": data.validation, "test": data.test}

    def images() -> Iterator[Floats]:
        for name, split in splits.items():
            for batch in data.batches(split, resolution, rounded=True):
                targets.setdefault(name, []).append(batch[1].numpy())
                yield batch[0].numpy()

    where = early_exits.paths(subject.folder, subject.target, len(lowered.outputs))
    outputs, cost = bench.artefacts.evaluate(where, lowered, images())
    answered = {name: np.concatenate(parts) for name, parts in targets.items()}
    n = len(answered["validation"])
    parts = {"validation": outputs[:n], "test": outputs[n:]}
    heard = [
        {
            name: predictions.score_outputs(data.task, part[:, i], answered[name])
            for name, part in parts.items()
        }
        for i in range(len(lowered.outputs))
    ]
    return ExitNetworkResults(subject.id, cost.figures, cost.segments, heard), cost


def _came_true(early: EarlyExits) -> Check:
    foreseen, found = early.predicted.costs[EXPECTED], early.verified.costs[EXPECTED]
    chance = sum((of.upper - of.lower) / 2 for of in (foreseen, found)) / foreseen.value
    words = f"{EXPECTED} on the test split, off what validation foresaw (a share of it)"
    return Check(f"exits.{EXPECTED}", abs(early.deviation), max(DEVIATION, chance), words)


def _point(early: EarlyExits) -> ThresholdRecord:
    return {
        "thresholds": list(early.thresholds),
        "foreseen": _said(early.predicted),
        "found": _said(early.verified),
    }


def _said(seen: ExitStatistics) -> ExitStatisticsRecord:
    return {
        "left": [_row(share) for share in seen.left],
        "accuracy": _row(seen.accuracy),
        "costs": {name: _row(figure) for name, figure in seen.costs.items()},
    }


def _row(figure: Quantity) -> QuantityRow:
    return figure.value, figure.source, figure.low, figure.high
