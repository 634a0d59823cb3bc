import functools

import pytest

from hwnas.cli import help
from hwnas.workflows.config.compose import compose


@pytest.mark.parametrize("verb", ["search", "train"])
def test_values_are_those_that_a_verb_starts_from(verb: str) -> None:
    composed = compose(verb, ["+target=npu"] if verb == "search" else [])
    found = help.values(verb)
    assert found["dataset.name"] == "digits"
    for name, value in found.items():
        group, *path = name.split(".")
        if group == "budget":
            assert composed.budget[path[0]] == value
        elif value not in (None, []):  # what follows from others
            assert functools.reduce(getattr, [group, *path], composed) == value, name


def test_what_is_taken_by_default_is_a_file() -> None:
    assert help.default_groups("search")["budget"] == "edge"
    assert not help.default_groups("compare")
