"""Checks of names and values of search spaces, shared by families.

A key such as ``kernel`` may be defined for a block (``stages.0.blocks.1.kernel``), a stage
(``stages.0.kernel``) or the space (``kernel``). The closest definition applies: that of the block,
else of the stage, else of the space.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.spaces import Option, SearchSpace, closest
from hwnas.models.spaces.files import ONE_STAGE_EACH

_LISTED = 8  # missing names in a message


def n_stages(space: SearchSpace) -> int:
    """Return the number of stages of a space."""
    prefixes = (name.split(".")[1] for name in space.names if name.startswith("stages."))
    return len({prefix for prefix in prefixes if prefix.isdecimal()})


def closest_value(values: Mapping[str, Option], place: str, key: str) -> Option:
    """Return the value of a key for a block (``place``): the block's, its stage's or the space's.

    The space must have been checked.
    """
    name = closest(values, place, key)
    assert name is not None
    return values[name]


@dataclass(frozen=True)
class ReadNames:
    """The names that a family reads from a search space."""

    network: tuple[str, ...]  #: names of the whole network, such as ``stem.width``
    stage: tuple[str, ...]  #: keys of ``stages.<i>.`` besides the depth
    block: tuple[str, ...]  #: keys of ``stages.<i>.blocks.<j>.``, of its stage or of the space
    #: Names with a default: of the network, keys of blocks, or full names of one block.
    optional: tuple[str, ...] = ()
    places: tuple[str, ...] = ()  #: other places with keys of blocks: ``stem.activation``
    conditional: tuple[str, ...] = ()  #: keys that ``when`` may make inactive


def check_names(space: SearchSpace, names: ReadNames) -> None:
    """Check that a space has the names that a family reads.

    Raises:
        SpaceError: if a name is unknown, missing, or without effect as all blocks override it, a
            condition of ``when`` is not allowed, or there is no stage.
    """
    given, stages = {*space.names}, range(n_stages(space))
    if not stages:
        raise SpaceError(
            f"{_subject(space)} has no stage: add stages.0.depth and the other names of a stage "
            f"({', '.join(names.stage)})."
            if names.stage
            else f"{_subject(space)} has no stage: add stages.0.depth."
        )
    keys = ("depth", *names.stage)
    required = {*names.network, *(f"stages.{i}.{key}" for i in stages for key in keys)}
    known = {*required, *names.optional, *names.block, *names.places}
    known |= {f"stages.{i}.{key}" for i in stages for key in names.block}
    read_names, missing = {*required, *names.optional} & given, required - given
    of_blocks = [f"{block}.{key}" for block in blocks(space) for key in names.block]
    for name in (*of_blocks, *names.places):
        known.add(name)
        place, _, key = name.rpartition(".")
        if (source := closest(given, place, key)) is not None:
            read_names.add(source)
        elif key not in names.optional and name not in names.optional:
            missing.add(name)
    for name in sorted(given - known):
        raise SpaceError(f"{_subject(space)}: {_unknown_message(name, known)}")
    _check_conditions(space, names, required)
    if missing:
        ordered = sorted(missing)
        listed = ", ".join(map(repr, ordered[:_LISTED]))
        if n_more := len(ordered[_LISTED:]):
            listed += f" and {n_more} more"
        of_all = sorted({name.rpartition(".")[2] for name in ordered} & {*names.block})
        also = f" ({' and '.join(map(repr, of_all))} for all blocks)" if of_all else ""
        verb, them = ("are", "them") if len(missing) > 1 else ("is", "it")
        raise SpaceError(
            f"{_subject(space)}: {listed} {verb} missing; add {them} to choices or fixed{also}."
        )
    for name in sorted(given - read_names):
        raise SpaceError(
            f"{_subject(space)}: '{name}' has no effect: each block or stage defines its own "
            f"'{name.rpartition('.')[2]}'. Remove '{name}'."
        )


def _unknown_message(name: str, known: Collection[str]) -> str:
    """Return the message on an unknown name: about the numbers of stages, or with similar names."""
    if name.startswith("stages.") and name.split(".")[1].isdecimal():
        stages = {n.split(".")[1] for n in known if n.startswith("stages.")}
        if name.split(".")[1] not in stages:
            return (
                f"'{name}' has a wrong number: stages are numbered from 0 without gaps. This space "
                f"has {len(stages)}; allowed: {', '.join(sorted(stages, key=int))}."
            )
    elif "stage" in name or "depth" in name:
        return f"Unknown name '{name}'. {ONE_STAGE_EACH}"
    return unknown_name("name", name, known)


def _check_conditions(space: SearchSpace, names: ReadNames, required: set[str]) -> None:
    for key in space.when:
        if key not in names.conditional:
            raise SpaceError(
                f"{_subject(space)}: 'when' has a condition for '{key}', which family "
                f"'{space.family}' always needs. Allowed in 'when': "
                f"{', '.join(names.conditional) or 'nothing'}. Remove '{key}' from 'when'."
            )
    if absent := sorted({*space.optional()} & required):
        raise SpaceError(
            f"{_subject(space)}: 'when' has a condition for '{absent[0]}', which is always needed. "
            "Remove it; only names of stages or blocks may be conditional."
        )


def blocks(space: SearchSpace) -> list[str]:
    """Return the names of all blocks of the largest depths: ``stages.0.blocks.0``, and so on."""
    depths = [f"stages.{i}.depth" for i in range(n_stages(space))]
    return [
        f"{depth.removesuffix('.depth')}.blocks.{index}"
        for depth in depths
        if depth in space.choices or depth in space.fixed
        for index in range(max(whole_numbers(space, depth)))
    ]


def check_fixed(space: SearchSpace, names: Iterable[str]) -> None:
    """Check that names are not choices.

    Raises:
        SpaceError: if one is.
    """
    for name in names:
        if name in space.choices:
            raise SpaceError(
                f"{_subject(space)}: '{name}' must be fixed: move it from 'choices' to 'fixed'."
            )


def check_one_of(space: SearchSpace, name: str, allowed: Collection[Option]) -> None:
    """Check that all options of a name are allowed.

    Raises:
        SpaceError: if one is not.
    """
    for option in space.options(name):
        if option in allowed:
            continue
        if isinstance(option, str):
            raise SpaceError(f"{_subject(space)}: {unknown_name(name, option, map(str, allowed))}")
        listed = " or ".join(map(str, allowed))
        raise SpaceError(f"{_subject(space)}: '{name}' must be {listed}, got {option}.")


def check_odd(space: SearchSpace, name: str) -> None:
    """Check that all options of a name are odd whole numbers above 0.

    Raises:
        SpaceError: if one is not.
    """
    options = whole_numbers(space, name)
    if any(option % 2 == 0 for option in options):
        raise SpaceError(f"{_subject(space)}: '{name}' must be odd, got {list(options)}.")


def check_positive(space: SearchSpace, name: str) -> None:
    """Check that all options of a name are finite numbers above 0.

    Raises:
        SpaceError: if one is not.
    """
    options = space.options(name)
    if not all(isinstance(o, int | float) and 0 < o < float("inf") for o in options):
        raise SpaceError(f"{_subject(space)}: '{name}' needs numbers above 0, got {list(options)}.")


def check_fraction(space: SearchSpace, name: str) -> None:
    """Check that all options of a name are numbers from 0 to 1.

    Raises:
        SpaceError: if one is not.
    """
    options = space.options(name)
    if not all(isinstance(o, int | float) and 0 <= o <= 1 for o in options):
        raise SpaceError(
            f"{_subject(space)}: '{name}' needs fractions from 0 to 1, got {list(options)}."
        )


def whole_numbers(space: SearchSpace, name: str, minimum: int = 1) -> tuple[int, ...]:
    """Return the options of a name, which must be whole numbers of at least ``minimum``.

    Raises:
        SpaceError: if one is not.
    """
    options = space.options(name)
    if not all(isinstance(option, int) and option >= minimum for option in options):
        allowed = f"above {minimum - 1}" if minimum else "from 0 on"
        stages = f" {ONE_STAGE_EACH}" if 0 in options and name.endswith(".depth") else ""
        raise SpaceError(
            f"{_subject(space)}: '{name}' needs whole numbers {allowed}, got {list(options)}."
            f"{stages}"
        )
    return tuple(int(option) for option in options)


def _subject(space: SearchSpace) -> str:
    return f"Space '{space.name}'"
