import itertools
import random

from hwnas.models.graph import Signature, distinct_ops
from hwnas.models.spaces import Genotype, SearchSpace
from tests.hardware.profiling.fakes import subject


def _all(space: SearchSpace) -> list[Genotype]:
    assignments = itertools.product(*space.choices.values())
    found = (space.genotype(dict(zip(space.choices, a, strict=True))) for a in assignments)
    return list({genotype.id: genotype for genotype in found}.values())


def test_all_operators_of_a_space_are_found(tiny: SearchSpace, task: Signature) -> None:
    profiled = subject(tiny, task)
    every = set(distinct_ops(profiled.lower(genotype) for genotype in _all(tiny)))
    for seed in range(3):
        found = profiled.operators(seed)
        assert set(found) == every
        assert len(found) == len(every)


def test_new_networks_of_a_large_space_have_no_new_operators(
    small: SearchSpace, task: Signature
) -> None:
    profiled = subject(small, task)
    found, rng = set(profiled.operators(0)), random.Random(99)
    new = [small.sample(rng) for _ in range(1000)]
    lacking = [g for g in new if not found.issuperset(node.op for node in profiled.lower(g))]
    assert len(lacking) <= 1  # rare operators: a search says what is missing


def test_sample_holds_different_genotypes_and_is_repeatable(
    tiny: SearchSpace, task: Signature
) -> None:
    profiled = subject(tiny, task)
    found = profiled.sample(100, 0)
    assert len({genotype.id for genotype in found}) == len(found) == 100
    assert profiled.sample(100, 0) == found
    assert profiled.sample(40, 0) == found[:40]
    assert profiled.sample(100, 1) != found


def test_small_space_gives_all_it_has(tiny: SearchSpace, task: Signature) -> None:
    n = tiny.n_genotypes()
    assert len(subject(tiny, task).sample(2 * n, 0)) == n == len(_all(tiny))
