"""Costs of an export on the machine at hand, or estimated again; needs no torch."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

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
from hwnas.export.reference_images import prepared, read_kept
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.backends.artefact_wrappers import ExitArtefacts, file_names
from hwnas.hardware.derived_metrics import derived_metrics
from hwnas.hardware.latency_tables.latency_table import LatencyTable, table_name
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.target import Target, facts
from hwnas.models.graph import OpSpec
from hwnas.tasks.metrics import all_metrics

_OF_LIMITS = ("name", "batch", "threads", "dtype")  #: of a target: what its budget was said for


@dataclass(frozen=True)
class ArtefactCosts:
    """What an artefact costs on a target."""

    target: Target
    name: str  #: the artefact
    figures: Quantities
    before: Quantities  #: that the proof says of the same target; of another, none
    limits: Mapping[str, float]  #: of the proof's budget for the same target; of another, none
    #: What the same version of the compiler gave that it did not give before: figures and a file.
    other: Sequence[str] = ()
    #: Whether the compiler gave the same file again; ``None`` where it was not asked.
    same: bool | None = None

    def lines(self) -> list[str]:
        """Return what was found, in sentences."""
        found = [f"{self.name} on {self.target.name}, {self.target.caveat}:"]
        for name, figure in self.figures.items():
            before = self.before.get(name, figure)
            said = "" if before == figure else f"; the proof says {before.value:.4g}"
            found.append(f"  {name} {_words(figure)}{said}")
        found += [
            f"  budget.{name} was not repeated: {name} is not known here."
            for name in self.limits
            if name not in self.figures
        ]
        if self.same is not None:
            what = "the same" if self.same else "another"
            found.append(f"  The compiler gave {what} file.")
        return found

    @property
    def failed(self) -> list[str]:
        """What is not as the proof says, and the limits of the budget that are not met."""
        checks = proof.within_budget(self.limits, self.figures)
        return [*self.other, *(check.name for check in checks if not check.holds)]


@final
class TimingDevice:
    """A device that runs what is compiled already: it has no table, and nothing is tuned."""

    def __init__(self, target: Target, worker: RetryingPool):
        self.worker, self.table = worker, LatencyTable(Path(table_name(target)))

    def plan(self, op: OpSpec) -> str:
        """Refuse: nothing is compiled.

        Raises:
            CompileError: always.
        """
        raise CompileError(f"{op} is not compiled here.")


@contextlib.contextmanager
def worker(target: Target, config: VerifyConfig) -> Iterator[RetryingPool]:
    """Give what runs and times compiled networks, in a process of its own."""
    pool = DevicePool(target, config.timing, config.rpc, config.limit_s)
    try:
        yield RetryingPool(pool)
    finally:
        pool.close()


def measure(
    folder: Path, recorded: Proof, target: Target, config: VerifyConfig
) -> list[ArtefactCosts]:
    """Return what an export costs on a target: compiled again, or timed.

    Of a network with exits, first without them, then segment by segment to the end.

    Raises:
        ConfigError: the export has no artefact that the target runs, or one that reads another
            number of images an inference, or a package is missing.
    """
    lowered = operators_from_json(recorded["model"]["operators"])
    target = _with_facts(target, target_of(recorded))
    description = backends.get(target.runtime)
    name = description.dtypes[target.dtype]
    if why := backends.lacking(description.needs):
        raise ConfigError(f"Costs on target '{target.name}': {why}.")
    _check_there(name, recorded, target)
    images = read_kept(folder, recorded).pixels[: target.batch]
    said = recorded["dataset"]["normalisation"]
    with contextlib.ExitStack() as stack:
        bench = None
        if description.measured:
            bench = TimingDevice(target, stack.enter_context(worker(target, config)))
        derives = derived_metrics(target, [*recorded["budget"], *recorded["figures"]])
        artefacts = ExitArtefacts(base.backend_of(target).artefacts(bench), name, derives)
        read = prepared(images, said["mean"], said["std"])
        costed = artefacts.remeasure(runtimes.paths(folder, name), lowered, read)
        before, limits = _before(recorded, target), _limits(recorded, target)
        measured = ArtefactCosts(target, name, costed.cost.figures, before, limits)
        found = [_compared(measured, costed.recompiled, folder, recorded)]
        if "exits" in recorded and description.exits:
            found.append(_in_a_row(folder, recorded, recorded["exits"], measured, artefacts))
    return found


def _in_a_row(
    folder: Path,
    recorded: Proof,
    leaving: EarlyExitsRecord,
    whole: ArtefactCosts,
    artefacts: base.Artefacts,
) -> ArtefactCosts:
    """Return what segments cost that all run."""
    target = whole.target
    files = early_exits.paths(folder, target, len(leaving["segments"]))
    read = np.zeros((0,), np.float32)  # each segment reads what the one before answers
    lowered = exits_from_json(leaving)
    costed = artefacts.remeasure(files, lowered, read)
    before = quantities_from_json(leaving["worst"]) if whole.before else {}
    measured = ArtefactCosts(target, "Segments in a row", costed.cost.figures, before, whole.limits)
    return _compared(measured, costed.recompiled, folder, recorded)


def _compared(
    measured: ArtefactCosts, made: Mapping[str, bytes], folder: Path, recorded: Proof
) -> ArtefactCosts:
    """Return figures that a compiler found again, with what it found otherwise than before."""
    before, target = measured.before, measured.target
    if not before or not made:
        return measured
    description = backends.get(target.runtime)
    names = backends.file_names(target.runtime, target.dtype)
    if "exits" in recorded:
        names = file_names(names, len(recorded["exits"]["segments"]))
    another = [
        names[suffix]
        for suffix, content in made.items()
        if content != (folder / names[suffix]).read_bytes()
    ]
    changed = [n for n, f in measured.figures.items() if n not in before or f != before[n]]
    versions = recorded["made"]["versions"]
    same = all(backends.version(n) == versions.get(n) for n in description.fingerprint_packages)
    # Another version of the compiler may find another way.
    return replace(measured, other=[*changed, *another] if same else [], same=not another)


def _with_facts(target: Target, before: Target) -> Target:
    """Return a target with the facts that the proof's has, if it is that and states none itself."""
    same = target.name == before.name and not target.facts
    return replace(target, facts=before.facts) if same else target


def _before(recorded: Proof, target: Target) -> Quantities:
    """Return what the proof says of a target, if it was made for just that."""
    return quantities_from_json(recorded["figures"]) if _is_its(recorded, target) else {}


def _limits(recorded: Proof, target: Target) -> dict[str, float]:
    """Return the limits that costs on a target are held against, if the proof is of it.

    Those of an inference are of its images, threads and dtype, too. What leaving early comes to is
    no cost of files: checks of exits hold it.
    """
    early = {name for name, metric in all_metrics().items() if metric.mean_of}
    before = target_of(recorded)
    same = all(getattr(target, name) == getattr(before, name) for name in _OF_LIMITS)
    kept = recorded["budget"] if same else {}
    return {name: entry["limit"] for name, entry in kept.items() if name not in early}


def _is_its(recorded: Proof, target: Target) -> bool:
    return facts(target) == facts(target_of(recorded))


def _check_there(name: str, recorded: Proof, target: Target) -> None:
    there: Sequence[str] = list(recorded["artefacts"])
    if name not in there:
        others = (d.name for d in backends.known() if d.measured)
        able = [n for n in others if backends.get(n).dtypes.get(target.dtype) in there]
        cure = f" Say target.runtime={' or '.join(able)}." if able else ""
        raise ConfigError(
            f"Target '{target.name}' runs {name}, which this export does not hold "
            f"({', '.join(there)}).{cure}"
        )
    was = target_of(recorded).batch
    if backends.artefacts()[name].one_batch and target.batch != was:
        raise ConfigError(
            f"{name} was compiled for {was} images an inference, not {target.batch}: say "
            f"target.batch={was}."
        )


def _words(figure: Quantity) -> str:
    interval = "" if figure.low is None else f" ({figure.low:.4g} to {figure.high:.4g})"
    return f"{figure.value:.4g}{interval}, {figure.source}"
