import functools

import pytest

from hwnas.cli import help
from hwnas.workflows.config.compose import compose


@pytest.mark.parametrize("verb", ["search", "train"])
def test_help_values_equal_composed_defaults(verb: str) -> None:
    composed = compose(verb, ["+target=npu"] if verb == "search" else [])
    values = help.values(verb)
    assert values["dataset.name"] == "digits"
    for name, value in values.items():
        group, *path = name.split(".")
        if group == "budget":
            assert composed.budget[path[0]] == value
        elif value not in (None, []):  # derived from other options
            assert functools.reduce(getattr, [group, *path], composed) == value, name


def test_default_groups_are_files() -> None:
    assert help.default_groups("search")["budget"] == "edge"
    assert not help.default_groups("compare")
