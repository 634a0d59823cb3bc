"""Tests of the example family: the contract suite, and rejected spaces.

pytest experiments/own_family
"""

from pathlib import Path

import pytest
import yaml

from hwnas.core.errors import SpaceError
from hwnas.models import families, spaces
from hwnas.models.families.base import Family
from hwnas.models.spaces import SearchSpace
from hwnas.testing import FamilyContract

SPACE = Path(__file__).with_name("plain.yaml")


class TestPlain(FamilyContract):
    """All tests of the contract suite for this family and this space."""

    @pytest.fixture
    def family(self) -> Family:
        """Return the family as hwnas discovers it, by its entry point."""
        return families.get("plain")

    @pytest.fixture
    def family_space(self) -> SearchSpace:
        """Return a space of the family."""
        return spaces.load_space(SPACE)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stages.0.width", None, "'stages.0.width' is missing"),
        ("stages.0.blocks.1.kernel", [3, 4], "'stages.0.blocks.1.kernel' needs odd numbers"),
        ("stages.0.stride", [2, 1], "Unknown name 'stages.0.stride'"),
        ("resolution", [0, 12], "'resolution' needs whole numbers above 0"),
    ],
)
def test_space_that_is_not_of_the_family_is_refused(
    tmp_path: Path, name: str, value: list[int] | None, message: str
) -> None:
    """An invalid space is rejected before training, with a message that names the error."""
    raw = yaml.safe_load(SPACE.read_text())
    raw["choices"][name] = value
    if value is None:
        del raw["choices"][name]
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError, match=message):
        families.get("plain").check(spaces.load_space(path))
