"""What families ask of the names and values of a space; each refusal names them in one line."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.spaces import Option, SearchSpace, closest


def n_stages(space: SearchSpace) -> int:
    """Return how many stages the space describes."""
    names = {*space.choices, *space.fixed}
    return len({name.split(".")[1] for name in names if name.startswith("stages.")})


def said(values: Mapping[str, Option], place: str, key: str) -> Option:
    """Return what a checked space says of ``key`` for a place."""
    name = closest(values, place, key)
    assert name is not None
    return values[name]


@dataclass(frozen=True)
class ReadNames:
    """The names that a family reads."""

    network: tuple[str, ...]  #: such as ``stem.width``
    stage: tuple[str, ...]  #: what each ``stages.<i>.`` gives beside its depth
    block: tuple[str, ...]  #: what each ``stages.<i>.blocks.<j>.`` gives, or its stage or the space
    #: Of the network, of blocks, or of one block by its full name: those that have a default.
    optional: tuple[str, ...] = ()
    places: tuple[str, ...] = ()  #: other places that read what blocks do: ``stem.activation``
    conditional: tuple[str, ...] = ()  #: keys of ``when``: those that may be absent


def check_names(space: SearchSpace, names: ReadNames) -> None:
    """Refuse a space that gives other names than a family reads.

    Raises:
        SpaceError: a name is unknown, missing, or hidden by others.
    """
    given, stages = {*space.choices, *space.fixed}, range(n_stages(space))
    if not stages:
        raise SpaceError(f"{_where(space)} has no stage; it needs stages.0.depth and so on.")
    keys = ("depth", *names.stage)
    required = {*names.network, *(f"stages.{i}.{key}" for i in stages for key in keys)}
    known = {*required, *names.optional, *names.block, *names.places}
    known |= {f"stages.{i}.{key}" for i in stages for key in names.block}
    read, missing = {*required, *names.optional} & given, required - given
    told = [f"{block}.{key}" for block in blocks(space) for key in names.block]
    for name in (*told, *names.places):
        known.add(name)
        place, _, key = name.rpartition(".")
        if (found := closest(given, place, key)) is not None:
            read.add(found)
        elif key not in names.optional and name not in names.optional:
            missing.add(name)
    _check_conditions(space, names, required)
    for name in sorted(given - known):
        raise SpaceError(f"{_where(space)}: {unknown_name('name', name, known)}")
    for name in sorted(missing):
        also = f" ('{key}' for all)" if (key := name.rpartition(".")[2]) in names.block else ""
        raise SpaceError(
            f"{_where(space)}: '{name}' is missing; give it under choices or fixed{also}."
        )
    for name in sorted(given - read):
        raise SpaceError(
            f"{_where(space)}: nothing reads '{name}': what stands closer to each block counts."
        )


def _check_conditions(space: SearchSpace, names: ReadNames, required: set[str]) -> None:
    for key in space.when:
        if key not in names.conditional:
            raise SpaceError(
                f"{_where(space)}: when: '{key}' is always read by family '{space.family}'; "
                f"it may depend on others: {', '.join(names.conditional) or 'nothing'}."
            )
    if absent := sorted({*space.optional()} & required):
        raise SpaceError(
            f"{_where(space)}: when: '{absent[0]}' is always read; say what it depends on of "
            "stages or blocks only."
        )


def blocks(space: SearchSpace) -> list[str]:
    """Return the names of all blocks of the stages whose depth is given."""
    depths = [f"stages.{i}.depth" for i in range(n_stages(space))]
    return [
        f"{depth.removesuffix('.depth')}.blocks.{index}"
        for depth in depths
        if depth in space.choices or depth in space.fixed
        for index in range(max(whole_numbers(space, depth)))
    ]


def check_fixed(space: SearchSpace, names: Iterable[str]) -> None:
    """Raise ``SpaceError`` if one of these names is a choice."""
    for name in names:
        if name in space.choices:
            raise SpaceError(f"{_where(space)}: '{name}' must be fixed; it is not elastic.")


def check_one_of(space: SearchSpace, name: str, allowed: Collection[Option]) -> None:
    """Raise ``SpaceError`` if ``name`` can be anything else than what is allowed."""
    for option in space.options(name):
        if option in allowed:
            continue
        if isinstance(option, str):
            raise SpaceError(f"{_where(space)}: {unknown_name(name, option, map(str, allowed))}")
        every = " or ".join(map(str, allowed))
        raise SpaceError(f"{_where(space)}: '{name}' must be {every}, got {option}.")


def check_odd(space: SearchSpace, name: str) -> None:
    """Raise ``SpaceError`` if ``name`` can be anything else than an odd number above 0."""
    options = whole_numbers(space, name)
    if any(option % 2 == 0 for option in options):
        raise SpaceError(f"{_where(space)}: '{name}' must be odd, got {list(options)}.")


def check_positive(space: SearchSpace, name: str) -> None:
    """Raise ``SpaceError`` if ``name`` can be anything else than a finite number above 0."""
    options = space.options(name)
    if not all(isinstance(o, int | float) and 0 < o < float("inf") for o in options):
        raise SpaceError(f"{_where(space)}: '{name}' needs numbers above 0, got {list(options)}.")


def check_share(space: SearchSpace, name: str) -> None:
    """Raise ``SpaceError`` if ``name`` can be anything else than a share, 0 to 1."""
    options = space.options(name)
    if not all(isinstance(o, int | float) and 0 <= o <= 1 for o in options):
        raise SpaceError(
            f"{_where(space)}: '{name}' needs shares from 0 to 1, got {list(options)}."
        )


def whole_numbers(space: SearchSpace, name: str, least: int = 1) -> tuple[int, ...]:
    """Return what ``name`` can be; raise ``SpaceError`` if that is not whole or below ``least``."""
    options = space.options(name)
    if not all(isinstance(option, int) and option >= least for option in options):
        allowed = f"above {least - 1}" if least else "or 0"
        raise SpaceError(
            f"{_where(space)}: '{name}' needs whole numbers {allowed}, got {list(options)}."
        )
    return tuple(int(option) for option in options)


def _where(space: SearchSpace) -> str:
    return f"Space '{space.name}'"
