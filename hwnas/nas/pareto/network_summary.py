"""Summary features of untrained networks: size and shape.

The accuracy of separately trained networks is nearly linear in about a dozen numbers of this kind,
so that few networks suffice for a model; effects of choices have to be learned one by one. Source:
Kadlecová et al.,
"Surprisingly strong performance prediction with neural graph features", ICML 2024,
https://arxiv.org/abs/2404.16551.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from hwnas.models.graph import Graph, OpSpec, n_macs, n_params
from hwnas.models.spaces import Genotype, Option, Space
from hwnas.nas.pareto.features import Assignment, FeatureFunction
from hwnas.nas.pareto.models import Work

_MAX_CACHED = 100_000  # genotypes


def summary(space: Space, lower: Callable[[Genotype], Graph]) -> FeatureFunction:
    """Return a function from assignments to summary features of their networks.

    Args:
        space: Search space of the assignments.
        lower: Returns the graph of a network.
    """
    anatomies = functools.lru_cache(_MAX_CACHED)(lambda genotype: anatomy(lower(genotype)))
    return lambda assignment: anatomies(space.genotype(assignment))


def work(space: Space, lower: Callable[[Genotype], Graph]) -> Work:
    """Return a function from assignments to features of training time, ``(n, 2)``.

    These are the numbers of multiply-accumulates and of operators.
    """

    @functools.lru_cache(_MAX_CACHED)
    def row(genotype: Genotype) -> tuple[int, int]:
        lowered = lower(genotype)
        return n_macs(lowered), len(lowered)

    @functools.lru_cache(_MAX_CACHED)
    def genotype(options: tuple[Option | None, ...]) -> Genotype:
        named = zip(space.choices, options, strict=True)
        return space.genotype({name: option for name, option in named if option is not None})

    def rows(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        options = (tuple(map(assignment.get, space.choices)) for assignment in assignments)
        return np.array([row(genotype(o)) for o in options], np.float64).reshape(-1, 2)

    return rows


def anatomy(lowered: Graph) -> tuple[float, ...]:
    """Return the 17 summary features of a network.

    All but the last two are logarithms or means of logarithms: multiply-accumulates, weights, bits
    of weights, output values, input height; numbers of layers, of spatial layers (kernels larger
    than 1; without any, all but the last layer) and of activations; mean and minimum width, input
    width of the last layer, inputs per output value; output heights of the first layer, the last
    hidden layer and of spatial layers. The last two are the fractions of multiply-accumulates in
    dense and in depthwise spatial layers.
    """
    ops = [node.op for node in lowered]
    layers = [op for op in ops if op.weight_shape]
    hidden = layers[:-1] or layers
    around = [op for op in layers if op.kernel > 1] or hidden
    work = max(1, n_macs(lowered))
    return (
        math.log(work),
        math.log(max(1, n_params(lowered))),
        fmean(math.log(node.weight_bits) for node in lowered if node.op.weight_shape),
        math.log(sum(math.prod(op.out_shape) for op in layers)),
        math.log(ops[0].in_shape[1]),
        math.log(len(layers)),
        math.log(len(around)),
        math.log(1 + sum(bool(op.activation) for op in ops)),
        _mean(op.out_shape[0] for op in hidden),
        math.log(min(op.out_shape[0] for op in hidden)),
        math.log(layers[-1].in_shape[0]),
        _mean(math.prod(op.weight_shape[1:]) for op in layers),
        math.log(layers[0].out_shape[1]),
        math.log(hidden[-1].out_shape[1]),
        _mean(op.out_shape[1] for op in around),
        _part(around, work, depthwise=False),
        _part(around, work, depthwise=True),
    )


def _mean(values: Iterable[int]) -> float:
    return fmean(map(math.log, values))


def _part(around: Iterable[OpSpec], work: int, *, depthwise: bool) -> float:
    return sum(op.n_macs for op in around if op.depthwise == depthwise) / work
