"""What known devices teach of one that is not known yet."""

from dataclasses import dataclass, field
from typing import final

import numpy as np

from hwnas.devices.roofline import EXPECTED, Expected
from hwnas.devices.work import Floats

#: Hyperparameters: variances of contributions, and of the noise; see ``process.HYPERPARAMETERS``.
FIRST = np.log([0.1, 0.1, 1.0, 0.1, 0.001, 0.001, 0.002])


@final
@dataclass(frozen=True)
class Prior:
    """What is expected of a device."""

    roofline: Expected = EXPECTED
    process: Floats = field(default_factory=lambda: FIRST)
