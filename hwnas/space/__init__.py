"""Search spaces and genotypes: which networks can be built, as data."""

from hwnas.space.base import Genotype, Option, SearchSpace, Space, When, closest
from hwnas.space.file import find, load

__all__ = ["Genotype", "Option", "SearchSpace", "Space", "When", "closest", "find", "load"]
