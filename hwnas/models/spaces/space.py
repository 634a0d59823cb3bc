"""Search spaces and genotypes: which networks can be built, as data."""

import hashlib
import json
import random
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from hwnas.core.errors import SpaceError

Option = int | float | str

#: For keys of choices, the options that others must have for these choices to count.
When = Mapping[str, Mapping[str, tuple[Option, ...]]]

#: Names of what is said of one block.
BLOCK = re.compile(r"(?P<stage>.+)\.blocks\.(?P<index>\d+)\..+")


@dataclass(frozen=True)
class Genotype:
    """One network of a space: an option for each choice that is active in it."""

    space: str
    options: tuple[tuple[str, Option], ...]

    @cached_property
    def id(self) -> str:
        """Twelve hex digits; equal for equal networks of a space."""
        return hashlib.sha256(json.dumps([self.space, self.options]).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Option]:
        """Return the options by choice."""
        return dict(self.options)


class Space(Protocol):
    """What is searched: one ``SearchSpace``, or a ``Union`` of several.

    An assignment names choices as the search does; a genotype, as its own space does.
    """

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def digest(self) -> str:
        """Digest of what it means."""
        ...

    @property
    def choices(self) -> Mapping[str, tuple[Option, ...]]:
        """Choices with their options, smallest first."""
        ...

    @property
    def members(self) -> tuple["SearchSpace", ...]:
        """The spaces that genotypes are of; at least one."""
        ...

    @property
    def root(self) -> str:
        """The choice that says of which member a genotype is; empty where there is one only."""
        ...

    def member(self, genotype: Genotype) -> "SearchSpace":
        """Return the space of a genotype."""
        ...

    def genotype(self, assignment: Mapping[str, Option]) -> Genotype:
        """Return the genotype of an assignment, which may hold inactive choices."""
        ...

    def assignment(self, genotype: Genotype) -> dict[str, Option]:
        """Return the options of a genotype's active choices, by choice of the search."""
        ...

    def scope(self, assignment: Mapping[str, Option]) -> Sequence[str]:
        """Return the choices that may matter: all but those of other members."""
        ...

    def values(self, genotype: Genotype) -> dict[str, Option]:
        """Return the chosen and the fixed values of a genotype, as its own space names them."""
        ...

    def sample(self, rng: random.Random) -> Genotype:
        """Return a genotype with every option drawn evenly."""
        ...

    def smallest(self) -> Genotype:
        """Return the genotype of the first option of every choice."""
        ...

    def largest(self) -> Genotype:
        """Return the genotype of the last option of every choice."""
        ...

    def n_genotypes(self) -> int:
        """Return the number of different genotypes."""
        ...

    def optional(self) -> tuple[str, ...]:
        """Return the choices that are not active in every genotype."""
        ...


@dataclass(frozen=True)
class SearchSpace:
    """Choices with their options, smallest first, and values that are fixed.

    A choice ``<stage>.blocks.<i>.<...>`` is active where ``<stage>.depth`` is above ``i``, and one
    of a key in ``when`` where what is closest to it is as said there: by ``{"expansion": {"kind":
    ("inverted", "fused")}}`` a choice ``<place>.expansion`` is, where the ``kind`` of the place is
    one of these. A genotype holds active choices only, so that one network has one id.
    """

    name: str
    family: str
    choices: Mapping[str, tuple[Option, ...]]
    fixed: Mapping[str, Option]
    when: When = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of what the space means (not of its comments)."""
        meaning: list[Any] = [self.name, self.family, dict(self.choices), dict(self.fixed)]
        if self.when:  # spaces without keep the digest that they had before there was any
            meaning.append({key: dict(needs) for key, needs in self.when.items()})
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def members(self) -> tuple["SearchSpace", ...]:
        """The space itself."""
        return (self,)

    @property
    def root(self) -> str:
        """Empty: genotypes are of one space."""
        return ""

    def member(self, genotype: Genotype) -> "SearchSpace":
        """Return the space itself."""
        return self

    def assignment(self, genotype: Genotype) -> dict[str, Option]:
        """Return the options of a genotype by choice."""
        return genotype.to_dict()

    def scope(self, assignment: Mapping[str, Option]) -> Sequence[str]:
        """Return all choices."""
        return tuple(self.choices)

    def options(self, name: str) -> tuple[Option, ...]:
        """Return what ``name`` can be, whether it is a choice or fixed."""
        return self.choices[name] if name in self.choices else (self.fixed[name],)

    def genotype(self, assignment: Mapping[str, Option]) -> Genotype:
        """Return the genotype of an assignment, which may hold inactive choices.

        Raises:
            SpaceError: a choice is missing or has an option that the space does not offer.
        """
        active = []
        for name, options in self.choices.items():
            if not self._is_active(name, assignment):
                continue
            if assignment.get(name) not in options:
                raise SpaceError(
                    f"Space '{self.name}': choice '{name}' is {assignment.get(name)!r}; "
                    f"allowed: {', '.join(map(str, options))}."
                )
            # The option itself: what equals it, 8.0 for 8, would give the network another id.
            active.append((name, options[options.index(assignment[name])]))
        return Genotype(self.name, tuple(sorted(active)))

    def values(self, genotype: Genotype) -> dict[str, Option]:
        """Return the chosen and the fixed values of a genotype."""
        return {**self.fixed, **genotype.to_dict()}

    def sample(self, rng: random.Random) -> Genotype:
        """Return a genotype with every option drawn evenly."""
        return self.genotype({name: rng.choice(opts) for name, opts in self.choices.items()})

    def smallest(self) -> Genotype:
        """Return the genotype of the first option of every choice."""
        return self.genotype({name: options[0] for name, options in self.choices.items()})

    def largest(self) -> Genotype:
        """Return the genotype of the last option of every choice."""
        return self.genotype({name: options[-1] for name, options in self.choices.items()})

    def n_genotypes(self) -> int:
        """Return the number of different genotypes."""
        return self._count(self.choices, {})

    def optional(self) -> tuple[str, ...]:
        """Return the choices that are not active in every genotype."""
        return tuple(
            name
            for name in self.choices
            if any(not allowed.issuperset(self.options(n)) for n, allowed in self._needs[name])
        )

    @cached_property
    def _needs(self) -> Mapping[str, tuple[tuple[str, frozenset[Option]], ...]]:
        """For each choice, the names on which it depends, and the values that activate it."""
        return {name: tuple(self._needed(name)) for name in self.choices}

    def _needed(self, name: str) -> Iterable[tuple[str, frozenset[Option]]]:
        if match := BLOCK.fullmatch(name):
            depth = f"{match['stage']}.depth"
            deep = (n for n in self.options(depth) if int(n) > int(match["index"]))
            yield depth, frozenset(deep)
        place, _, key = name.rpartition(".")
        for other, allowed in self.when.get(key, {}).items():
            found = closest({*self.choices, *self.fixed}, place, other)
            if found is not None:  # a stem's kernel does not depend on the kind of blocks
                yield found, frozenset(allowed)

    def _is_active(self, name: str, assignment: Mapping[str, Option]) -> bool:
        return all(
            (assignment.get(n) if n in self.choices else self.fixed[n]) in allowed
            for n, allowed in self._needs[name]
        )

    def _count(self, names: Iterable[str], known: Mapping[str, Option]) -> int:
        """Return in how many ways choices can be made, where some others have been made."""
        undecided: dict[str, set[str]] = {}
        for name in names:
            needs = [(n, ok) for n, ok in self._needs[name] if n in known or n in self.fixed]
            if all((known[n] if n in known else self.fixed[n]) in ok for n, ok in needs):
                undecided[name] = {n for n, _ in self._needs[name]} - {n for n, _ in needs}
        total = 1
        for group in _connected(undecided):
            # What others depend on, and itself on nothing; without others, any.
            asked = {n for name in group for n in undecided[name]}
            root = next((n for n in group if n in asked and not undecided[n]), group[0])
            rest = [name for name in group if name != root]
            options = self.choices[root]
            total *= (
                sum(self._count(rest, {**known, root: option}) for option in options)
                if rest
                else len(options)
            )
        return total


def closest(names: Container[str], place: str, key: str) -> str | None:
    """Return the name that says ``key`` for a block: its own, its stage's or the space's."""
    stage = place.partition(".blocks.")[0]
    return next((n for n in (f"{place}.{key}", f"{stage}.{key}", key) if n in names), None)


def _connected(needs: Mapping[str, set[str]]) -> list[list[str]]:
    """Return names in groups that do not depend on each other."""
    groups: list[set[str]] = []
    for name, others in needs.items():
        touched = [group for group in groups if group & {name, *others}]
        groups = [group for group in groups if group not in touched]
        groups.append({name, *others}.union(*touched))
    return [[name for name in needs if name in group] for group in groups]
