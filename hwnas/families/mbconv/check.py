"""Which spaces are of this family."""

from hwnas.families import checks
from hwnas.families.mbconv.lowering import DEFAULTS
from hwnas.space import SearchSpace

_NAMES = checks.Names(
    network=("resolution", "head.width", "stem.width", "stem.kernel", "stem.stride"),
    stage=("width", "stride"),
    block=("kernel", "expansion", "activation", "kind", "se"),
    optional=("head.features", "kernel_sharing", *DEFAULTS),
    places=("stem.activation", "head.activation"),
)
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
    checks.check_names(space, _NAMES)
    names = sorted({*space.choices, *space.fixed})
    for name in names:
        key = name.rpartition(".")[2]
        if key in _WORDS:
            checks.check_one_of(space, name, _WORDS[key])
        elif key == "se":
            checks.check_share(space, name)
        elif key == "kernel":
            checks.check_odd(space, name)
        elif key == "stride":
            checks.check_one_of(space, name, (1, 2))
        else:
            checks.whole_numbers(space, name)
    checks.check_fixed(space, [name for name in names if name.endswith(_INELASTIC)])
