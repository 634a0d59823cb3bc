"""Costs with the metrics that are derived from them."""

from dataclasses import replace
from typing import final

from hwnas.cost.base import Cost, CostModel
from hwnas.metrics.deriving import Deriving
from hwnas.space import Genotype


@final
class DerivedCostModel:
    """Has a cost model say the costs, and adds what is derived from them."""

    def __init__(self, model: CostModel, deriving: Deriving):
        self._model, self._deriving = model, deriving
        self.n_affordable = model.n_affordable

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            CompileError: the target's compiler refuses the network.
        """
        cost = self._model.cost(genotype)
        return replace(cost, figures=self._deriving(cost.figures))
