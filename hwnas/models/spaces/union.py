"""Unions of search spaces: a choice of the space, and the choices of each."""

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

#: Name of the choice between the members.
ROOT = "space"


@final
@dataclass(frozen=True)
class SpaceUnion:
    """Several spaces (members) as one; genotypes keep the ids of their space.

    The choices of a member are named ``<member>.<choice>`` and are active if the choice ``space``
    is that member.

    Raises:
        SpaceError: if two members or two choices have the same name.
    """

    members: tuple[SearchSpace, ...]  #: the spaces

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        for name in names:
            if names.count(name) > 1:
                raise SpaceError(
                    f"search_space: two search spaces are named '{name}'; remove or rename one."
                )
        if len(self.choices) < 1 + sum(len(member.choices) for member in self.members):
            raise SpaceError(
                f"search_space: choices of {', '.join(names)} have the same name SPACE.CHOICE; "
                "rename the file of one of these spaces."
            )

    @property
    def name(self) -> str:
        """The names of the members, joined by ``+``."""
        return "+".join(member.name for member in self.members)

    @property
    def digest(self) -> str:
        """SHA-256 of the members' digests, the first 16 hexadecimal digits."""
        digests = [member.digest for member in self.members]
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]

    @property
    def root(self) -> str:
        """Name of the choice between the members."""
        return ROOT

    @cached_property
    def choices(self) -> Mapping[str, tuple[Option, ...]]:
        """Options by choice: first the choice between the members, then those of each."""
        prefixed = {f"{m.name}.{n}": o for m in self.members for n, o in m.choices.items()}
        return {ROOT: tuple(member.name for member in self.members), **prefixed}

    @property
    def fixed(self) -> Mapping[str, Option]:
        """The fixed values by ``<member>.<name>``."""
        return {f"{m.name}.{name}": value for m in self.members for name, value in m.fixed.items()}

    @cached_property
    def _by_name(self) -> dict[str, SearchSpace]:
        return {member.name: member for member in self.members}

    def member(self, genotype: Genotype) -> SearchSpace:
        """Return the member that a genotype belongs to.

        Raises:
            KeyError: it belongs to none.
        """
        return self._by_name[genotype.space]

    def genotype(self, assignment: Mapping[str, Option]) -> Genotype:
        """Return the genotype of an assignment, which may have inactive choices.

        Raises:
            SpaceError: if a choice is missing or has an unknown option.
        """
        name = str(assignment.get(ROOT))
        if (member := self._by_name.get(name)) is None:
            raise SpaceError(f"Choice '{ROOT}': {unknown_name('space', name, self._by_name)}")
        prefix = f"{member.name}."
        inner = {name: assignment.get(prefix + name) for name in member.choices}
        return member.genotype({name: o for name, o in inner.items() if o is not None})

    def assignment(self, genotype: Genotype) -> dict[str, Option]:
        """Return the options of a genotype by choice of the union, with the choice ``space``."""
        return dict(_prefixed_options(genotype))

    def scope(self, assignment: Mapping[str, Option]) -> Sequence[str]:
        """Return the choice ``space``, and the names of the choices of the chosen member."""
        return self._scopes[str(assignment[ROOT])]

    @cached_property
    def _scopes(self) -> dict[str, Sequence[str]]:
        return {m.name: (ROOT, *(f"{m.name}.{name}" for name in m.choices)) for m in self.members}

    def values(self, genotype: Genotype) -> dict[str, Option]:
        """Return the chosen and the fixed values of a genotype, as its own space names them."""
        return self.member(genotype).values(genotype)

    def sample(self, rng: random.Random) -> Genotype:
        """Return a random genotype of a random member; each member is equally likely."""
        return rng.choice(self.members).sample(rng)

    def smallest(self) -> Genotype:
        """Return the genotype with the first option of every choice of the first member."""
        return self.members[0].smallest()

    def largest(self) -> Genotype:
        """Return the genotype with the last option of every choice of the last member."""
        return self.members[-1].largest()

    def n_genotypes(self) -> int:
        """Return the number of different genotypes."""
        return sum(member.n_genotypes() for member in self.members)

    def optional(self) -> tuple[str, ...]:
        """Return the names of all choices but that between the members."""
        return tuple(name for name in self.choices if name != ROOT)


def join_spaces(spaces: Sequence[SearchSpace]) -> Space:
    """Return the only space, or the union of several.

    Raises:
        SpaceError: if two of them, or two choices of the union, have the same name.
    """
    return spaces[0] if len(spaces) == 1 else SpaceUnion(tuple(spaces))


def to_json(space: Space) -> dict[str, Any]:
    """Return the JSON object that ``from_json`` reads."""
    raws = [asdict(member) for member in space.members]
    return {"members": raws} if space.root else raws[0]


def from_json(raw: Mapping[str, Any]) -> Space:
    """Return the space or the union that ``to_json`` described."""
    if "members" in raw:
        return SpaceUnion(tuple(_space(member) for member in raw["members"]))
    return _space(raw)


def _space(raw: Mapping[str, Any]) -> SearchSpace:
    choices = {name: tuple(options) for name, options in raw["choices"].items()}
    when = {
        key: {other: tuple(allowed) for other, allowed in needs.items()}
        for key, needs in raw.get("when", {}).items()
    }
    return SearchSpace(raw["name"], raw["family"], choices, raw["fixed"], when)


def option_labels(
    genotypes: Iterable[Genotype],
) -> Callable[[Genotype], tuple[tuple[str, Option], ...]]:
    """Return a function from a genotype to its pairs ``(choice, option)``, for a common table.

    For genotypes of several spaces, choices are prefixed with the space as in a union.
    """
    if len({genotype.space for genotype in genotypes}) > 1:
        return _prefixed_options
    return lambda genotype: genotype.options


def _prefixed_options(genotype: Genotype) -> tuple[tuple[str, Option], ...]:
    options = ((f"{genotype.space}.{name}", option) for name, option in genotype.options)
    return ((ROOT, genotype.space), *options)


def space_names(value: object) -> list[str]:
    """Return the names and paths of the spaces of the option ``search_space``.

    A folder is replaced by its spaces. Files are not read.

    Args:
        value: A name, a path to a YAML file, a folder (for all spaces in it) of ``search_spaces/``
            or by path, or a list of these.

    Raises:
        SpaceError: if there is none, or two have the same name.
    """
    entries = value if isinstance(value, list | tuple) else [value]
    names = [name for entry in entries for name in _expand(str(entry))]
    if not names:
        raise SpaceError(
            "search_space=[] names no search space. Write search_space=NAME or [NAME,NAME]."
        )
    stems = [stem(name) for name in names]
    for name in stems:
        if stems.count(name) > 1:
            same = ", ".join(other for other in names if stem(other) == name)
            raise SpaceError(f"search_space: two spaces are named '{name}' ({same}); keep one.")
    return names


def stem(name: str) -> str:
    """Return the name of a space from its name or path."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else Path(name).name


def _expand(name: str) -> list[str]:
    """Return the spaces of a folder, or the name itself."""
    root = package.ROOT / "search_spaces"
    if name.endswith((".yaml", ".yml")) or (root / f"{name}.yaml").is_file():
        return [name]
    shipped = not Path(name).is_absolute() and (root / name).is_dir()
    folder = root / name if shipped else Path(name)
    if not folder.is_dir():
        return [name]
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if not paths:
        raise SpaceError(
            f"search_space={name}: there is no search space (*.yaml) in this folder. Choose "
            "another one."
        )
    return [f"{name.rstrip('/')}/{path.stem}" if shipped else str(path) for path in paths]
