"""Measures whole networks: they calibrate a table, and show how wrong it is."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hwnas.agreement import agreement
from hwnas.cost.calibration import Calibration, Features, calibrate, features
from hwnas.errors import ConfigError, HwnasError
from hwnas.latency_table import LatencyTable, Row
from hwnas.op import Lowered, n_macs
from hwnas.profiling.operators import differ, together
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.runtimes.worker import Worker
from hwnas.space import Genotype
from hwnas.timing import Timing


@dataclass
class NetworksConfig:
    """How many whole networks are measured, and what for."""

    fit: int = 24  #: to fit the calibration
    interval: int = 59  #: to set the width of the interval
    held_out: int = 60  #: to report the error on; neither of the others has seen them

    def __post_init__(self) -> None:
        if self.fit < 6 or self.interval < 19 or self.held_out < 10:
            raise ConfigError(
                "networks.fit must be at least 6, networks.interval 19, networks.held_out 10."
            )


@dataclass(frozen=True)
class Whole:
    """A network that was measured whole."""

    genotype: Genotype
    features: Features
    macs_m: float
    timing: Timing


def measure_networks(
    table: LatencyTable,
    subject: Subject,
    genotypes: Sequence[Genotype],
    pool: Pool,
    progress: Progress,
) -> list[Whole]:
    """Compile and time networks whole."""
    latencies = {op: entry.timing.median_ms for op, entry in table.entries.items()}
    lowered = [subject.lower(genotype) for genotype in genotypes]
    timings = time_whole(table, lowered, pool, progress)
    return [
        Whole(genotype, features(net, latencies), n_macs(net) / 1e6, timing)
        for genotype, net, timing in zip(genotypes, lowered, timings, strict=True)
    ]


def time_whole(
    table: LatencyTable, lowered: Sequence[Lowered], pool: Pool, progress: Progress
) -> list[Timing]:
    """Return the latency of fused networks, each timed in two passes or three."""
    plans = table.plans()
    timings: list[list[Timing]] = [[] for _ in lowered]

    def whole(index: int) -> Callable[[Worker], Timing]:
        return lambda worker: worker.time_network(lowered[index], plans)

    for number in (1, 2, 3):
        todo = [i for i, known in enumerate(timings) if number < 3 or differ(known)]
        if not todo:
            continue
        with progress.phase(f"Measure networks, {number}", len(todo)) as advance:
            for index, outcome in pool.run([whole(i) for i in todo]):
                if isinstance(outcome, HwnasError):
                    raise outcome
                timings[todo[index]].append(outcome)
                advance(1)
    return [together(several) for several in timings]


def report_error(
    table: LatencyTable, wholes: Sequence[Whole], counts: NetworksConfig, space: str
) -> Calibration:
    """Calibrate the table and store networks, calibration and held-out error in it.

    The first networks are fitted, the next set the interval, and the others, which neither has
    seen, show the error.
    """
    fit, end = counts.fit, counts.fit + counts.interval
    pairs = [(whole.features, whole.timing.median_ms) for whole in wholes]
    calibration = calibrate(pairs[:fit], pairs[fit:end])
    held_out = wholes[end:]
    table.calibration[space] = {
        "coefficients": calibration.to_json(),
        "error": error(calibration, held_out),
        "unit": "ms",
    }
    roles = ["fit"] * fit + ["interval"] * (end - fit) + ["held_out"] * len(held_out)
    others = [row for row in table.networks if row["search_space"] != space]
    table.networks = others + [
        _network_row(space, role, whole, calibration)
        for role, whole in zip(roles, wholes, strict=True)
    ]
    table.save()
    return calibration


def error(calibration: Calibration, held_out: Sequence[Whole]) -> dict[str, Any]:
    """Return how well the table predicts networks it has not seen, and how well MACs would."""
    measured = [whole.timing.median_ms for whole in held_out]
    predictions = [calibration.predict(whole.features) for whole in held_out]
    inside = [low <= ms <= high for (_, low, high), ms in zip(predictions, measured, strict=True)]
    macs = [whole.macs_m for whole in held_out]
    # The fairest line through MACs: fitted on the very networks it is judged by.
    scale = sum(m * m / t / t for m, t in zip(macs, measured, strict=True))
    per_mac = sum(m / t for m, t in zip(macs, measured, strict=True)) / scale
    return {
        "n": len(held_out),
        "table": agreement([value for value, _, _ in predictions], measured)
        | {"coverage": sum(inside) / len(inside), "interval": calibration.interval},
        "macs": agreement([m * per_mac for m in macs], measured),
        "drifted": sum(whole.timing.drifted for whole in held_out),
    }


def _network_row(space: str, role: str, whole: Whole, calibration: Calibration) -> Row:
    value, low, high = calibration.predict(whole.features)
    return {
        "search_space": space,
        "id": whole.genotype.id,
        "role": role,
        "measured_ms": f"{whole.timing.median_ms:.7g}",
        "measured_ms_low": f"{whole.timing.low_ms:.7g}",
        "measured_ms_high": f"{whole.timing.high_ms:.7g}",
        "drifted": whole.timing.drifted,
        "predicted_ms": f"{value:.7g}",
        "predicted_ms_low": f"{low:.7g}",
        "predicted_ms_high": f"{high:.7g}",
        "operators_ms": f"{whole.features.operators_ms:.7g}",
        "n_operators": whole.features.n_operators,
        "weights_kib": f"{whole.features.weights_kib:.7g}",
        "macs_m": f"{whole.macs_m:.7g}",
        "genotype": json.dumps(whole.genotype.to_dict()),
    }
