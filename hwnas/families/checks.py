"""What families ask of the names and values of a space; each refusal names them in one line."""

from collections.abc import Collection, Iterable

from hwnas.errors import SpaceError, unknown
from hwnas.space import Option, SearchSpace


def n_stages(space: SearchSpace) -> int:
    """Return how many stages the space describes."""
    names = {*space.choices, *space.fixed}
    return len({name.split(".")[1] for name in names if name.startswith("stages.")})


def check_names(
    space: SearchSpace, network: Iterable[str], stage: Iterable[str], block: Iterable[str]
) -> None:
    """Refuse a space that gives other names than these.

    Args:
        space: Its depths are those of the blocks that it must give.
        network: Names such as ``stem.width``.
        stage: What each ``stages.<i>.`` gives beside its depth.
        block: What each ``stages.<i>.blocks.<j>.`` gives.

    Raises:
        SpaceError: a name is unknown or missing.
    """
    given = {*space.choices, *space.fixed}
    if not n_stages(space):
        raise SpaceError(f"{_where(space)} has no stage; it needs stages.0.depth and so on.")
    required = {*network}
    for i in range(n_stages(space)):
        depth = f"stages.{i}.depth"
        required |= {depth} | {f"stages.{i}.{name}" for name in stage}
        deepest = max(whole_numbers(space, depth)) if depth in given else 0
        required |= {f"stages.{i}.blocks.{j}.{name}" for j in range(deepest) for name in block}
    for name in sorted(given - required):
        raise SpaceError(f"{_where(space)}: {unknown('name', name, required)}")
    for name in sorted(required - given):
        raise SpaceError(f"{_where(space)}: '{name}' is missing; give it under choices or fixed.")


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
            raise SpaceError(f"{_where(space)}: {unknown(name, option, map(str, allowed))}")
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


def whole_numbers(space: SearchSpace, name: str) -> tuple[int, ...]:
    """Return what ``name`` can be; raise ``SpaceError`` if that is not whole and above 0."""
    options = space.options(name)
    if not all(isinstance(option, int) and option > 0 for option in options):
        raise SpaceError(
            f"{_where(space)}: '{name}' needs whole numbers above 0, got {list(options)}."
        )
    return tuple(int(option) for option in options)


def _where(space: SearchSpace) -> str:
    return f"Space '{space.name}'"
