"""Cost models and evaluators with known results, for tests of the search alone."""

from dataclasses import dataclass, field

import numpy as np

from hwnas.core.errors import CompileError
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.spaces import Genotype
from hwnas.tasks import metrics
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.early_stopping import Bits, read_accuracy, score_of_all_bits
from hwnas.tasks.intervals import proportion


def size(genotype: Genotype) -> int:
    return sum(int(value) for _, value in genotype.options)


@dataclass
class SizeCost:
    """Costs grow with the sum of the options."""

    refuses: int | None = None  #: a sum of options that cannot be compiled
    unrunnable: int | None = None  #: a sum of options that the target cannot run
    requested: list[str] = field(default_factory=list)
    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> Cost:
        self.requested.append(genotype.id)
        if size(genotype) == self.refuses:
            raise CompileError("refused")
        figures = {name: Quantity(float(size(genotype)), "modelled") for name in metrics.BASE_COSTS}
        reason = "falls back" if size(genotype) == self.unrunnable else ""
        return Cost(figures, {"detail": 1.0}, (), reason)


@dataclass
class SizeAccuracy:
    """Accuracy grows with the sum of the options, with the last digits of the id as noise."""

    requested: list[str] = field(default_factory=list)

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        self.requested.append(genotype.id)
        return Score(proportion(5 * size(genotype) + int(genotype.id, 16) % 50, 1000))


@dataclass
class BitAccuracy:
    """As ``SizeAccuracy``, but image by image, with early stopping."""

    n: int = 400
    requested: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def right(self, genotype: Genotype) -> Bits:
        """Return which images are classified correctly."""
        rng = np.random.default_rng(int(genotype.id, 16))
        difficulty = np.linspace(-4, 4, self.n) + rng.normal(0, 0.3, self.n)
        return np.asarray(difficulty < size(genotype) / 20 - 2)

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        self.requested.append(genotype.id)
        right = self.right(genotype)
        if incumbent is None:
            return score_of_all_bits(right)
        rng = np.random.default_rng(int(genotype.id, 16))
        score = read_accuracy(lambda index: right[index], self.n, incumbent, 0.99, rng)
        self.stopped += [genotype.id] * score.stopped
        return score
