"""Checks of search spaces of the family ``mbconv``."""

from dataclasses import replace

from hwnas.core.errors import SpaceError
from hwnas.models.families import common_checks
from hwnas.models.families.mbconv.lowering import DEFAULTS, KIND_OPTIONS, defining_names
from hwnas.models.spaces import SearchSpace, closest

_MULTIPLIERS = ("width_multiplier", "depth_multiplier")
_NAMES = common_checks.ReadNames(
    network=("resolution", "head.width", "stem.width", "stem.kernel", "stem.stride"),
    stage=("width", "stride"),
    block=("kernel", "expansion", "activation", "kind", "se"),
    optional=("head.features", "kernel_sharing", *_MULTIPLIERS, *DEFAULTS),
    places=("stem.activation", "head.activation"),
    conditional=("expansion", "kernel", "se"),
)
_WORDS = {
    "activation": ("relu6", "relu", "hardswish"),
    "kind": tuple(KIND_OPTIONS),
    "kernel_sharing": ("crop", "transform"),
}


def check_mbconv_space(space: SearchSpace) -> None:
    """Check a space of the family ``mbconv``.

    Raises:
        SpaceError: if a name is missing or unknown, or an option is not allowed or without effect.
    """
    blocks = common_checks.blocks(space)
    unread = [f"{b}.expansion" for b in blocks if not _readers(space, b, "expansion")]
    common_checks.check_names(space, replace(_NAMES, optional=(*_NAMES.optional, *unread)))
    for name in sorted(space.names):
        _check_values(space, name)
    common_checks.check_fixed(space, ["kernel_sharing"])
    for key in ("expansion", "se"):
        _check_read(space, blocks, key)
        for name in space.choices:
            if name.rpartition(".")[2] == key:
                _check_condition(space, blocks, name)
    _check_head(space, blocks)
    _check_multiplied(space)


def _check_values(space: SearchSpace, name: str) -> None:
    key = name.rpartition(".")[2]
    if key in _WORDS:
        common_checks.check_one_of(space, name, _WORDS[key])
    elif key == "se":
        common_checks.check_fraction(space, name)
    elif key == "kernel":
        common_checks.check_odd(space, name)
    elif key == "stride":
        common_checks.check_one_of(space, name, (1, 2))
    elif key in _MULTIPLIERS:
        common_checks.check_positive(space, name)
    else:
        common_checks.whole_numbers(space, name, minimum=0 if name == "head.width" else 1)


def _kinds(space: SearchSpace, block: str) -> set[str]:
    name = closest({*space.names}, block, "kind")
    return set(map(str, [DEFAULTS["kind"]] if name is None else space.options(name)))


def _readers(space: SearchSpace, block: str, key: str) -> set[str]:
    """Return the possible kinds of a block that use a key."""
    return {kind for kind in _kinds(space, block) if key in KIND_OPTIONS.get(kind, (key,))}


def _check_read(space: SearchSpace, blocks: list[str], key: str) -> None:
    """Check that each choice of a key, and a fixed one that is not 0, has an effect."""
    names = {*space.names}
    read_names = {closest(names, block, key) for block in blocks if _readers(space, block, key)}
    given = [*space.choices, *(n for n, value in space.fixed.items() if key == "se" and value)]
    for name in given:
        if name.rpartition(".")[2] == key and name not in read_names:
            readers = " or ".join(kind for kind in KIND_OPTIONS if key in KIND_OPTIONS[kind])
            raise SpaceError(
                f"Space '{space.name}': '{name}' has no effect: no block to which it applies is of "
                f"kind {readers}. Remove it."
            )


def _check_condition(space: SearchSpace, blocks: list[str], name: str) -> None:
    """Check that a choice is inactive for kinds with which no block uses it."""
    place, _, key = name.rpartition(".")
    kind_name = closest({*space.names}, place, "kind")
    if kind_name is None or kind_name not in space.choices:
        return  # no choice could make it inactive
    allowed = space.when.get(key, {}).get("kind", space.choices[kind_name])
    for kind in map(str, space.choices[kind_name]):
        if kind in allowed and not any(_can_read(space, b, name, kind_name, kind) for b in blocks):
            condition = f"when: {{{key}: {{kind: [{', '.join(_offered_readers(space, key))}]}}}}"
            remedy = (
                f"change the condition of '{key}' to {condition}"
                if key in space.when
                else f"add {condition} to the space"
            )
            raise SpaceError(
                f"Space '{space.name}': '{name}' has no effect if '{kind_name}' is {kind}; "
                f"{remedy}."
            )


def _offered_readers(space: SearchSpace, key: str) -> list[str]:
    """Return the kinds that use a key and that a condition of the key may name."""
    names = {*space.names}
    places = [n.rpartition(".")[0] for n in space.choices if n.rpartition(".")[2] == key]
    sources = {closest(names, place, "kind") for place in places} - {None}
    offered = {option for source in sources for option in space.options(str(source))}
    return [kind for kind in KIND_OPTIONS if key in KIND_OPTIONS[kind] and kind in offered]


def _can_read(space: SearchSpace, block: str, name: str, kind_name: str, kind: str) -> bool:
    """Return True if a choice can affect a block when ``kind_name`` is ``kind``."""
    key = name.rpartition(".")[2]
    kinds = _readers(space, block, key)
    if closest({*space.names}, block, "kind") == kind_name:
        kinds &= {kind}
    return any(name in defining_names(space, block, kind_keys, key)[0] for kind_keys in kinds)


def _check_head(space: SearchSpace, blocks: list[str]) -> None:
    """Check names that depend on the convolution before the pooling, if it may be absent."""
    names = {*space.names}
    if 0 not in space.options("head.width"):
        return
    if "head.features" in names:
        raise SpaceError(
            f"Space '{space.name}': 'head.features' needs a 'head.width' above 0, got "
            f"{list(space.options('head.width'))}. Remove 0, or remove 'head.features'."
        )
    name = closest(names, "head", "activation")
    others = {closest(names, place, "activation") for place in ("stem", *blocks)}
    if name in space.choices and name not in others:
        raise SpaceError(
            f"Space '{space.name}': '{name}' has no effect if 'head.width' is 0: move it from "
            "'choices' to 'fixed'."
        )


def _check_multiplied(space: SearchSpace) -> None:
    """Check that with a depth multiplier no choice is of a single block.

    The number of blocks varies: the block may not exist, or added blocks may lack a value.
    """
    names = {*space.names}
    if "depth_multiplier" not in names:
        return
    adds = any(float(option) > 1 for option in space.options("depth_multiplier"))
    for name in (n for n in sorted(names) if ".blocks." in n):
        stage, key = name.partition(".blocks.")[0], name.rpartition(".")[2]
        if name in space.choices or (adds and closest(names, stage, key) is None):
            raise SpaceError(
                f"Space '{space.name}': with 'depth_multiplier' the number of blocks varies, so "
                f"'{name}' must not be of one block: define '{stage}.{key}' or '{key}' instead."
            )
