"""Search spaces and genotypes: which networks can be built, as data."""

from hwnas.models.spaces.files import find, load_space
from hwnas.models.spaces.space import Genotype, Option, SearchSpace, Space, When, closest

__all__ = ["Genotype", "Option", "SearchSpace", "Space", "When", "closest", "find", "load_space"]
