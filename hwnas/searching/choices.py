"""What a sampler chooses among: assignments of options to choices."""

import itertools
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.searching.features import Features

Array = NDArray[np.float64]
Assignment = Mapping[str, Any]


@dataclass(frozen=True)
class Bred:
    """An assignment and the numbers of the trials that it descends from."""

    assignment: Assignment
    ancestors: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Choices:
    """All that can be proposed."""

    options: Mapping[str, Sequence[Any]]
    active: Callable[[Assignment], Assignment]
    features: Features
    root: str = ""  #: the choice that decides which others matter; empty: there is none
    scope: Callable[[Assignment], Sequence[str]] | None = None  #: those that do; default: all

    @property
    def size(self) -> int:
        """The number of assignments."""
        return math.prod(len(options) for options in self.options.values())

    def all(self) -> list[Assignment]:
        """Return all assignments, of those without a difference one."""
        rows = itertools.product(*self.options.values())
        found = (dict(zip(self.options, row, strict=True)) for row in rows)
        return list({self.key(assignment): assignment for assignment in found}.values())

    def key(self, assignment: Assignment) -> Hashable:
        """Return what is equal for equal candidates."""
        return tuple(sorted(self.active(assignment).items()))

    def vectors(self, assignments: Sequence[Assignment]) -> Array:
        """Return the features of assignments, ``(n, d)``."""
        return self.features([self.active(assignment) for assignment in assignments])

    def smallest(self) -> Assignment:
        """Return the assignment of the first option of every choice."""
        return {name: options[0] for name, options in self.options.items()}

    def branches(self) -> list[Any]:
        """Return the options of the root; where there is none, one."""
        return list(self.options[self.root]) if self.root else [None]

    def branch(self, assignment: Assignment) -> Any:
        """Return the option of the root."""
        return assignment[self.root] if self.root else None

    def ends(self) -> list[tuple[Assignment, Assignment]]:
        """Return the assignments of first and of last options, for each option of the root."""
        largest = {name: options[-1] for name, options in self.options.items()}
        if not self.root:
            return [(self.smallest(), largest)]
        return [
            ({**self.smallest(), self.root: option}, {**largest, self.root: option})
            for option in self.branches()
        ]

    def draw(self, rng: random.Random) -> Assignment:
        """Return an assignment with every option drawn evenly."""
        return {name: rng.choice(options) for name, options in self.options.items()}

    def child(self, parents: Sequence[Bred], rng: random.Random) -> Bred:
        """Return a child of one or two parents, some of its choices changed."""
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
                at = options.index(child[name]) + rng.choice((-1, 1))
                child[name] = options[min(max(at, 0), len(options) - 1)]
            else:
                child[name] = rng.choice(options)
        return Bred(child, ancestors)
