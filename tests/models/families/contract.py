"""The contract of families: with few networks, and with many in the slow tests."""

import random

import pytest

from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.testing import FamilyContract
from tests.conftest import few_of


class SizedFamilyContract(FamilyContract):
    @pytest.fixture(params=few_of([5, 20], 1))
    def genotypes(
        self, family_space: SearchSpace, request: pytest.FixtureRequest
    ) -> list[Genotype]:
        rng = random.Random(1)
        drawn = [family_space.sample(rng) for _ in range(request.param)]
        return [family_space.smallest(), family_space.largest(), *drawn]
