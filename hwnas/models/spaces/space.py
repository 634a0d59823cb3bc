"""Search spaces and genotypes.

A choice is a name with several options, such as ``stages.0.depth`` with 1, 2 and 3. Some choices
are active only for some options of others: those of the third block only at a depth of 3.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from hwnas.core.errors import SpaceError

Option = int | float | str

#: Conditions: by key of a choice, the options that other keys must have for it to be active.
When = Mapping[str, Mapping[str, tuple[Option, ...]]]

#: Names of options of one block.
BLOCK = re.compile(r"(?P<stage>.+)\.blocks\.(?P<index>\d+)\..+")


@dataclass(frozen=True)
class Genotype:
    """One network of a space: an option for each active choice."""

    space: str  #: name of the space
    options: tuple[tuple[str, Option], ...]  #: ``(choice, option)``, sorted by choice

    @cached_property
    def id(self) -> str:
        """Identifier of 12 hexadecimal digits; equal for equal networks of a space."""
        return hashlib.sha256(json.dumps([self.space, self.options]).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Option]:
        """Return the options by choice."""
        return dict(self.options)


class Space(Protocol):
    """A ``SearchSpace``, or a ``SpaceUnion`` of several.

    An assignment has the choice names of the search; a genotype, those of its own space.
    """

    @property
    def name(self) -> str:
        """Name of the space."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the content, the first 16 hexadecimal digits."""
        ...

    @property
    def choices(self) -> Mapping[str, tuple[Option, ...]]:
        """Options of each choice by name; the first is the smallest network's."""
        ...

    @property
    def members(self) -> tuple["SearchSpace", ...]:
        """The spaces of the union; a ``SearchSpace`` has itself."""
        ...

    @property
    def root(self) -> str:
        """Name of the choice between the members; empty for a ``SearchSpace``."""
        ...

    def member(self, genotype: Genotype) -> "SearchSpace":
        """Return the member that a genotype belongs to."""
        ...

    def genotype(self, assignment: Mapping[str, Option]) -> Genotype:
        """Return the genotype of an assignment, which may hold inactive choices.

        Raises:
            SpaceError: if a choice is missing or has an unknown option.
        """
        ...

    def assignment(self, genotype: Genotype) -> dict[str, Option]:
        """Return the options of a genotype's active choices, by choice of the search."""
        ...

    def scope(self, assignment: Mapping[str, Option]) -> Sequence[str]:
        """Return the names of ``root``, if any, and of the choices of the chosen member."""
        ...

    def values(self, genotype: Genotype) -> dict[str, Option]:
        """Return the chosen and the fixed values of a genotype, as its own space names them."""
        ...

    def sample(self, rng: random.Random) -> Genotype:
        """Return a random genotype: each option of a choice is equally likely."""
        ...

    def smallest(self) -> Genotype:
        """Return the genotype with the first option of every choice (of the first member)."""
        ...

    def largest(self) -> Genotype:
        """Return the genotype with the last option of every choice (of the last member)."""
        ...

    def n_genotypes(self) -> int:
        """Return the number of different genotypes."""
        ...

    def optional(self) -> tuple[str, ...]:
        """Return the names of the choices that are not active in every genotype."""
        ...


@dataclass(frozen=True)
class SearchSpace:
    """Choices with their options, those of the smallest network first, and fixed values.

    A choice ``<stage>.blocks.<i>.<...>`` is active if ``<stage>.depth`` is above ``i``. A choice
    with a key in ``when`` is active under that condition: with ``{"expansion": {"kind":
    ("inverted", "fused")}}``, ``<place>.expansion`` is active if the closest ``kind`` is one of
    these. A genotype has active choices only, so that a network has one id.
    """

    name: str  #: name of the space, which ids of its genotypes depend on
    family: str  #: name of the family
    choices: Mapping[str, tuple[Option, ...]]  #: options by choice
    fixed: Mapping[str, Option]  #: values that all networks share, by name
    when: When = field(default_factory=dict)  #: conditions by key

    @property
    def digest(self) -> str:
        """SHA-256 of the content, the first 16 hexadecimal digits."""
        content: list[Any] = [self.name, self.family, dict(self.choices), dict(self.fixed)]
        if self.when:
            content.append({key: dict(needs) for key, needs in self.when.items()})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all choices and fixed values."""
        return (*self.choices, *self.fixed)

    def without(self, is_removed: Callable[[str], bool], keys: Collection[str]) -> "SearchSpace":
        """Return the space without the choices and fixed values whose names ``is_removed`` accepts.

        Entries of ``when`` with one of ``keys`` are removed, too.
        """
        return replace(
            self,
            choices={n: options for n, options in self.choices.items() if not is_removed(n)},
            fixed={n: value for n, value in self.fixed.items() if not is_removed(n)},
            when={key: needs for key, needs in self.when.items() if key not in keys},
        )

    @property
    def members(self) -> tuple["SearchSpace", ...]:
        """The space itself."""
        return (self,)

    @property
    def root(self) -> str:
        """Empty: there is no choice between spaces."""
        return ""

    def member(self, genotype: Genotype) -> "SearchSpace":
        """Return the space itself."""
        return self

    def assignment(self, genotype: Genotype) -> dict[str, Option]:
        """Return the options of a genotype by choice."""
        return genotype.to_dict()

    def scope(self, assignment: Mapping[str, Option]) -> Sequence[str]:
        """Return the names of all choices."""
        return tuple(self.choices)

    def options(self, name: str) -> tuple[Option, ...]:
        """Return the options of a choice, or a fixed value as the only option.

        Raises:
            KeyError: there is no such name.
        """
        return self.choices[name] if name in self.choices else (self.fixed[name],)

    def genotype(self, assignment: Mapping[str, Option]) -> Genotype:
        """Return the genotype of an assignment, which may have inactive choices.

        Raises:
            SpaceError: if a choice is missing or has an unknown option.
        """
        active = []
        for name, options in self.choices.items():
            if not self._is_active(name, assignment):
                continue
            if (value := assignment.get(name)) not in options:
                problem = "is missing" if value is None else f"is {value!r}"
                raise SpaceError(
                    f"Space '{self.name}': choice '{name}' {problem}; "
                    f"allowed: {', '.join(map(str, options))}."
                )
            # The option itself, as an equal value (8.0 for 8) would change the id.
            active.append((name, options[options.index(assignment[name])]))
        return Genotype(self.name, tuple(sorted(active)))

    def values(self, genotype: Genotype) -> dict[str, Option]:
        """Return the chosen and the fixed values of a genotype by name."""
        return {**self.fixed, **genotype.to_dict()}

    def sample(self, rng: random.Random) -> Genotype:
        """Return a random genotype: each option of a choice is equally likely."""
        return self.genotype({name: rng.choice(opts) for name, opts in self.choices.items()})

    def smallest(self) -> Genotype:
        """Return the genotype with the first option of every choice."""
        return self.genotype({name: options[0] for name, options in self.choices.items()})

    def largest(self) -> Genotype:
        """Return the genotype with the last option of every choice."""
        return self.genotype({name: options[-1] for name, options in self.choices.items()})

    def n_genotypes(self) -> int:
        """Return the number of different genotypes."""
        return self._count(self.choices, {})

    def optional(self) -> tuple[str, ...]:
        """Return the names of the choices that are not active in every genotype."""
        return tuple(
            name
            for name in self.choices
            if any(not allowed.issuperset(self.options(n)) for n, allowed in self._needs[name])
        )

    @cached_property
    def _needs(self) -> Mapping[str, tuple[tuple[str, frozenset[Option]], ...]]:
        """For each choice, the names that it depends on and the values that activate it."""
        return {name: tuple(self._conditions(name)) for name in self.choices}

    def _conditions(self, name: str) -> Iterable[tuple[str, frozenset[Option]]]:
        if match := BLOCK.fullmatch(name):
            depth = f"{match['stage']}.depth"
            deep = (n for n in self.options(depth) if int(n) > int(match["index"]))
            yield depth, frozenset(deep)
        place, _, key = name.rpartition(".")
        for other, allowed in self.when.get(key, {}).items():
            source = closest({*self.names}, place, other)
            if source is not None:  # a stem's kernel does not depend on the kind of blocks
                yield source, frozenset(allowed)

    def _is_active(self, name: str, assignment: Mapping[str, Option]) -> bool:
        return all(
            (assignment.get(n) if n in self.choices else self.fixed[n]) in allowed
            for n, allowed in self._needs[name]
        )

    def _count(self, names: Iterable[str], known: Mapping[str, Option]) -> int:
        """Return the number of assignments of choices, given the options of some others."""
        undecided: dict[str, set[str]] = {}
        for name in names:
            needs = [(n, ok) for n, ok in self._needs[name] if n in known or n in self.fixed]
            if all((known[n] if n in known else self.fixed[n]) in ok for n, ok in needs):
                undecided[name] = {n for n, _ in self._needs[name]} - {n for n, _ in needs}
        total = 1
        for group in _connected_groups(undecided):
            # A choice that others depend on and that depends on nothing; if there is none, any.
            required = {n for name in group for n in undecided[name]}
            root = next((n for n in group if n in required and not undecided[n]), group[0])
            rest = [name for name in group if name != root]
            options = self.choices[root]
            total *= (
                sum(self._count(rest, {**known, root: option}) for option in options)
                if rest
                else len(options)
            )
        return total


def closest(names: Container[str], place: str, key: str) -> str | None:
    """Return the first of ``PLACE.KEY``, ``STAGE.KEY`` and ``KEY`` that is in ``names``.

    ``place`` is a block, such as ``stages.0.blocks.1``, or a layer; ``None`` if there is no name.
    """
    stage = place.partition(".blocks.")[0]
    for name in (f"{place}.{key}", f"{stage}.{key}", key):
        if name in names:
            return name
    return None


def _connected_groups(needs: Mapping[str, set[str]]) -> list[list[str]]:
    """Return groups of names that do not depend on each other."""
    groups: list[set[str]] = []
    for name, others in needs.items():
        touched = [group for group in groups if group & {name, *others}]
        groups = [group for group in groups if group not in touched]
        groups.append({name, *others}.union(*touched))
    return [[name for name in needs if name in group] for group in groups]
