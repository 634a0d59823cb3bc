"""The device of a target that is measured, and the latency table that its costs come from."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from hwnas.core import package
from hwnas.core.errors import TableError
from hwnas.core.progress import Progress
from hwnas.hardware import backends
from hwnas.hardware.costs.table_cost import TableCostModel
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    OperatorEntry,
    TableConfig,
    missing_operators_error,
)
from hwnas.hardware.latency_tables.provenance import (
    open_table,
    provenance_facts,
    related_table,
    writable_table,
)
from hwnas.hardware.profiling import initial_table, table_transfer
from hwnas.hardware.profiling.initial_table import InitialMeasurements
from hwnas.hardware.profiling.passes import MeasurementEffort, ProfiledSpace
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.suggested_commands import changed_options, shipped_options, suggested_command
from hwnas.hardware.target import Target
from hwnas.hardware.timing import Timing
from hwnas.models.graph import OpSpec, distinct_ops
from hwnas.training.options import DatasetConfig
from hwnas.workflows.config import ProfileConfig, SearchConfig
from hwnas.workflows.networks import Networks

_CHECKED = 300  #: networks whose operators are looked for in a table before anything is trained

#: Where operators are foretold, the share of them that may be missing: so rare that no network had
#: them. More are of a space that was changed.
_RARE = 0.05

_SOON = 2  #: times that an operator is timed, at most, while a search waits

#: Of data sets: what decides which images are read, and so what networks read and answer.
_SOURCE = ("hub_id", "path", "image_column", "label_column", "test_split")

#: The latency tables that ship with hwnas.
SHIPPED = package.ROOT / "latency_tables"


@final
class MeasuredTarget:
    """A target that is measured: its latency table, and the process that compiles and times.

    Args:
        config: Of the command.
        table: Of the target.
        digest: Of what costs are predicted from; empty where nothing is.
    """

    def __init__(self, config: SearchConfig | ProfileConfig, table: LatencyTable, digest: str = ""):
        self.config, self.table, self.digest = config, table, digest
        self._open = contextlib.ExitStack()
        if not _predicts(config):
            self._open.enter_context(table.locked())
        limit_s = config.tuning.limit_s
        self._pool = DevicePool(config.target, config.timing, config.rpc, limit_s)
        self._open.callback(self._pool.close)
        self.worker = RetryingPool(self._pool)
        self._n_plans = config.tuning.n_plans
        other = source(config)
        self._plans = {**(other.plans if other else {}), **table.taken_over(), **table.plans()}

    def close(self) -> None:
        """End the process."""
        self._open.close()

    @contextlib.contextmanager
    def running(self, target: Target) -> Iterator["MeasuredTarget"]:
        """Give the device as one network runs, which may choose its images and threads.

        A file that was not compiled for them is timed with as many as its process is told.
        """
        config, found = self.config, copy.copy(self)
        own = backends.artefacts()[backends.get(target.runtime).dtypes[target.dtype]]
        told = config.target.batch, config.target.threads
        if own.one_batch or told == (target.batch, target.threads):
            yield self
            return
        pool = DevicePool(target, config.timing, config.rpc, config.tuning.limit_s)
        found.worker = RetryingPool(pool)
        try:
            yield found
        finally:
            pool.close()

    def plan(self, op: OpSpec) -> str:
        """Return how an operator is compiled: as in a table, else tuned now and kept there.

        Plans of another CPU's table will do, too. A table from which a search predicts stays as it
        is: the search may be resumed.
        """
        if op not in self._plans:
            self._plans[op] = self.worker.tune(op, self._n_plans)
            if not _predicts(self.config):
                self.time(op)
        return self._plans[op]

    def time(self, op: OpSpec) -> Timing:
        """Return the latency of an operator alone: the table's, else timed now and kept there.

        That it has a plan, or a latency that follows from another table, does not say it was timed.
        """
        plan = self.plan(op)
        if self.table.missing([op]):
            (timing,) = self.worker.time_operators([(op, plan)])
            self.table.entries[op] = OperatorEntry(plan, timing)
            self.table.save()
        return self.table.entries[op].timing


def _predicts(config: SearchConfig | ProfileConfig) -> bool:
    """Return whether costs come from a latency table."""
    return isinstance(config, SearchConfig) and config.cost == "table"


def source(config: SearchConfig | ProfileConfig) -> table_transfer.SourceTable | None:
    """Return another CPU's table from which one of this machine may follow, if there is any."""
    roots = [Path(config.table.dir), SHIPPED]
    found = related_table(config.target, config.rpc, roots)
    return found and table_transfer.SourceTable.of(
        found, provenance_facts(config.target, config.rpc)
    )


def _begin(config: SearchConfig, networks: Networks, progress: Progress) -> None:
    """Measure what a search needs where no table of this machine knows a space."""
    table = writable_table(config.target, config.rpc, _own_root(config), SHIPPED)
    all_of_them = [ProfiledSpace(member, networks.fused_graph) for member in networks.space.members]
    subjects = _wanted(table, all_of_them, config.seed)
    if not subjects:
        return
    other = source(config)
    pool = DevicePool(config.target, config.timing, config.rpc, config.tuning.limit_s)
    with table.locked(), pool:
        fill(table, other, subjects, pool, effort(config, other, n_passes=_SOON), progress)


def effort(
    config: SearchConfig | ProfileConfig, other: table_transfer.SourceTable | None, **goal: Any
) -> MeasurementEffort:
    """Return how much is measured where no table of this machine knows a space.

    Args:
        config: Of the command.
        other: Another CPU's table.
        **goal: Fields of ``Effort`` that say when it is enough.
    """
    plans = {} if other is None else other.plans
    return MeasurementEffort(config.table.networks, config.tuning.n_plans, plans, **goal)


def fill(
    table: LatencyTable,
    other: table_transfer.SourceTable | None,
    subjects: Sequence[ProfiledSpace],
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> InitialMeasurements | None:
    """Make a table know spaces: from another CPU's that does, else from what is measured here.

    Returns:
        What was measured here; ``None`` where a table is borrowed.
    """
    if other is not None and all(other.covers(each, effort.n) for each in subjects):
        table_transfer.transfer_table(table, other, subjects, pool, effort, progress)
        return None
    return initial_table.create_initial_table(table, subjects, pool, effort, progress)


def _wanted(
    table: LatencyTable, subjects: Sequence[ProfiledSpace], seed: int
) -> list[ProfiledSpace]:
    """Return the spaces that a table does not know, and those that it forgets when it learns one.

    These are of latencies that followed from another device's table: of operators that all share.
    """
    lacking = {each.space.name for each in subjects if _is_lacking(table, each, seed)}
    borrowed = {name for name, known in table.calibration.items() if "transfer" in known}
    names = lacking | borrowed if lacking else lacking
    return [each for each in subjects if each.space.name in names]


def _is_lacking(table: LatencyTable, subject: ProfiledSpace, seed: int) -> bool:
    """Return whether a table does not know a space."""
    known = table.calibration.get(subject.space.name)
    return known is None or bool(_missing(table, _some(subject, seed), "foretold" in known))


def _missing(table: LatencyTable, ops: Sequence[OpSpec], told: bool) -> list[OpSpec]:
    """Return the operators that a table lacks; where others are ``told``, not if they are rare."""
    missing = [op for op in ops if op not in table.entries]
    return [] if told and len(missing) <= _RARE * len(ops) else missing


def _some(subject: ProfiledSpace, seed: int) -> tuple[OpSpec, ...]:
    """Return operators of a space, or most of them where they are many."""
    return distinct_ops(subject.lower(genotype) for genotype in subject.sample(_CHECKED, seed))


def open_device(
    config: SearchConfig, networks: Networks, progress: Progress
) -> MeasuredTarget | None:
    """Return the device of a measured target, with the table that its costs come from.

    Where no table of this machine knows a space, some networks are measured from which one follows.

    Raises:
        TableError: there is no table of this machine, or it is not made for the space.
    """
    if not backends.get(config.target.runtime).measured:
        return None
    if config.cost == "table":
        roots, cure = [_own_root(config), SHIPPED], profile_command(config)
        accept = config.table.allow_other_machine
        if config.table.networks and not accept:
            _begin(config, networks, progress)
        table = open_table(config.target, config.rpc, roots, accept, cure)
        # Better now than after an hour of training.
        ops = _some(ProfiledSpace(networks.space, networks.fused_graph), config.seed)
        spaces = [member.name for member in networks.space.members]
        told = any("foretold" in table.calibration.get(space, {}) for space in spaces)
        if missing := _missing(table, ops, told):
            raise missing_operators_error(missing, config.target, cure)
        TableCostModel(table, config.target, networks.fused_graph, spaces, cure)
        device = MeasuredTarget(config, table, table.digest(spaces, ops))
        if told:  # rare operators follow from what the digest is of: others may come to the table
            device.table = table.only(ops)
        return device
    return MeasuredTarget(
        config, writable_table(config.target, config.rpc, Path(config.table.dir), SHIPPED)
    )


def _own_root(config: SearchConfig) -> Path:
    """Return the folder of tables of the user's own.

    Raises:
        TableError: it was named, and is not there: tables that ship shall not stand in.
    """
    root = Path(config.table.dir)
    if config.table.dir != TableConfig().dir and not root.is_dir():
        raise TableError(
            f"table.dir={root}: there is no such folder. Leave table.dir out to read tables that "
            f"ship, or measure one with: {profile_command(config)}"
        )
    return root


def table_digest(device: MeasuredTarget | None) -> dict[str, str]:
    """Return the digest of what costs are predicted from, by name; none where nothing is."""
    return {"latency_table": device.digest} if device is not None and device.digest else {}


def table_facts(device: MeasuredTarget | None) -> dict[str, Any] | None:
    """Return which table a run reads, and what is foreign about it."""
    if device is None:
        return None
    return {"path": str(device.table.path), "foreign": device.table.from_another_machine or None}


def notes(device: MeasuredTarget | None, spaces: Sequence[str]) -> list[str]:
    """Return what is to be known of where costs come from."""
    if device is None or not _predicts(device.config):
        return []
    found = [
        words
        for name in spaces
        if (words := initial_table.describe_calibration(device.table, name))
    ]
    return [f"{line} To measure operators too: {profile_command(device.config)}" for line in found]


def profile_command(config: SearchConfig | ProfileConfig, *words: str) -> str:
    """Return the command that measures what a table lacks."""
    return next_command("profile", config, *words)


def next_command(verb: str, config: SearchConfig | ProfileConfig, *words: str) -> str:
    """Return a command for the same target, spaces and data."""
    spaces, rpc = config.spaces, config.rpc
    searched = spaces[0] if len(spaces) == 1 else f"[{','.join(spaces)}]"
    said = [f"search_space={searched}", f"dataset={config.dataset.name}", *_data(config.dataset)]
    if config.table.dir != TableConfig().dir:
        said.append(f"table.dir={config.table.dir}")
    if rpc.tracker:
        said += [f"rpc.tracker={rpc.tracker}", f"rpc.key={rpc.key}"]
    return suggested_command(verb, config.target, *said, *words)


def _data(dataset: DatasetConfig) -> list[str]:
    """Return options for what its file does not say of which images are read, and for what."""
    usual = asdict(DatasetConfig(dataset.name)) | shipped_options("dataset", dataset.name).get(
        "dataset", {}
    )
    known = {name: getattr(dataset, name) for name in _SOURCE}
    task = [f"task={dataset.task}"] if dataset.task != usual["task"] else []
    return [*task, *changed_options("dataset", known, usual)]
