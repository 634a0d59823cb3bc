"""Types of the weights that networks are exported with."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hwnas.models.int8.quantised_network import QuantisedNetwork

#: Weight and bias by node name, of the shapes that torch has; batch norm folded.
Weights = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
#: The weights of a network: in float32, or quantised with all scales.
Parameters = Weights | QuantisedNetwork
