"""The device of a measured target and its latency table."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from hwnas.core import package
from hwnas.core.errors import TableError
from hwnas.core.options import digest
from hwnas.core.progress import Progress
from hwnas.hardware import backends
from hwnas.hardware.costs.table_cost import TableCostModel
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    OperatorEntry,
    TableConfig,
    check_complete,
    is_transferred,
    missing_operators_error,
    table_folder,
)
from hwnas.hardware.latency_tables.provenance import (
    decisive_facts,
    open_table,
    provenance_facts,
    related_table,
    writable_table,
)
from hwnas.hardware.profiling import initial_table, table_transfer
from hwnas.hardware.profiling.initial_table import InitialMeasurements
from hwnas.hardware.profiling.passes import MeasurementEffort, ProfiledSpace
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.target import Target
from hwnas.hardware.timing import Timing
from hwnas.models.graph import OpSpec, distinct_ops
from hwnas.workflows.config import ProfileConfig, SearchConfig
from hwnas.workflows.networks import Networks, profile_command

_N_CHECKED_FOR_COMMON = 20  #: networks, of which half may lack an operator
_CHECKED = 300  #: networks whose operators must be in the table before training starts

#: Allowed fraction of missing operators if latencies of operators are predicted: rare operators
#: that no sampled network had. A larger fraction means that the space has changed.
_RARE = 0.05

_SOON = 2  #: maximum number of passes per operator while a search waits

#: The latency tables that ship with hwnas.
SHIPPED = package.ROOT / "latency_tables"


@final
class MeasuredTarget:
    """A measured target: its latency table, and the processes that compile and time.

    It locks the table until :meth:`close`, unless the table predicts costs (``cost=table``).

    Args:
        config: Configuration of the command.
        table: Table of the target.
        digest: Digest of the part of the table that predicts costs; empty if costs are measured.
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
        self._plans = {
            **(other.plans if other else {}),
            **table.transferred_plans(),
            **table.plans(),
        }

    @property
    def digests(self) -> dict[str, str]:
        """``digest`` by the name ``latency_table``, or that of the device if costs are measured."""
        if self.digest:
            return {"latency_table": self.digest}
        return {"device": digest(decisive_facts(self.config.target, self.config.rpc))}

    @property
    def facts(self) -> dict[str, Any]:
        """The ``path`` of the table, and in ``foreign`` how its machine differs, or ``None``."""
        return {"path": str(self.table.path), "foreign": self.table.from_another_machine or None}

    def notes(self, spaces: Sequence[str]) -> list[str]:
        """Return a message for each search space with predicted instead of measured operators.

        It gives the source and the errors of predictions, and the command that measures operators.
        Empty unless ``cost=table``.
        """
        if not _predicts(self.config):
            return []
        lines = [initial_table.describe_calibration(self.table, name) for name in spaces]
        command = profile_command(self.config)
        return [f"{line} To measure operators too: {command}" for line in lines if line]

    def close(self) -> None:
        """End the processes that compile and time, and unlock the table."""
        self._open.close()

    @contextlib.contextmanager
    def running(self, target: Target) -> Iterator["MeasuredTarget"]:
        """Yield a device whose process has the batch size and threads of one network.

        It is this object if they are those of ``config.target``, or if files are compiled for one
        batch size.

        Args:
            target: The target with the settings of the network.
        """
        config, device = self.config, copy.copy(self)
        artefact = backends.artefacts()[target.artefact]
        configured = config.target.batch, config.target.threads
        if artefact.one_batch or configured == (target.batch, target.threads):
            yield self
            return
        pool = DevicePool(target, config.timing, config.rpc, config.tuning.limit_s)
        device.worker = RetryingPool(pool)
        try:
            yield device
        finally:
            pool.close()

    def plan(self, op: OpSpec) -> str:
        """Return the compilation plan of an operator: from the table, else by tuning.

        A plan of another CPU's table is used, too. A new plan is stored in the table with its
        latency, except with ``cost=table``: the table of a search does not change.
        """
        if op not in self._plans:
            self._plans[op] = self.worker.tune(op, self._n_plans)
            if self._plans[op] and not _predicts(self.config):  # the table keeps the plan
                self.time(op)
        return self._plans[op]

    def time(self, op: OpSpec) -> Timing:
        """Return the latency of an operator in milliseconds: from the table, else by measuring it.

        A predicted latency is measured and replaced; so is one scaled from another table, if the
        operator has a plan. New latencies are saved in the table.
        """
        plan = self.plan(op)
        if self.table.missing([op]):
            (timing,) = self.worker.time_operators([(op, plan)])
            known = self.table.entries.get(op)
            if known is not None and is_transferred(known.plan) and not plan:
                return timing  # of an operator alone; other entries are scaled to whole networks
            if op in self.table.transferred_plans():
                self.table.forget_transfer()
            self.table.entries[op] = OperatorEntry(plan, timing)
            self.table.save()
        return self.table.entries[op].timing


def _predicts(config: SearchConfig | ProfileConfig) -> bool:
    """Return whether costs come from a latency table."""
    return isinstance(config, SearchConfig) and config.cost == "table"


def source(config: SearchConfig | ProfileConfig) -> table_transfer.SourceTable | None:
    """Return another CPU's table that can be scaled to this machine; ``None`` if there is none.

    ``table.dir`` is searched first, then the shipped tables.
    """
    roots = [Path(config.table.dir), SHIPPED]
    related = related_table(config.target, config.rpc, roots)
    return related and table_transfer.SourceTable.of(
        related, provenance_facts(config.target, config.rpc)
    )


def _begin(config: SearchConfig, networks: Networks, progress: Progress) -> None:
    """Measure what a search needs for spaces that are in no table of this machine."""
    table = writable_table(config.target, config.rpc, _own_root(config), SHIPPED)
    all_of_them = [ProfiledSpace(member, networks.fused_graph) for member in networks.space.members]
    subjects = _spaces_to_measure(table, all_of_them, config.seed)
    if not subjects:
        return
    other = source(config)
    pool = DevicePool(config.target, config.timing, config.rpc, config.tuning.limit_s)
    with table.locked(), pool:
        fill(table, other, subjects, pool, effort(config, other, n_passes=_SOON), progress)


def effort(
    config: SearchConfig | ProfileConfig, other: table_transfer.SourceTable | None, **goal: Any
) -> MeasurementEffort:
    """Return the options of the measurements for spaces that are in no table of this machine.

    Args:
        config: Configuration of the command.
        other: Another CPU's table, whose compilation plans are used; ``None``: all are tuned.
        **goal: Fields of ``MeasurementEffort`` that define when to stop.
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
    """Calibrate a table for spaces, and save it.

    If another CPU's table covers enough networks of each space, it is scaled to a few measured
    networks; else operators and networks are measured.

    Args:
        table: Table to fill.
        other: Another CPU's table, if there is one.
        subjects: The spaces.
        pool: Processes that compile and time.
        effort: Options of the measurements.
        progress: Is notified of progress.

    Returns:
        The measurements; ``None`` if ``other`` was scaled.
    """
    if other is not None and all(other.covers(subject, effort.n) for subject in subjects):
        table_transfer.transfer_table(table, other, subjects, pool, effort, progress)
        return None
    return initial_table.create_initial_table(table, subjects, pool, effort, progress)


def _spaces_to_measure(
    table: LatencyTable, subjects: Sequence[ProfiledSpace], seed: int
) -> list[ProfiledSpace]:
    """Return the spaces missing in a table, and those that it loses when one is added.

    The latter have latencies scaled from another device's table, for operators that all share.
    """
    lacking = {subject.space.name for subject in subjects if _is_lacking(table, subject, seed)}
    borrowed = {name for name, known in table.calibration.items() if "transfer" in known}
    names = lacking | borrowed if lacking else lacking
    return [subject for subject in subjects if subject.space.name in names]


def _is_lacking(table: LatencyTable, subject: ProfiledSpace, seed: int) -> bool:
    """Return whether a space is missing in a table."""
    known = table.calibration.get(subject.space.name)
    if known is None or _missing_operators(
        table, _sampled_operators(subject, seed), "foretold" in known
    ):
        return True
    # Few operators may be missing, but not in all networks, as with images of other channels.
    graphs = map(subject.lower, subject.sample(_N_CHECKED_FOR_COMMON, seed))
    n_lacking = sum(any(node.op not in table.entries for node in graph) for graph in graphs)
    return 2 * n_lacking > _N_CHECKED_FOR_COMMON


def _missing_operators(table: LatencyTable, ops: Sequence[OpSpec], predicted: bool) -> list[OpSpec]:
    """Return the operators missing in a table; few are ignored if others are predicted."""
    missing = [op for op in ops if op not in table.entries]
    return [] if predicted and len(missing) <= _RARE * len(ops) else missing


def _sampled_operators(subject: ProfiledSpace, seed: int) -> tuple[OpSpec, ...]:
    """Return the operators of a space, or of a sample of its networks."""
    return distinct_ops(subject.lower(genotype) for genotype in subject.sample(_CHECKED, seed))


def check_device(config: SearchConfig | ProfileConfig) -> None:
    """Check the tools and the latency table of a target, before data are loaded.

    Raises:
        ConfigError: a compiler, its configuration file or a required tracker is missing.
        DeviceError: the tracker of remote devices does not answer.
        TableError: with ``cost=table``: ``table.dir`` does not exist, the table lacks a file or is
            damaged, or there is none for this machine and ``table.networks`` is 0.
    """
    backend = backends.get(config.target.runtime)
    if backend.check_tools:
        backends.resolve_reference(backend.check_tools, backend)(config.target, config.rpc)
    if not isinstance(config, SearchConfig) or config.cost != "table":
        return
    roots, accept = [_own_root(config), SHIPPED], config.table.allow_other_machine
    for root in roots:
        check_complete(table_folder(config.target, root))
    if not config.table.networks or accept:
        open_table(config.target, config.rpc, roots, accept, profile_command(config))


def open_device(config: SearchConfig, networks: Networks, progress: Progress) -> MeasuredTarget:
    """Return the device of a measured target, with its latency table.

    For spaces that are in no table of this machine, a few networks are measured first.

    Raises:
        TableError: with ``cost=table``: ``table.dir`` does not exist, there is no table of this
            machine, or it lacks operators of the space.
        CompileError: an operator cannot be compiled or timed.
        DeviceError: the device does not respond.
    """
    if config.cost == "table":
        roots, command = [_own_root(config), SHIPPED], profile_command(config)
        accept = config.table.allow_other_machine
        if config.table.networks and not accept:
            _begin(config, networks, progress)
        table = open_table(config.target, config.rpc, roots, accept, command)
        # Fail now rather than after an hour of training.
        ops = _sampled_operators(ProfiledSpace(networks.space, networks.fused_graph), config.seed)
        spaces = [member.name for member in networks.space.members]
        predicted = any("foretold" in table.calibration.get(space, {}) for space in spaces)
        if missing := _missing_operators(table, ops, predicted):
            raise missing_operators_error(missing, config.target, command)
        TableCostModel(table, config.target, networks.fused_graph, spaces, command)
        device = MeasuredTarget(config, table, table.digest(spaces, ops))
        if predicted:  # the digest covers the predictions; the table may grow
            device.table = table.only(ops)
        return device
    return MeasuredTarget(
        config, writable_table(config.target, config.rpc, Path(config.table.dir), SHIPPED)
    )


def _own_root(config: SearchConfig) -> Path:
    """Return the folder of the user's tables.

    Raises:
        TableError: a folder was named but does not exist; shipped tables must not replace it.
    """
    root = Path(config.table.dir)
    if config.table.dir != TableConfig().dir and not root.is_dir():
        raise TableError(
            f"table.dir={root}: there is no such folder. Remove table.dir to use the tables that "
            f"come with hwnas, or measure one with: {profile_command(config)}"
        )
    return root
