"""Summary features of untrained networks: size and shape.

How well networks answer that are trained alone is nearly a line in a dozen numbers of this kind,
which ten of them already show; choices have to be learned one by one. Source: Kadlecová et al.,
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
        lower: Returns the operators of a network.
    """
    anatomies = functools.lru_cache(_MAX_CACHED)(lambda genotype: anatomy(lower(genotype)))
    return lambda assignment: anatomies(space.genotype(assignment))


def work(space: Space, lower: Callable[[Genotype], Graph]) -> Work:
    """Return the features of training time: numbers of multiply-accumulates and operators."""

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
    """Return the summary features of a network: logarithms of sizes, and fractions.

    Work, weights and their bits, what is written, and how many pixels are read; how many layers and
    activations there are; how wide layers are, on the mean, at their narrowest and at the end, and
    how much each output reads; how many pixels are left behind the first layer, at the end and on
    the mean of layers that look around; and what part of the work looks around, in all channels and
    in each by itself.
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
