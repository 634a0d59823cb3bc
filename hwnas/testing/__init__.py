"""Contract suites for pytest: every Family, Backend, CostModel and Session must pass them.

Add a subclass with fixtures for a new one::

    class TestMine(FamilyContract):
        @pytest.fixture
        def family(self) -> Family:
            return families.get("mine")

        @pytest.fixture
        def family_space(self) -> SearchSpace:
            return spaces.load_space(Path("mine.yaml"))

A failing test names the genotype and the operator. To see the compared values, call
``pytest.register_assert_rewrite("hwnas.testing")`` in ``conftest.py``. ``experiments/own_family``
is an example of a family with its test.
"""

from hwnas.testing.backends import BackendContract, CostModelContract, SessionContract
from hwnas.testing.families import FamilyContract

__all__ = ["BackendContract", "CostModelContract", "FamilyContract", "SessionContract"]
