"""The first trials of samplers that know no costs: from the smallest genotype to the largest."""

from hwnas.space import Option, Space

# The first trials: genotypes at these fractions of the way from the smallest to the largest. Random
# genotypes gather in the middle of the range of costs; these spread the first front over all of it.
_LADDER = (0.0, 1.0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875)


def rungs(space: Space) -> list[dict[str, Option]]:
    """Return the assignments of the first trials; of several spaces, each has its share.

    Each has its smallest and its largest genotype; there are more only as far as ``_LADDER`` goes.
    """
    if not space.root:
        return [_rung(space, fraction) for fraction in _LADDER]
    found: dict[str, dict[str, Option]] = {}
    for fraction in _LADDER:
        for member in space.members:
            rung = {**_rung(space, fraction), space.root: member.name}
            found.setdefault(space.genotype(rung).id, rung)
    return list(found.values())[: max(len(_LADDER), 2 * len(space.members))]


def _rung(space: Space, fraction: float) -> dict[str, Option]:
    """Return the assignment in which every choice is this far up its options."""
    return {
        name: options[round(fraction * (len(options) - 1))]
        for name, options in space.choices.items()
    }
