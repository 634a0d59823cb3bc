import random

import pytest

from hwnas.models.spaces import SearchSpace
from hwnas.training.sandwich import admitted, sample_sandwich

KINDS = {"resolution": -1, "kernel": 1, "depth": 2, "width": 3, "expansion": 3}


def test_all_options_are_admitted_without_schedule(small: SearchSpace) -> None:
    assert admitted(small, 0.0, 0.0) is small
    assert admitted(small, 0.5, 0.5) is small


def test_options_open_in_order_kernel_depth_width(small: SearchSpace) -> None:
    for part in range(4):
        space = admitted(small, 0.5 * (part + 0.99) / 4, 0.5)
        for name, options in small.choices.items():
            opened = KINDS[name.rpartition(".")[2]] <= part
            assert space.choices[name] == (options if opened else options[-1:]), name
        assert space.largest() == small.largest()


def test_options_are_admitted_in_descending_order(small: SearchSpace) -> None:
    name = "stages.0.blocks.0.kernel"
    admitted_options = [admitted(small, p / 1000, 1.0).choices[name] for p in range(1000)]
    assert list(dict.fromkeys(admitted_options)) == [(7,), (5, 7), (3, 5, 7)]
    assert [admitted_options.count(options) for options in dict.fromkeys(admitted_options)] == [
        250,
        125,
        625,
    ]
    assert all(
        a[-len(b) :] == b for a, b in zip(admitted_options[1:], admitted_options[:-1], strict=True)
    )


@pytest.mark.parametrize("progress", [0.0, 0.3, 0.6, 0.9])
def test_sandwich_samples_admitted_options(tiny: SearchSpace, progress: float) -> None:
    space = admitted(tiny, progress, 1.0)
    for genotype in sample_sandwich(space, 20, random.Random(0)):
        for name, option in genotype.options:
            assert option in space.choices[name]


def test_sandwich_has_no_duplicate_of_largest(tiny: SearchSpace) -> None:
    drawn = sample_sandwich(admitted(tiny, 0.0, 1.0), 2, random.Random(0))
    assert drawn[0] == tiny.largest()
    assert {g.to_dict()["resolution"] for g in drawn} == {8, 12}
    assert len(drawn) == 2  # all resolutions are admitted from the start
