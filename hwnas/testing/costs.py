"""What searches rely on in cost models, and verification in sessions."""

import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hwnas import metrics
from hwnas.cost.base import CostModel
from hwnas.figure import SOURCES
from hwnas.graph import Graph
from hwnas.runtimes.base import Session
from hwnas.space import SearchSpace


class CostModelContract:
    """A subclass gives the fixtures ``cost_model`` and ``cost_space``."""

    def test_same_genotype_costs_the_same(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        genotype = cost_space.sample(random.Random(3))
        assert cost_model.cost(genotype) == cost_model.cost(genotype)

    def test_every_figure_is_positive_and_has_a_source(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        cost = cost_model.cost(cost_space.sample(random.Random(4)))
        assert set(cost.figures) == set(metrics.GIVEN)
        for figure in cost.figures.values():
            assert figure.value > 0
            assert figure.source in SOURCES
            if figure.low is not None and figure.high is not None:
                assert figure.low <= figure.value <= figure.high

    def test_largest_costs_more_than_smallest(
        self, cost_model: CostModel, cost_space: SearchSpace
    ) -> None:
        small = cost_model.cost(cost_space.smallest()).figures
        large = cost_model.cost(cost_space.largest()).figures
        assert all(large[name].value > small[name].value for name in metrics.GIVEN)


class SessionContract:
    """A subclass gives the fixture ``session``: a loaded network, its lowering and its oracle."""

    def test_output_is_within_tolerance_of_the_oracle(
        self,
        session: tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]],
        tolerance: float,
    ) -> None:
        loaded, lowered, oracle = session
        rng = np.random.default_rng(0)
        images = rng.normal(size=(20, *lowered[0].op.in_shape)).astype(np.float32)
        outputs = loaded.run(images)
        assert outputs.shape == (20, lowered.output.op.out_shape[0])
        assert np.abs(outputs - oracle(images)).max() <= tolerance
