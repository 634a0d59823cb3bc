"""Costs of an export, measured on this machine or estimated again; needs no torch."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, final

import numpy as np

from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.quantity import Quantities, Quantity, quantities_from_json
from hwnas.export import checks as proof
from hwnas.export import early_exits, runtimes
from hwnas.export.options import VerifyConfig
from hwnas.export.proof_file import (
    EarlyExitsRecord,
    Proof,
    exits_from_json,
    operators_from_json,
    target_of,
)
from hwnas.export.reference_images import prepared, read_reference_images
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.backends.artefact_wrappers import ExitArtefacts, file_names
from hwnas.hardware.derived_metrics import derived_metrics
from hwnas.hardware.latency_tables.latency_table import LatencyTable, table_name
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.target import Target, facts
from hwnas.models.graph import OpSpec
from hwnas.tasks.metrics import all_metrics

#: Fields of a target that must be the same for limits of the budget to apply.
_LIMIT_FIELDS = ("name", "batch", "threads", "dtype")


@dataclass(frozen=True)
class ArtefactCosts:
    """Costs of a file of an export on a target, measured or estimated again."""

    target: Target
    name: str  #: name of the file, or ``All segments``
    figures: Quantities  #: costs by name, as ``latency_ms``
    before: Quantities  #: costs in the proof by name; empty if it is of another target
    limits: Mapping[str, float]  #: limits of the budget by cost; empty for another target
    #: names of costs and files that differ from the proof, though the compiler has the same version
    changed: Sequence[str] = ()
    #: whether compiling again gave the same file; ``None``: not compiled, or another target
    same_file: bool | None = None

    def lines(self) -> list[str]:
        """Return the costs as lines of text, with those of the proof where they differ.

        Limits of the budget whose cost was not measured, and the comparison of files, have a line.
        """
        lines = [f"{self.name} on {self.target.name}, {self.target.caveat}:"]
        for name, figure in self.figures.items():
            before = self.before.get(name, figure)
            recorded = "" if before == figure else f"; the proof says {before.value:.4g}"
            lines.append(f"  {name} {_text(figure)}{recorded}")
        lines += [
            f"  budget.{name} was not checked: {name} is not measured on this target."
            for name in self.limits
            if name not in self.figures
        ]
        if self.same_file is not None:
            which = "the same" if self.same_file else "another"
            lines.append(f"  The compiler gave {which} file.")
        return lines

    @property
    def failed(self) -> list[str]:
        """The names in ``changed``, and those of limits that are not met, as ``budget.latency_ms``.

        Empty if nothing failed.
        """
        checks = proof.within_budget(self.limits, self.figures)
        return [*self.changed, *(check.name for check in checks if not check.holds)]


@final
class TimingDevice:
    """A device that runs compiled networks; it has no latency table and compiles nothing."""

    def __init__(self, target: Target, worker: RetryingPool):
        self.worker, self.table = worker, LatencyTable(Path(table_name(target)))

    def plan(self, op: OpSpec) -> str:
        """Not supported, as the files of exports are compiled already.

        Raises:
            CompileError: always.
        """
        raise CompileError(
            f"Operator {op} would be compiled while an export is measured. This is an error in "
            "hwnas; please report it."
        )


@contextlib.contextmanager
def worker(target: Target, config: VerifyConfig) -> Iterator[RetryingPool]:
    """Yield a pool of processes that run and time networks on a target.

    They start on demand, and end with the context.
    """
    pool = DevicePool(target, config.timing, config.rpc, config.limit_s)
    try:
        yield RetryingPool(pool)
    finally:
        pool.close()


def measure(
    folder: Path, recorded: Proof, target: Target, config: VerifyConfig
) -> list[ArtefactCosts]:
    """Return the costs of an export on a target, timed on the device or estimated by its compiler.

    The first entry is the whole network. A network with early exits has a second one, the sum of
    all its segments, if the target can run them.

    Args:
        folder: The export.
        recorded: Its ``proof.json``.
        target: The target.
        config: Settings of the measurement.

    Raises:
        ConfigError: the export has no artefact for the target, the artefact has another batch size,
            a package is missing, or the target is not connected.
        ProofError: ``images.npz`` cannot be read.
        CompileError: the compiler or the runtime rejects a file.
        DeviceError: the device does not respond in time.
    """
    lowered = operators_from_json(recorded["model"]["operators"])
    target = _with_facts(target, target_of(recorded))
    description = backends.get(target.runtime)
    name = description.dtypes[target.dtype]
    if why := backends.lacking(description.needs):
        raise ConfigError(f"Costs on target '{target.name}' are unknown: {why}.")
    _check_there(name, recorded, target)
    images = read_reference_images(folder, recorded).pixels[: target.batch]
    normalisation = recorded["dataset"]["normalisation"]
    with contextlib.ExitStack() as stack:
        bench = None
        if description.measured:
            bench = TimingDevice(target, stack.enter_context(worker(target, config)))
        derives = derived_metrics(target, [*recorded["budget"], *recorded["figures"]])
        artefacts = ExitArtefacts(base.backend_of(target).artefacts(bench), name, derives)
        inputs = prepared(images, normalisation["mean"], normalisation["std"])
        costed = artefacts.remeasure(runtimes.paths(folder, name), lowered, inputs)
        before, limits = _recorded_figures(recorded, target), _limits(recorded, target)
        measured = ArtefactCosts(target, name, costed.cost.figures, before, limits)
        costs = [_with_differences(measured, costed.recompiled, folder, recorded)]
        if "exits" in recorded and description.exits:
            costs.append(_all_segments(folder, recorded, recorded["exits"], measured, artefacts))
    return costs


def _all_segments(
    folder: Path,
    recorded: Proof,
    record: EarlyExitsRecord,
    network_costs: ArtefactCosts,
    artefacts: base.Artefacts,
) -> ArtefactCosts:
    """Return the costs of all segments, run one after another."""
    target = network_costs.target
    files = early_exits.paths(folder, target, len(record["segments"]))
    inputs = np.zeros((0,), np.float32)  # each segment reads the output of the one before
    lowered = exits_from_json(record)
    costed = artefacts.remeasure(files, lowered, inputs)
    before = quantities_from_json(record["worst"]) if network_costs.before else {}
    measured = ArtefactCosts(
        target, "All segments", costed.cost.figures, before, network_costs.limits
    )
    return _with_differences(measured, costed.recompiled, folder, recorded)


def _with_differences(
    measured: ArtefactCosts, compiled: Mapping[str, bytes], folder: Path, recorded: Proof
) -> ArtefactCosts:
    """Return costs with the differences between a compiler's result and the proof."""
    before, target = measured.before, measured.target
    if not before or not compiled:
        return measured
    description = backends.get(target.runtime)
    names = backends.file_names(target.runtime, target.dtype)
    if "exits" in recorded:
        names = file_names(names, len(recorded["exits"]["segments"]))
    other_files = [
        names[suffix]
        for suffix, content in compiled.items()
        if content != (folder / names[suffix]).read_bytes()
    ]
    changed = [n for n, f in measured.figures.items() if n not in before or f != before[n]]
    versions = recorded["made"]["versions"]
    same = all(backends.version(n) == versions.get(n) for n in description.fingerprint_packages)
    # Another version of the compiler may give another result.
    return replace(
        measured, changed=[*changed, *other_files] if same else [], same_file=not other_files
    )


def _with_facts(target: Target, before: Target) -> Target:
    """Return a target with the facts of the proof's target, if it is the same and has none."""
    same = target.name == before.name and not target.facts
    return replace(target, facts=before.facts) if same else target


def _recorded_figures(recorded: Proof, target: Target) -> Quantities:
    """Return the figures of the proof, if it is of the same target."""
    return quantities_from_json(recorded["figures"]) if is_same_target(recorded, target) else {}


def _limits(recorded: Proof, target: Target) -> dict[str, float]:
    """Return the limits of the proof that apply to a target.

    Name, batch, threads and dtype must be the same. Limits on expected costs are left out: they are
    no costs of files, and the checks of exits include them.
    """
    early = {name for name, metric in all_metrics().items() if metric.mean_of}
    before = target_of(recorded)
    same = all(getattr(target, name) == getattr(before, name) for name in _LIMIT_FIELDS)
    entries = recorded["budget"] if same else {}
    return {name: entry["limit"] for name, entry in entries.items() if name not in early}


def is_same_target(recorded: Proof, target: Target) -> bool:
    """Return True if a target is that of the proof; its C compiler may differ."""
    given = target_of(cast(Proof, {**recorded, "target": facts(target)}))
    return facts(given) == facts(target_of(recorded))


def _check_there(name: str, recorded: Proof, target: Target) -> None:
    names: Sequence[str] = list(recorded["artefacts"])
    if name not in names:
        others = (d.name for d in backends.known() if d.measured)
        able = [n for n in others if backends.get(n).dtypes.get(target.dtype) in names]
        fix = f" Set target.runtime={' or '.join(able)}." if able else ""
        raise ConfigError(
            f"Target '{target.name}' runs {name}, but the export only has {', '.join(names)}."
            f"{fix or ' Export the network again for this target.'}"
        )
    was = target_of(recorded).batch
    if backends.artefacts()[name].one_batch and target.batch != was:
        raise ConfigError(
            f"{name} was compiled for {was} images per inference, not target.batch={target.batch}: "
            f"set target.batch={was}."
        )


def _text(figure: Quantity) -> str:
    interval = "" if figure.low is None else f" ({figure.low:.4g} to {figure.high:.4g})"
    return f"{figure.value:.4g}{interval}, {figure.source}"
