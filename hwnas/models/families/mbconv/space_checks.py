"""Which spaces are of this family."""

from dataclasses import replace

from hwnas.core.errors import SpaceError
from hwnas.models.families import common_checks
from hwnas.models.families.mbconv.lowering import DEFAULTS, READS, sayers
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
    "kind": tuple(READS),
    "kernel_sharing": ("crop", "transform"),
}


def check_mbconv_space(space: SearchSpace) -> None:
    """Refuse a space that does not describe networks of this family.

    Raises:
        SpaceError: with the name that is missing, unknown or out of range.
    """
    blocks = common_checks.blocks(space)
    unread = [f"{b}.expansion" for b in blocks if not _readers(space, b, "expansion")]
    common_checks.check_names(space, replace(_NAMES, optional=(*_NAMES.optional, *unread)))
    for name in sorted({*space.choices, *space.fixed}):
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
        common_checks.check_share(space, name)
    elif key == "kernel":
        common_checks.check_odd(space, name)
    elif key == "stride":
        common_checks.check_one_of(space, name, (1, 2))
    elif key in _MULTIPLIERS:
        common_checks.check_positive(space, name)
    else:
        common_checks.whole_numbers(space, name, least=0 if name == "head.width" else 1)


def _kinds(space: SearchSpace, block: str) -> set[str]:
    name = closest({*space.choices, *space.fixed}, block, "kind")
    return set(map(str, [DEFAULTS["kind"]] if name is None else space.options(name)))


def _readers(space: SearchSpace, block: str, key: str) -> set[str]:
    """Return the kinds that a block can be of and that read a key."""
    return {kind for kind in _kinds(space, block) if key in READS.get(kind, (key,))}


def _check_read(space: SearchSpace, blocks: list[str], key: str) -> None:
    """Refuse a choice that counts for no block, whatever kinds are chosen."""
    names = {*space.choices, *space.fixed}
    read = {closest(names, block, key) for block in blocks if _readers(space, block, key)}
    for name in space.choices:
        if name.rpartition(".")[2] == key and name not in read:
            readers = " or ".join(kind for kind in READS if key in READS[kind])
            raise SpaceError(
                f"Space '{space.name}': '{name}' has no effect: no block that it is said of is "
                f"{readers}. Leave it out."
            )


def _check_condition(space: SearchSpace, blocks: list[str], name: str) -> None:
    """Refuse a choice that is there while the kind closest to it is one with which none reads it.

    Blocks that have a kind of their own may read it all the same.
    """
    place, _, key = name.rpartition(".")
    of = closest({*space.choices, *space.fixed}, place, "kind")
    if of is None or of not in space.choices:
        return  # nothing that is chosen could leave it out
    allowed = space.when.get(key, {}).get("kind", space.choices[of])
    for kind in map(str, space.choices[of]):
        if kind in allowed and not any(_can_read(space, b, name, of, kind) for b in blocks):
            readers = ", ".join(kind for kind in READS if key in READS[kind])
            raise SpaceError(
                f"Space '{space.name}': '{name}' has no effect where '{of}' is {kind}; say "
                f"when: {{{key}: {{kind: [{readers}]}}}}."
            )


def _can_read(space: SearchSpace, block: str, name: str, of: str, kind: str) -> bool:
    """Return whether a choice can count for a block while ``of`` is a kind."""
    key = name.rpartition(".")[2]
    kinds = _readers(space, block, key)
    if closest({*space.choices, *space.fixed}, block, "kind") == of:
        kinds &= {kind}
    return any(name in sayers(space, block, own, key)[0] for own in kinds)


def _check_head(space: SearchSpace, blocks: list[str]) -> None:
    """Refuse what a convolution before the pooling reads, or must precede, where there is none."""
    names = {*space.choices, *space.fixed}
    if 0 not in space.options("head.width"):
        return
    if "head.features" in names:
        raise SpaceError(
            f"Space '{space.name}': 'head.features' needs a 'head.width' above 0, got "
            f"{list(space.options('head.width'))}."
        )
    name = closest(names, "head", "activation")
    others = {closest(names, place, "activation") for place in ("stem", *blocks)}
    if name in space.choices and name not in others:
        raise SpaceError(
            f"Space '{space.name}': '{name}' has no effect where 'head.width' is 0: fix it."
        )


def _check_multiplied(space: SearchSpace) -> None:
    """Refuse what is said of single blocks where a multiplier says how many there are.

    As a choice it may be of no block; fixed, it leaves open what the blocks are that are added.
    """
    names = {*space.choices, *space.fixed}
    if "depth_multiplier" not in names:
        return
    adds = any(float(option) > 1 for option in space.options("depth_multiplier"))
    for name in (n for n in sorted(names) if ".blocks." in n):
        stage, key = name.partition(".blocks.")[0], name.rpartition(".")[2]
        if name in space.choices or (adds and closest(names, stage, key) is None):
            raise SpaceError(
                f"Space '{space.name}': beside 'depth_multiplier', '{name}' must be said of its "
                "stage or of the space."
            )
