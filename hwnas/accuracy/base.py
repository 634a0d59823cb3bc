"""How well a candidate classifies."""

from dataclasses import dataclass
from typing import Protocol

from hwnas.figure import Figure
from hwnas.space import Genotype


@dataclass(frozen=True)
class Rival:
    """The network that a candidate must not be less accurate than, and what is known of others.

    Both as bits: which validation images a network got right, packed by ``np.packbits``.
    """

    right: bytes  #: of the network to be beaten, which costs no more than the candidate
    earlier: tuple[bytes, ...]  #: of networks that were read whole, two at least


@dataclass(frozen=True)
class Score:
    """What is known of a genotype's accuracy, and from how many images."""

    accuracy: Figure
    n_images: int | None = None  #: ``None`` where no images were read
    right: bytes = b""  #: which images it got right, packed, where all were read
    stopped: bool = False  #: the accuracy is predicted: it is below the rival's


class Evaluator(Protocol):
    """Says how accurate a genotype is."""

    def score(self, genotype: Genotype, rival: Rival | None = None) -> Score:
        """Return the fraction of the validation split that is classified rightly.

        Args:
            genotype: Which network.
            rival: Reading may stop once the network is found to be less accurate than this one.
        """
        ...
