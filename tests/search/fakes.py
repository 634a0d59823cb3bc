"""A cost model and an evaluator that know the answer, for tests of the search alone."""

from dataclasses import dataclass, field

from hwnas.cost.base import Cost
from hwnas.errors import CompileError
from hwnas.figure import COSTS, Figure, proportion
from hwnas.space import Genotype


def size(genotype: Genotype) -> int:
    return sum(int(value) for _, value in genotype.options)


@dataclass
class SizeCost:
    """Costs grow with the sum of the options."""

    refuses: int | None = None  #: a sum of options that cannot be compiled
    unrunnable: int | None = None  #: a sum of options that the target cannot run
    asked: list[str] = field(default_factory=list)
    n_affordable: int | None = None

    def cost(self, genotype: Genotype) -> Cost:
        self.asked.append(genotype.id)
        if size(genotype) == self.refuses:
            raise CompileError("refused")
        figures = {name: Figure(float(size(genotype)), "modelled") for name in COSTS}
        reason = "falls back" if size(genotype) == self.unrunnable else ""
        return Cost(figures, {"detail": 1.0}, (), reason)


@dataclass
class SizeAccuracy:
    """Accuracy grows with the sum of the options, with the last digits of the id as noise."""

    asked: list[str] = field(default_factory=list)

    def accuracy(self, genotype: Genotype) -> Figure:
        self.asked.append(genotype.id)
        return proportion(5 * size(genotype) + int(genotype.id, 16) % 50, 1000)
