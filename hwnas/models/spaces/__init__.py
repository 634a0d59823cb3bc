"""Search spaces and genotypes."""

from hwnas.models.spaces.files import find, load_space
from hwnas.models.spaces.space import Genotype, Option, SearchSpace, Space, When, closest

__all__ = ["Genotype", "Option", "SearchSpace", "Space", "When", "closest", "find", "load_space"]
