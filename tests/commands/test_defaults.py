import functools

import pytest

from hwnas.api.composition import compose
from hwnas.commands import defaults


@pytest.mark.parametrize("verb", ["search", "train"])
def test_values_are_those_that_a_verb_starts_from(verb: str) -> None:
    composed = compose(verb, ["+target=npu"] if verb == "search" else [])
    found = defaults.values(verb)
    assert found["dataset.name"] == "digits"
    for name, value in found.items():
        group, *path = name.split(".")
        if group == "budget":
            assert composed.budget[path[0]] == value
        elif value not in (None, []):  # what follows from others
            assert functools.reduce(getattr, [group, *path], composed) == value, name


def test_what_is_taken_by_default_is_a_file() -> None:
    assert defaults.chosen("search")["budget"] == "edge"
    assert not defaults.chosen("compare")
