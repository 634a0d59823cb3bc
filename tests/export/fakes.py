"""A device that is a worker and plans, without a latency table that anything is in."""

from collections.abc import Callable
from pathlib import Path

from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.models.graph import OpSpec


class Lent:
    def __init__(self, worker: RetryingPool, plan: Callable[[OpSpec], str]):
        self.worker, self._plan, self.table = worker, plan, LatencyTable(Path("none"))

    def plan(self, op: OpSpec) -> str:
        return self._plan(op)
