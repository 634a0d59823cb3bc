import itertools
import random

from hwnas.models.graph import Signature, distinct_ops
from hwnas.models.spaces import Genotype, SearchSpace
from tests.hardware.profiling.fakes import subject


def _all(space: SearchSpace) -> list[Genotype]:
    assignments = itertools.product(*space.choices.values())
    results = (space.genotype(dict(zip(space.choices, a, strict=True))) for a in assignments)
    return list({genotype.id: genotype for genotype in results}.values())


def test_all_operators_of_space_are_found(tiny: SearchSpace, task: Signature) -> None:
    profiled = subject(tiny, task)
    every = set(distinct_ops(profiled.lower(genotype) for genotype in _all(tiny)))
    for seed in range(3):
        results = profiled.operators(seed)
        assert set(results) == every
        assert len(results) == len(every)


def test_new_networks_of_a_large_space_have_no_new_operators(
    small: SearchSpace, task: Signature
) -> None:
    profiled = subject(small, task)
    result, rng = set(profiled.operators(0)), random.Random(99)
    new = [small.sample(rng) for _ in range(1000)]
    lacking = [g for g in new if not result.issuperset(node.op for node in profiled.lower(g))]
    assert len(lacking) <= 1  # rare operators: a search reports missing ones


def test_sample_is_distinct_and_deterministic(tiny: SearchSpace, task: Signature) -> None:
    profiled = subject(tiny, task)
    results = profiled.sample(100, 0)
    assert len({genotype.id for genotype in results}) == len(results) == 100
    assert profiled.sample(100, 0) == results
    assert profiled.sample(40, 0) == results[:40]
    assert profiled.sample(100, 1) != results


def test_sample_of_small_space_is_complete(tiny: SearchSpace, task: Signature) -> None:
    n = tiny.n_genotypes()
    assert len(subject(tiny, task).sample(2 * n, 0)) == n == len(_all(tiny))
