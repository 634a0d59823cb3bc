"""How well a candidate answers."""

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
    """The network that a candidate must not be worse than, and what is known of others.

    Bytes say what was found of each validation image, packed by the task.
    """

    per_image: bytes  #: of the network to be beaten, which costs no more than the candidate
    earlier: tuple[bytes, ...]  #: of networks that were read whole, two at least
    value: float = math.nan  #: of the metric, of the network to be beaten
    details: tuple[Mapping[str, float], ...] = ()  #: what else is known of earlier networks


@dataclass(frozen=True)
class Score:
    """What is known of how well a genotype's network answers, and from how many images."""

    figure: Figure  #: of the task's metric
    n_images: int | None = None  #: ``None`` where no images were read
    per_image: bytes = b""  #: what was found of each, packed by the task, where all were read
    stopped: bool = False  #: the figure is predicted: it is worse than the rival's
    details: Mapping[str, float] = field(default_factory=dict)  #: what else was found, by column


class Evaluator(Protocol):
    """Says how well a genotype's network answers."""

    def score(self, genotype: Genotype, rival: Rival | None = None) -> Score:
        """Return the task's metric on the validation split.

        Args:
            genotype: Which network.
            rival: Reading may stop once the network is found to be worse than this one.
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
