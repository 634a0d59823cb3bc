"""What a plan makes least; needs nothing, so that options are checked before a solver is loaded."""

from typing import Literal, get_args

Objective = Literal["cost", "carbon", "energy"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
