"""Costs by measurement: every candidate is compiled and timed whole on its device."""

from collections.abc import Callable
from typing import final

from hwnas.cost.base import Cost
from hwnas.cost.host import host_cost
from hwnas.cost.segments import one_by_one
from hwnas.graph import Graph
from hwnas.op import OpSpec
from hwnas.runtimes.pool import Retrying
from hwnas.space import Genotype
from hwnas.target import Target
from hwnas.timing import Compared


@final
class MeasuredCostModel:
    """Tunes what is not tuned yet, links the network and times it."""

    n_affordable: int | None = 0  # it measures each

    def __init__(
        self,
        worker: Retrying,
        target: Target,
        lower: Callable[[Genotype], Graph],
        plan: Callable[[OpSpec], str],
    ):
        self._worker, self._target, self._lower, self._plan = worker, target, lower, plan

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            CompileError: the compiler refuses the network, crashes or hangs.
            DeviceError: no device answers.
        """
        return one_by_one(self._lower(genotype), self._timed)

    def _timed(self, lowered: Graph) -> Cost:
        plans = {node.op: self._plan(node.op) for node in lowered}
        timing = self._worker.time_network(lowered, plans)
        cost = host_cost(lowered, self._target, timing.figure)
        return Cost(cost.figures, {**cost.details, "latency_drifted": float(timing.drifted)})

    def in_turns(self, genotype: Genotype, other: Genotype) -> Compared:
        """Return the latencies of two genotypes, timed alternately.

        Raises:
            CompileError: the compiler refuses one of them, crashes or hangs.
            DeviceError: no device answers.
        """
        return self._worker.networks_in_turns(self._lower(genotype), self._lower(other))
