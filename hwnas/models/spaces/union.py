"""Several search spaces in one search: a choice of the space, and the choices of each."""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from hwnas.core import package
from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.spaces import Genotype, Option, SearchSpace, Space

#: The choice of the space.
ROOT = "space"


@final
@dataclass(frozen=True)
class SpaceUnion:
    """Several spaces as one. Its genotypes are those of its members, with the ids they have there.

    The choices of a member are called ``<member>.<choice>`` and are active where the choice
    ``space`` is that member.

    Raises:
        SpaceError: two members, or two choices, have the same name.
    """

    members: tuple[SearchSpace, ...]

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        for name in names:
            if names.count(name) > 1:
                raise SpaceError(f"Two search spaces are called '{name}'; name each once.")
        if len(self.choices) < 1 + sum(len(member.choices) for member in self.members):
            raise SpaceError(f"Choices of {', '.join(names)} have the same name; rename a space.")

    @property
    def name(self) -> str:
        """The names of the members, joined by ``+``."""
        return "+".join(member.name for member in self.members)

    @property
    def digest(self) -> str:
        """Digest of what the members mean, in their order."""
        meaning = [member.digest for member in self.members]
        return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:16]

    @property
    def root(self) -> str:
        """The choice that says of which member a genotype is."""
        return ROOT

    @cached_property
    def choices(self) -> Mapping[str, tuple[Option, ...]]:
        """The choice of the space, then those of each member."""
        own = {
            f"{member.name}.{name}": options
            for member in self.members
            for name, options in member.choices.items()
        }
        return {ROOT: tuple(member.name for member in self.members), **own}

    @property
    def fixed(self) -> Mapping[str, Option]:
        """What is fixed in each member."""
        return {f"{m.name}.{name}": value for m in self.members for name, value in m.fixed.items()}

    @cached_property
    def _by_name(self) -> dict[str, SearchSpace]:
        return {member.name: member for member in self.members}

    def member(self, genotype: Genotype) -> SearchSpace:
        """Return the space of a genotype."""
        return self._by_name[genotype.space]

    def genotype(self, assignment: Mapping[str, Option]) -> Genotype:
        """Return the genotype of an assignment, which may hold inactive choices.

        Raises:
            SpaceError: a choice is missing or has an option that is not offered.
        """
        name = str(assignment.get(ROOT))
        if (member := self._by_name.get(name)) is None:
            raise SpaceError(f"Choice '{ROOT}': {unknown_name('space', name, self._by_name)}")
        prefix = f"{member.name}."
        inner = {name: assignment.get(prefix + name) for name in member.choices}
        return member.genotype({name: o for name, o in inner.items() if o is not None})

    def assignment(self, genotype: Genotype) -> dict[str, Option]:
        """Return the space of a genotype and its options, by choice of the union."""
        return dict(_prefixed(genotype))

    def scope(self, assignment: Mapping[str, Option]) -> Sequence[str]:
        """Return the choice of the space, and the choices of the one that is chosen."""
        return self._scopes[str(assignment[ROOT])]

    @cached_property
    def _scopes(self) -> dict[str, Sequence[str]]:
        return {m.name: (ROOT, *(f"{m.name}.{name}" for name in m.choices)) for m in self.members}

    def values(self, genotype: Genotype) -> dict[str, Option]:
        """Return the chosen and the fixed values of a genotype, as its own space names them."""
        return self.member(genotype).values(genotype)

    def sample(self, rng: random.Random) -> Genotype:
        """Return a genotype of a member that is drawn evenly."""
        return rng.choice(self.members).sample(rng)

    def smallest(self) -> Genotype:
        """Return the smallest genotype of the first member."""
        return self.members[0].smallest()

    def largest(self) -> Genotype:
        """Return the largest genotype of the last member."""
        return self.members[-1].largest()

    def n_genotypes(self) -> int:
        """Return the number of different genotypes."""
        return sum(member.n_genotypes() for member in self.members)

    def optional(self) -> tuple[str, ...]:
        """Return all choices but that of the space."""
        return tuple(name for name in self.choices if name != ROOT)


def joined(spaces: Sequence[SearchSpace]) -> Space:
    """Return what is searched: a single space as it is, several as their union.

    Raises:
        SpaceError: two of them have the same name.
    """
    return spaces[0] if len(spaces) == 1 else SpaceUnion(tuple(spaces))


def to_json(space: Space) -> dict[str, Any]:
    """Return what ``from_json`` needs."""
    raws = [asdict(member) for member in space.members]
    return {"members": raws} if space.root else raws[0]


def from_json(raw: Mapping[str, Any]) -> Space:
    """Return the space or the union that ``to_json`` described."""
    if "members" in raw:
        return SpaceUnion(tuple(_space(member) for member in raw["members"]))
    return _space(raw)


def _space(raw: Mapping[str, Any]) -> SearchSpace:
    choices = {name: tuple(options) for name, options in raw["choices"].items()}
    when = {  # earlier versions had none
        key: {other: tuple(allowed) for other, allowed in needs.items()}
        for key, needs in raw.get("when", {}).items()
    }
    return SearchSpace(raw["name"], raw["family"], choices, raw["fixed"], when)


def shown(genotypes: Iterable[Genotype]) -> Callable[[Genotype], tuple[tuple[str, Option], ...]]:
    """Return what gives the options of genotypes to be shown side by side.

    Where they are of several spaces, choices are named after theirs, as in a union.
    """
    if len({genotype.space for genotype in genotypes}) > 1:
        return _prefixed
    return lambda genotype: genotype.options


def _prefixed(genotype: Genotype) -> tuple[tuple[str, Option], ...]:
    own = ((f"{genotype.space}.{name}", option) for name, option in genotype.options)
    return ((ROOT, genotype.space), *own)


def named(value: object) -> list[str]:
    """Return the names and paths of the spaces that ``search_space`` means.

    Args:
        value: A name, a path to a YAML file, a folder of ``search_spaces/`` or of one's own, which
            means all spaces in it, or a list of these.

    Raises:
        SpaceError: it means none, or two of the same name.
    """
    words = value if isinstance(value, list | tuple) else [value]
    found = [name for word in words for name in _named(str(word))]
    if not found:
        raise SpaceError("search_space=[] names no search space.")
    called = [stem(name) for name in found]
    for name in called:
        if called.count(name) > 1:
            of = ", ".join(other for other in found if stem(other) == name)
            raise SpaceError(f"search_space: two spaces are called '{name}' ({of}); keep one.")
    return found


def stem(name: str) -> str:
    """Return what the space of a name, or of a path to a YAML file, is called."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else Path(name).name


def _named(word: str) -> list[str]:
    root = package.ROOT / "search_spaces"
    if word.endswith((".yaml", ".yml")) or (root / f"{word}.yaml").is_file():
        return [word]
    shipped = not Path(word).is_absolute() and (root / word).is_dir()
    folder = root / word if shipped else Path(word)
    found = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    if folder.is_dir() and not found:
        raise SpaceError(f"search_space={word}: there is no search space (*.yaml) in that folder.")
    inside = [f"{word.rstrip('/')}/{path.stem}" if shipped else str(path) for path in found]
    return inside or [word]
