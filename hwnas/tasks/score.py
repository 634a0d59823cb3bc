"""What is known of how well a network answers, and what it is held against."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwnas.figure import Figure


@dataclass(frozen=True)
class Incumbent:
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
    stopped: bool = False  #: the figure is predicted: it is worse than the incumbent's
    details: Mapping[str, float] = field(default_factory=dict)  #: what else was found, by column
