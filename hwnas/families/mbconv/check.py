"""Which spaces are of this family."""

from hwnas.errors import SpaceError, unknown
from hwnas.families.mbconv.lowering import PER_BLOCK, closest, n_stages
from hwnas.space import SearchSpace

_PER_STAGE = ("depth", "width", "stride")
_REQUIRED = ("resolution", "head.width", "stem.width", "stem.kernel", "stem.stride")
_OPTIONAL = ("head.features", "kernel_sharing")
_WORDS = {
    "activation": ("relu6", "relu", "hardswish"),
    "kind": ("inverted", "fused"),
    "kernel_sharing": ("crop", "transform"),
}
_INELASTIC = ("stem.kernel", "kernel_sharing", "stride")


def check(space: SearchSpace) -> None:
    """Refuse a space that does not describe inverted residuals.

    Raises:
        SpaceError: with the name that is missing, unknown or out of range.
    """
    where = f"Space '{space.name}'"
    names, read = {*space.choices, *space.fixed}, _read(space, where)
    for name in sorted(names - read):
        if name in _known(space):
            raise SpaceError(
                f"{where}: nothing reads '{name}': what stands closer to each block counts."
            )
        raise SpaceError(f"{where}: {unknown('name', name, sorted(_known(space)))}")
    for name in sorted(names):
        _check_values(space, where, name)
        if name in space.choices and name.endswith(_INELASTIC):
            raise SpaceError(f"{where}: '{name}' must be fixed; it is not elastic.")


def _blocks(space: SearchSpace, stage: int) -> list[str]:
    deepest = max(_numbers(space, f"stages.{stage}.depth"))
    return [f"stages.{stage}.blocks.{index}" for index in range(deepest)]


def _read(space: SearchSpace, where: str) -> set[str]:
    """Return the names that the networks of a space are made from; refuse one that lacks any."""
    names, stages = {*space.choices, *space.fixed}, range(n_stages(space))
    if not stages:
        raise SpaceError(f"{where} has no stage; it needs stages.0.depth and so on.")
    required = [*_REQUIRED, *(f"stages.{stage}.{key}" for stage in stages for key in _PER_STAGE)]
    for name in required:
        if name not in names:
            raise SpaceError(f"{where}: '{name}' is missing; give it under choices or fixed.")
    read = {*required, *(name for name in _OPTIONAL if name in names)}
    places = {block: list(PER_BLOCK) for stage in stages for block in _blocks(space, stage)}
    for place, keys in {**places, "stem": ["activation"], "head": ["activation"]}.items():
        for key in keys:
            found = closest(names, place, key)
            if found is None and PER_BLOCK[key] is None:
                raise SpaceError(
                    f"{where}: '{place}.{key}' is missing; give it under choices or fixed, or "
                    f"'{key}' for all."
                )
            read |= {found} if found else set()
    return read


def _known(space: SearchSpace) -> set[str]:
    """Return the names that a space can give."""
    stages = range(n_stages(space))
    known = {*_REQUIRED, *_OPTIONAL, *PER_BLOCK, "stem.activation", "head.activation"}
    known |= {f"stages.{stage}.{key}" for stage in stages for key in (*_PER_STAGE, *PER_BLOCK)}
    blocks = [block for stage in stages for block in _blocks(space, stage)]
    return known | {f"{block}.{key}" for block in blocks for key in PER_BLOCK}


def _check_values(space: SearchSpace, where: str, name: str) -> None:
    key = name.rpartition(".")[2]
    if key in _WORDS:
        for option in space.options(name):
            if option not in _WORDS[key]:
                raise SpaceError(f"{where}: {unknown(key, str(option), _WORDS[key])}")
    elif key == "se":
        for option in space.options(name):
            if isinstance(option, str) or not 0 <= option <= 1:
                raise SpaceError(
                    f"{where}: '{name}' is the share of channels that squeeze-excitation keeps "
                    f"between, 0 to 1 (0: none), got {option!r}."
                )
    else:
        options = _numbers(space, name)
        if key == "kernel" and any(option % 2 == 0 for option in options):
            raise SpaceError(f"{where}: '{name}' must be odd, got {list(options)}.")
        if key == "stride" and not {*options} <= {1, 2}:
            raise SpaceError(f"{where}: '{name}' must be 1 or 2, got {list(options)}.")


def _numbers(space: SearchSpace, name: str) -> tuple[int, ...]:
    options = space.options(name)
    if not all(isinstance(option, int) and option > 0 for option in options):
        raise SpaceError(
            f"Space '{space.name}': '{name}' needs whole numbers above 0, got {list(options)}."
        )
    return tuple(int(option) for option in options)
