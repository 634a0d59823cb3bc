"""Progressive widening: a training begins with the largest network and admits smaller ones.

Source: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791, section 3.3: first
the largest alone, then elastic kernels, then depths, then widths. Here the time of widening has
four equal parts: the largest alone; smaller kernels; smaller depths; and everything else (widths,
expansions, heads). Within a part the options of its choices are admitted from the largest down, in
equal times. Resolutions are free from the start, as they are there.
"""

import math
from dataclasses import replace

from hwnas.space import Option, SearchSpace

_PARTS = 4


def admitted(space: SearchSpace, progress: float, widening: float) -> SearchSpace:
    """Return the space of the options that are admitted so far.

    Args:
        space: The whole.
        progress: Of the training, in [0, 1).
        widening: Fraction of the training after which all options are admitted; 0: from the start.
    """
    if progress >= widening:
        return space
    part = _PARTS * progress / widening
    choices = {
        name: _largest(options, part - _part(name)) for name, options in space.choices.items()
    }
    return replace(space, choices=choices)


def _part(name: str) -> int:
    """Return the part of the widening in which smaller options of a choice are admitted."""
    kind = name.rpartition(".")[2]
    return {"resolution": -1, "kernel": 1, "depth": 2}.get(kind, 3)


def _largest(options: tuple[Option, ...], fraction: float) -> tuple[Option, ...]:
    """Return the options that are admitted after a fraction of their part, in [-3, 5]."""
    if fraction < 0:
        return options[-1:]
    smaller = min(len(options) - 1, math.floor(fraction * (len(options) - 1)) + 1)
    return options[len(options) - 1 - smaller :]
