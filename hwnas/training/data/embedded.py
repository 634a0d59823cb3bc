"""Data sets that need no network and no files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

_SEED = 0  # the angles are part of the data set: they never follow the run's seed
_SIDE = 16  # pixels, that digits are enlarged to before they are rotated
_MOST = 60.0  # degrees, to either side: beyond, a 6 becomes a 9


@dataclass(frozen=True)
class Embedded:
    """Images ``(N, H, W, C)`` in uint8 with targets."""

    task: str  #: what the targets are for
    images: NDArray[np.uint8]
    targets: NDArray[Any]
    names: tuple[str, ...]  #: of what networks answer


def digits() -> Embedded:
    """Return 1,797 handwritten digits of 8x8 pixels with their labels."""
    found = load_digits()
    images = np.round(found.images * 255 / 16).astype(np.uint8)[..., None]
    names = tuple(map(str, found.target_names))
    return Embedded("classification", images, found.target, names)


def digit_angles() -> Embedded:
    """Return the digits, enlarged to 16x16 pixels and rotated, with their angles in degrees.

    Angles are uniform in [-60, 60], counter-clockwise. How a writer slants digits is not known, so
    that nobody can be right to the degree.
    """
    upright = digits().images[..., 0]
    angles = np.random.default_rng(_SEED).uniform(-_MOST, _MOST, len(upright))
    rotated = [_rotated(image, angle) for image, angle in zip(upright, angles, strict=True)]
    return Embedded("regression", np.stack(rotated)[..., None], angles, ("angle_deg",))


def _rotated(image: NDArray[np.uint8], angle: float) -> NDArray[np.uint8]:
    picture = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    return np.asarray(picture.rotate(angle, Image.Resampling.BICUBIC), np.uint8)


#: By the name of the data set.
EMBEDDED: Mapping[str, Callable[[], Embedded]] = {"digits": digits, "digit_angles": digit_angles}
