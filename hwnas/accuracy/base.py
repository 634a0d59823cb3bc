"""How well a candidate classifies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hwnas.figure import Figure
from hwnas.space import Genotype

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Rival:
    """The network that a candidate must not be less accurate than, and what is known of others.

    Bits say which validation images a network got right, packed by ``np.packbits``.
    """

    right: bytes  #: of the network to be beaten, which costs no more than the candidate
    earlier: tuple[bytes, ...]  #: of networks that were read whole, two at least
    accuracy: float = math.nan  #: of the network to be beaten
    details: tuple[Mapping[str, float], ...] = ()  #: what else is known of earlier networks


@dataclass(frozen=True)
class Score:
    """What is known of a genotype's accuracy, and from how many images."""

    accuracy: Figure
    n_images: int | None = None  #: ``None`` where no images were read
    right: bytes = b""  #: which images it got right, packed, where all were read
    stopped: bool = False  #: the accuracy is predicted: it is below the rival's
    details: Mapping[str, float] = field(default_factory=dict)  #: what else was found, by column


class Evaluator(Protocol):
    """Says how accurate a genotype is."""

    def score(self, genotype: Genotype, rival: Rival | None = None) -> Score:
        """Return the fraction of the validation split that is classified rightly.

        Args:
            genotype: Which network.
            rival: Reading may stop once the network is found to be less accurate than this one.
        """
        ...


class Weights(Protocol):
    """Has the networks of genotypes, with the weights that search scored them by."""

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network, its batch norm recalibrated; it can be trained on."""
        ...

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network with batch norm folded."""
        ...

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        ...

    def origin(self, genotype: Genotype) -> str:
        """Return where the weights come from, in words that tell all that decides them."""
        ...
