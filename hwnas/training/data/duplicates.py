"""Equal files in different splits: what was learned from one is no answer to the other."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

_HALVES = np.dtype([("first", "u8"), ("second", "u8")])


def shared(hashes: Mapping[str, NDArray[np.uint8]], where: Callable[[str, int], str]) -> list[str]:
    """Return in sentences how many images of other splits are images of ``train``, too.

    Args:
        hashes: By split, of what each image's file holds, ``(N, 16)``.
        where: Says which image that of a split is, by its place there.
    """
    train, *others = (
        np.ascontiguousarray(hashes[name]).view(_HALVES).ravel()
        for name in ("train", "validation", "test")
    )
    found = []
    for name, own in zip(("validation", "test"), others, strict=True):
        same = np.flatnonzero(np.isin(own, train))
        if len(same):
            first = int(np.flatnonzero(train == own[same[0]])[0])
            found.append(
                f"{len(same)} of {len(own)} {name} images are training images, too, for example "
                f"{where(name, int(same[0]))} and {where('train', first)}: accuracies are too high "
                "by what is known by heart."
            )
    return found
