"""Features of choices for surrogate models, and the space of proposals."""

import functools
import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.models.graph import Graph, OpSpec, n_macs, n_params
from hwnas.models.spaces import Genotype, Option, Space

Array = NDArray[np.float64]
#: Maps an assignment to summary features; the first grows with the network's size.
FeatureFunction = Callable[[Mapping[str, Any]], Sequence[float]]

_DRAWN, _SEED = 200, 0  # random assignments for the scaling of summary features
_MAX_CACHED = 100_000  # candidates, or genotypes
_WHOLE = 4.0  # standard deviations of a summary feature, scaled to the range of a choice


@final
class ChoiceFeatures:
    """Maps assignments of options to vectors.

    A choice of numbers is one feature, scaled to [0, 1]; any other has one for each option. Choices
    with equal options form a group with the frequency of each option (or the mean of numbers) as
    features: with few data, frequencies predict better than positions. An inactive choice is
    missing in an assignment: its features are 0, or 0.5 with an indicator for numbers. A choice of
    one option has no feature.

    Args:
        choices: Options by name.
        optional: Choices that may be absent.
        summary: Returns further numbers about an assignment; each is a feature, scaled by four
            standard deviations over random assignments.
    """

    def __init__(
        self,
        choices: Mapping[str, Sequence[Hashable]],
        optional: Sequence[str] = (),
        summary: FeatureFunction | None = None,
    ):
        self._columns: list[tuple[str, Mapping[Hashable, tuple[float, ...]], int]] = []
        groups: dict[tuple[Hashable, ...], list[str]] = {}
        for name, options in choices.items():
            if len(options) > 1:
                vectors = _vectors(options, name in optional)
                self._columns.append((name, vectors, len(next(iter(vectors.values())))))
                groups.setdefault(tuple(options), []).append(name)
        self._groups = [
            (names, _vectors(options, absent=False))
            for options, names in groups.items()
            if len(names) > 1
        ]

        self._summary, self._low, self._range = summary, np.zeros(0), np.zeros(0)
        if summary is not None:
            rng = random.Random(_SEED)
            draws = (
                {n: rng.choice(options) for n, options in choices.items()} for _ in range(_DRAWN)
            )
            rows = np.array([summary(draw) for draw in draws])
            spread = _WHOLE * rows.std(axis=0)
            self._range = np.where(spread > 1e-9, spread, 1.0)
            self._low = rows.mean(axis=0) - self._range / 2

    @property
    def n_shares(self) -> int:
        """Number of the last features that are frequencies, means or results of ``summary``."""
        n_of_groups = sum(len(next(iter(vectors.values()))) for _, vectors in self._groups)
        return n_of_groups + self.n_known

    @property
    def n_known(self) -> int:
        """Number of the last features that ``summary`` returns; the first of these is the size."""
        return len(self._low)

    def __call__(self, assignments: Sequence[Mapping[str, Hashable]]) -> Array:
        """Return the features of assignments, ``(n, d)``."""
        return np.array([self.row(assignment) for assignment in assignments])

    def row(self, assignment: Mapping[str, Hashable]) -> list[float]:
        """Return the features of one assignment, ``d`` numbers."""
        row: list[float] = []
        for name, vectors, _ in self._columns:
            row.extend(vectors[assignment.get(name)])
        for names, vectors in self._groups:
            active = [vectors[assignment[name]] for name in names if name in assignment]
            width = len(next(iter(vectors.values())))
            row.extend(sum(column) / len(active) for column in zip(*active, strict=True))
            row.extend([0.0] * (width * (not active)))
        if self._summary is not None:
            row.extend((np.asarray(self._summary(assignment)) - self._low) / self._range)
        return row


def _vectors(options: Sequence[Hashable], absent: bool) -> dict[Hashable, tuple[float, ...]]:
    """Return the features of each option, and of ``None`` if a choice may be absent."""
    if all(isinstance(o, (int, float)) and not isinstance(o, bool) for o in options):
        low, high = min(options), max(options)  # type: ignore[type-var]
        scaled = [float((o - low) / (high - low)) for o in options]  # type: ignore[operator]
        end = (0.0,) if absent else ()
        numbers = {o: (v, *end) for o, v in zip(options, scaled, strict=True)}
        return {**numbers, None: (0.5, 1.0)} if absent else {**numbers}
    # Half of the squared distance of one-hot vectors: two options have the distance of 0 and 1.
    eye = np.eye(len(options)) / math.sqrt(2)
    vectors: dict[Hashable, tuple[float, ...]] = {
        o: tuple(row.tolist()) for o, row in zip(options, eye, strict=True)
    }
    return vectors | {None: (0.0,) * len(options)} if absent else vectors


# The space of proposals: assignments of options to choices.

Assignment = Mapping[str, Any]
#: Maps assignments to non-negative features that trial time is linear in, ``(n, k)``.
Work = Callable[[Sequence[Assignment]], Array]


@dataclass(frozen=True)
class Offspring:
    """An assignment and the numbers of its parent trials."""

    assignment: Assignment
    ancestors: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ProposalSpace:
    """The space of all proposals."""

    options: Mapping[str, Sequence[Any]]  #: options of each choice, by name
    active: Callable[[Assignment], Assignment]  #: returns the part that has an effect
    features: ChoiceFeatures
    root: str = ""  #: the choice that determines the effective choices; empty: none
    #: returns the choices that may have an effect in an assignment; default: all
    scope: Callable[[Assignment], Sequence[str]] | None = None

    @property
    def size(self) -> int:
        """Number of assignments, including those that are the same candidate."""
        return math.prod(len(options) for options in self.options.values())

    def all(self) -> list[Assignment]:
        """Return one assignment for each distinct candidate."""
        rows = itertools.product(*self.options.values())
        assignments = (dict(zip(self.options, row, strict=True)) for row in rows)
        return list({self.key(assignment): assignment for assignment in assignments}.values())

    def key(self, assignment: Assignment) -> Hashable:
        """Return a key that is equal for equal candidates."""
        return self._key(self._values(assignment))

    def vectors(self, assignments: Sequence[Assignment]) -> Array:
        """Return the features of the active parts of assignments, ``(n, d)``."""
        return np.array([self._row(self._values(assignment)) for assignment in assignments])

    def _values(self, assignment: Assignment) -> tuple[Any, ...]:
        return tuple(map(assignment.__getitem__, self.options))

    def _active_part(self, values: tuple[Any, ...]) -> Assignment:
        return self.active(dict(zip(self.options, values, strict=True)))

    # Candidates are compared again in later proposals, and much of the time was spent here.
    @cached_property
    def _key(self) -> Callable[[tuple[Any, ...]], Hashable]:
        return lru_cache(_MAX_CACHED)(
            lambda values: tuple(sorted(self._active_part(values).items()))
        )

    @cached_property
    def _row(self) -> Callable[[tuple[Any, ...]], Sequence[float]]:
        return lru_cache(_MAX_CACHED)(lambda values: self.features.row(self._active_part(values)))

    def smallest(self) -> Assignment:
        """Return the assignment of the first option of every choice."""
        return {name: options[0] for name, options in self.options.items()}

    def branches(self) -> list[Any]:
        """Return the options of the root choice; ``[None]`` without a root."""
        return list(self.options[self.root]) if self.root else [None]

    def branch(self, assignment: Assignment) -> Any:
        """Return the option of the root in an assignment; ``None`` without a root."""
        return assignment[self.root] if self.root else None

    def ends(self) -> list[tuple[Assignment, Assignment]]:
        """Return the assignments of first and of last options, per option of the root, if any."""
        largest = {name: options[-1] for name, options in self.options.items()}
        if not self.root:
            return [(self.smallest(), largest)]
        return [
            ({**self.smallest(), self.root: option}, {**largest, self.root: option})
            for option in self.branches()
        ]

    def draw(self, rng: random.Random) -> Assignment:
        """Return a random assignment, with uniform probabilities of options."""
        return {name: rng.choice(options) for name, options in self.options.items()}

    def child(self, parents: Sequence[Offspring], rng: random.Random) -> Offspring:
        """Return a child of one or two random parents; one to three of its choices may mutate."""
        a, b = rng.choice(parents), rng.choice(parents)
        names = list(self.options)
        child = {name: a.assignment[name] for name in names}
        ancestors = a.ancestors
        if rng.random() < 0.5:
            child |= {name: b.assignment[name] for name in names if rng.random() < 0.5}
            ancestors |= b.ancestors
        names = names if self.scope is None else list(self.scope(child))
        for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2, 3)))):
            options = self.options[name]
            if all(isinstance(option, (int, float)) for option in options):
                index = options.index(child[name]) + rng.choice((-1, 1))
                child[name] = options[min(max(index, 0), len(options) - 1)]
            else:
                child[name] = rng.choice(options)
        return Offspring(child, ancestors)


# Summary features of untrained networks: size and shape.
#
# The accuracy of separately trained networks is nearly linear in about a dozen numbers of this
# kind, so that few networks suffice for a model; effects of choices have to be learned one by one.
# Source: Kadlecová et al., "Surprisingly strong performance prediction with neural graph features",
# ICML 2024, https://arxiv.org/abs/2404.16551.


def summary_features(space: Space, lower: Callable[[Genotype], Graph]) -> FeatureFunction:
    """Return a function from assignments to summary features of their networks.

    Args:
        space: Search space of the assignments.
        lower: Returns the graph of a network.
    """
    anatomies = functools.lru_cache(_MAX_CACHED)(lambda genotype: anatomy(lower(genotype)))
    return lambda assignment: anatomies(space.genotype(assignment))


def work_features(space: Space, lower: Callable[[Genotype], Graph]) -> Work:
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
