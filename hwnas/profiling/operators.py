"""Tunes and times the operators that a table lacks."""

from collections.abc import Callable, Sequence

from hwnas.errors import CompileError, HwnasError
from hwnas.latency_table import Entry, LatencyTable
from hwnas.op import OpSpec
from hwnas.profiling.effort import Effort
from hwnas.profiling.passes import Measured, Passes, Saver
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.runtimes.worker import Worker
from hwnas.timing import Timing

_BLOCK = 10  #: operators between two readings of the sentinel


def measure_operators(
    table: LatencyTable,
    ops: Sequence[OpSpec],
    pool: Pool,
    effort: Effort,
    progress: Progress,
) -> dict[OpSpec, str]:
    """Tune and time the operators that a table lacks; return those that cannot be compiled.

    Those that ``effort`` has a plan of are not tuned.
    """
    missing, elsewhere = table.missing(ops), table.taken_over()
    refused: dict[OpSpec, str] = {}

    def tune(op: OpSpec) -> Callable[[Worker], tuple[str, Timing]]:
        def work(worker: Worker) -> tuple[str, Timing]:
            plan = effort.plans.get(op) or worker.tune(op, effort.n_plans, elsewhere.get(op, ""))
            return plan, worker.time_operators([(op, plan)])[0]

        return work

    with progress.phase("Tune operators", len(missing)) as advance, Saver(table) as saver:
        for index, outcome in pool.run([tune(op) for op in missing]):
            op = missing[index]
            if isinstance(outcome, CompileError):
                refused[op] = str(outcome)
            elif isinstance(outcome, HwnasError):
                raise outcome
            else:
                table.entries[op] = Entry(*outcome)
                saver.soon()
            advance(1)
    _passes(table, effort.n_passes).run(
        table, [op for op in ops if op not in refused], pool, progress
    )
    return refused


def _passes(table: LatencyTable, most: int) -> Passes[OpSpec]:
    def measured(op: OpSpec) -> Measured:
        return Measured(table.entries[op].timing, table.entries[op].n_passes)

    def keep(op: OpSpec, now: Measured) -> None:
        table.entries[op] = Entry(table.entries[op].plan, now.timing, now.n_passes)

    def time(worker: Worker, ops: Sequence[OpSpec]) -> Sequence[Timing]:
        return worker.time_operators([(op, table.entries[op].plan) for op in ops])

    return Passes("Time operators", measured, keep, time, _BLOCK, most)
