"""A device with a worker and plans, and an empty latency table."""

from collections.abc import Callable
from pathlib import Path

from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.models.graph import OpSpec


class FakeDevice:
    def __init__(self, worker: RetryingPool, plan: Callable[[OpSpec], str]):
        self.worker, self._plan, self.table = worker, plan, LatencyTable(Path("none"))

    def plan(self, op: OpSpec) -> str:
        return self._plan(op)
