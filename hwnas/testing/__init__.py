"""What every Family, Backend, CostModel and Session must do: suites for pytest, one's own too.

A new one adds a subclass with fixtures, not a suite::

    class TestMine(FamilyContract):
        @pytest.fixture
        def family(self) -> Family:
            return families.get("mine")

        @pytest.fixture
        def family_space(self) -> SearchSpace:
            return space.load(Path("mine.yaml"))

A failing test names the genotype and the operator. To see the values that an assertion compares,
too, have ``conftest.py`` say ``pytest.register_assert_rewrite("hwnas.testing")``.
``experiments/own_family`` is an example of a family with its test.
"""

from hwnas.testing.backends import BackendContract, CostModelContract, SessionContract
from hwnas.testing.families import FamilyContract

__all__ = ["BackendContract", "CostModelContract", "FamilyContract", "SessionContract"]
