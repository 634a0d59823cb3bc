"""Profiles devices that are not connected: writes kits and reads their measurements."""

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from hwnas.core.errors import CompileError, TableError
from hwnas.hardware.backends.offline import COST, backend
from hwnas.hardware.device_models import device_file, measurements
from hwnas.hardware.device_models.device_file import MeasuredDevice
from hwnas.hardware.device_models.features import FeatureEncoder
from hwnas.hardware.device_models.fitted_roofline import Floats, operator_work
from hwnas.hardware.device_models.predictor import MIN_NETWORKS, DevicePrior
from hwnas.hardware.kits import kit as folder
from hwnas.hardware.kits.kit import KitNetwork
from hwnas.models.graph import Graph
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.earlier import in_space
from hwnas.nas.run import Run
from hwnas.tasks.metrics import metric_of, quality_in
from hwnas.workflows.config import ProfileConfig, SearchConfig
from hwnas.workflows.networks import DEFAULT_DATA, Networks, next_command, profile_command
from hwnas.workflows.reporter import Reporter

_N_SUGGESTED = 5  #: networks to measure next, suggested after a search
_POOL = 400  #: candidate networks of a kit
_REFERENCE = 300  #: sample of the searched networks
_ENOUGH = 10  #: number of measured networks below which a message warns
_MIN_SPEARMAN = 0.7  #: of predicted and measured latencies, below which a message warns


def profile_offline(
    config: ProfileConfig, parts: Networks, reporter: Reporter
) -> tuple[Path, list[str]]:
    """Write a kit, or fit a device file to measurements; return its path and messages.

    A kit is a folder with networks and a script that measures them on the device.

    Raises:
        ConfigError: the folder of the kit exists.
        RunError: ``front_of`` is not the folder of a search, or its trials cannot be read.
        TableError: too few measurements can be used, or the existing device file has measurements
            that would be lost, or other latencies of the same networks.
    """
    if config.measured is not None:
        with reporter.timed("Fit"):
            return _fit(config, parts)
    assert config.kit is not None
    with reporter.timed("Write kit"):
        return _write_kit(Path(config.kit), config, parts)


def _write_kit(path: Path, config: ProfileConfig, parts: Networks) -> tuple[Path, list[str]]:
    chosen = (
        _next_networks(config, parts)
        if config.front_of is not None
        else _first_networks(config, parts)
    )
    networks = [KitNetwork(genotype, parts.exported_graph(genotype)) for genotype in chosen]
    notes = folder.write_kit(path, networks, config.target, profile_command(config))
    next_step = profile_command(config, f"measured={path}/results.csv")
    message = (
        f"{len(networks)} networks in {path}. Copy the folder to the device and run there: "
        f"python measure.py --help; then run here: {next_step}"
    )
    return path, [message, *notes]


def _sample(parts: Networks, n: int, seed: int) -> list[Genotype]:
    """Return distinct networks that can be written for the target."""
    rng, genotypes = random.Random(seed), dict[str, Genotype]()
    ends = [end for m in parts.space.members for end in (m.smallest(), m.largest())]
    for step in range(20 * n):
        genotype = ends[step] if step < len(ends) else parts.space.sample(rng)
        if genotype.id in genotypes or not _is_writable(parts, genotype):
            continue
        genotypes[genotype.id] = genotype
        if len(genotypes) == n:
            break
    return list(genotypes.values())


def _is_writable(parts: Networks, genotype: Genotype) -> bool:
    try:
        parts.backend.check(parts.lower(genotype))
    except CompileError:
        return False
    return True


def _first_networks(config: ProfileConfig, parts: Networks) -> list[Genotype]:
    pool = _sample(parts, _POOL, config.seed)
    known = operator_work([parts.lower(genotype) for genotype in pool])
    features = FeatureEncoder(known, config.target.batch)(known)
    return [pool[i] for i in device_file.select_first_networks(features, config.n, DevicePrior())]


def _next_networks(config: ProfileConfig, parts: Networks) -> list[Genotype]:
    run = Run.load(Path(str(config.front_of)), "front_of")
    run.check_complete()
    candidates = in_space(run.candidates_for(config.target.name), parts.space, "front_of")
    return next_to_measure(backend.load_device(config.target), candidates, parts.lower, config.n)


def measurement_advice(
    config: SearchConfig, parts: Networks, candidates: Iterable[Candidate], run: Path
) -> str:
    """Return a message with the networks of a search to measure next, and the commands for it.

    Raises:
        TableError: no candidate has both a complete score and ``latency_ms``.
    """
    device = backend.load_device(config.target)
    networks = next_to_measure(device, candidates, parts.lower, _N_SUGGESTED)
    kit = profile_command(config, "kit=DIR", f"n={len(networks)}", f"front_of={run}")
    advice = (
        "The most informative networks to measure next: "
        f"{' '.join(genotype.id for genotype in networks)}\n"
        f"  {kit}\n"
        "Then use measured='[OLD.csv,DIR/results.csv]' and search again with "
        f"start_from={run}; no network is trained twice."
    )
    return "\n".join([*_warnings(device), advice])


def next_to_measure(
    device: MeasuredDevice,
    candidates: Iterable[Candidate],
    lower: Callable[[Genotype], Graph],
    n: int,
) -> list[Genotype]:
    """Return at most ``n`` candidates whose measured latency is most informative about the front.

    Networks with which the device model was fitted are only returned if there are no others.

    Args:
        device: The fitted device, which predicts latencies with their uncertainty.
        candidates: Candidates of the search.
        lower: Returns the graph of a genotype.
        n: Number of networks.

    Raises:
        TableError: no candidate has both a complete score and ``latency_ms``.
    """
    scored = {c.id: c for c in candidates if c.state == "complete" and "latency_ms" in c.figures}
    pool = list(scored.values())
    if not pool:
        raise TableError(
            "No candidate of the search has both a complete score and latency_ms. Finish a search "
            "with latency_ms among the objectives first."
        )
    graphs = [lower(candidate.genotype) for candidate in pool]
    features = device.encoded(graphs)
    # First and last operators depend on the channels and classes of the data.
    measured = [rows[1:-1] for rows in device.measured.rows()]
    ms, std = device.predictor.predict(features)
    weights = _front_probabilities(pool, ms, std)
    rows = operator_work(graphs).rows()
    new = [i for i, work in enumerate(rows) if work[1:-1] not in measured]
    offered = np.array(new or range(len(pool)))
    order = device_file.select_next_networks(
        features[offered], n, device.predictor, weights[offered]
    )
    return [pool[i].genotype for i in offered[order]]


def _front_probabilities(pool: Sequence[Candidate], ms: Floats, std: Floats) -> Floats:
    """Return the probability of each to be on the front, given the uncertainty of latency."""
    name = quality_in(pool[0].figures)
    good = np.array([c.figures[name].value for c in pool]) * (1 if metric_of(name).maximise else -1)
    incumbent = np.array([min(ms[good > mine], default=np.inf) for mine in good])
    result: Floats = stats.norm.cdf((incumbent - ms) / std)
    return result


def _fit(config: ProfileConfig, parts: Networks) -> tuple[Path, list[str]]:
    target = config.target
    facts = {
        "batch": target.batch,
        "dtype": target.dtype,
        "threads": target.threads,
        "channels": parts.signature.in_channels,
        "outputs": parts.signature.n_outputs,
    }
    readings = measurements.read_measurements(
        _files(config.measured), parts.space, facts, config.drift
    )
    notes = [*readings.left_out]
    if len(readings.ms) < MIN_NETWORKS:
        raise TableError(
            f"measured={config.measured}: only {len(readings.ms)} networks can be used. Measure "
            f"{_ENOUGH} or more, at least {MIN_NETWORKS}."
            + f" Left out: {'; '.join(notes[:3])}."
            * bool(notes)
        )
    device = _fitted_device(config, parts, readings.ms, notes)
    path = backend.device_path(target)
    notes += _lost_measurements(path, device, config.drift)
    e, reach = device.leave_one_out(), device.interval_half_width
    is_default = config.dataset.name == DEFAULT_DATA
    data = " (for your own images, add dataset=images dataset.path=DIR)" * is_default
    device.save(path)
    return path, [
        *(f"Left out: {note}" for note in notes),
        f"{len(device.ms)} networks in {path}. Leave-one-out errors: MAPE {e['mape']:.2%}, within "
        f"5 %: {e['within_5']:.1%}, within 10 %: {e['within_10']:.1%}, Spearman "
        f"{e['spearman']:.4f}; the interval contains {e['coverage']:.1%} (target: 95 %).",
        f"Half width of the interval: {reach:.1%} (median). Search with: "
        f"{next_command('search', config, f'cost={COST}', 'budget=none')}{data}",
        *_warnings(device),
    ]


def _warnings(device: MeasuredDevice) -> list[str]:
    """Return warnings if networks are few, or the device model does not rank them."""
    warnings = []
    if len(device.ms) < _ENOUGH:
        warnings.append(
            f"Only {len(device.ms)} networks: the errors of the device model are uncertain. "
            f"Measure {_ENOUGH} or more that differ much."
        )
    if device.leave_one_out()["spearman"] < _MIN_SPEARMAN:
        warnings.append(
            f"Rank correlation below {_MIN_SPEARMAN:g}: the model does not rank networks by their "
            "latency, and a search with it is of no use. Check that each row has the latency of "
            "its model, or measure more networks."
        )
    return warnings


def _files(measured: object) -> list[Path]:
    """Return the named files without duplicates."""
    paths = measured if isinstance(measured, list | tuple) else [measured]
    return [Path(word) for word in dict.fromkeys(map(str, paths))]


def _fitted_device(
    config: ProfileConfig, parts: Networks, ms: Mapping[Genotype, float], notes: list[str]
) -> MeasuredDevice:
    """Return the fit of measurements; report and exclude those that contradict all others."""
    target, networks = config.target, list(ms)
    reference = operator_work([parts.lower(g) for g in _sample(parts, _REFERENCE, config.seed)])
    device = MeasuredDevice(
        reference, operator_work([parts.lower(g) for g in networks]), np.array(list(ms.values())),
        target.batch, backend.device_setting(target), (),
    )  # fmt: skip
    n_max = len(networks) // 5
    for _ in range(n_max):
        if (index := device.outlier()) is None:
            break
        value, _half = device.predict_without(index)
        notes.append(
            f"network {networks[index].id}: {device.ms[index]:.4g} ms, all others say {value:.4g}"
        )
        keep = np.delete(np.arange(len(networks)), index)
        del networks[index]
        device = replace(device, measured=device.measured[keep], ms=device.ms[keep])
    used = {genotype.space for genotype in networks}
    return replace(device, spaces=tuple(m.name for m in parts.space.members if m.name in used))


def _lost_measurements(path: Path, device: MeasuredDevice, allowed: float) -> list[str]:
    """Return a warning about networks in an existing file that the new device file lacks.

    Raises:
        TableError: the file cannot be read, or has other spaces or settings, or other latencies of
            the same networks.
    """
    if not path.exists():
        return []
    before = device_file.load_device_file(path)
    another = "another file with target.offline.file=OTHER.json, or delete it."
    other = [space for space in before.spaces if space not in device.spaces]
    if before.setting != device.setting:
        raise TableError(
            f"{path} has measurements with {before.setting} (number format, threads, batch size), "
            f"not {device.setting}. Name {another}"
        )
    if other:
        raise TableError(
            f"{path} has networks measured of {', '.join(other)}, which would be lost. Name the "
            "files of all measurements with measured='[OLD.csv,NEW.csv]' and "
            f"search_space='[OLD,NEW]', or name {another}"
        )
    old, new = (
        dict(zip(map(str, fit.measured.rows()), fit.ms, strict=True)) for fit in (before, device)
    )
    changes = [max(old[k] / new[k], new[k] / old[k]) - 1 for k in old.keys() & new.keys()]
    if changes and (change := statistics.median(changes)) > allowed:
        raise TableError(
            f"{path} has other latencies of {len(changes)} of these networks: the median "
            f"difference is {change:.1%}. Allowed: {allowed:.0%}. If the measurements are of "
            f"another device, name {another}"
        )
    n = len(old.keys() - new.keys())
    message = f"{n} networks that {path} had before: to keep them, measured='[OLD.csv,NEW.csv]'"
    return [message] if n else []
