"""Which candidate another one must not be worse than, to enter the front."""

from collections.abc import Sequence

from hwnas.figure import Figures
from hwnas.metrics import column, paid, quality
from hwnas.results import Candidate
from hwnas.tasks.score import Incumbent

_ENOUGH = 5  # networks read whole before any reading stops: the others are predicted from them
_KEPT = 100  # of those, the latest


def incumbent(
    candidates: Sequence[Candidate], costs: Figures, objectives: Sequence[str]
) -> Incumbent | None:
    """Return the candidate that answers best of those read whole that cost no more.

    What is worse than it is dominated. ``None`` where nothing is as cheap, or where too few were
    read whole to predict from.
    """
    complete = (c for c in reversed(candidates) if c.state == "complete")
    whole = [*{c.id: c for c in complete}.values()][::-1]  # a repeated one counts once, read first
    metric = quality(objectives)
    # A target that cannot run a network says no costs of it.
    signs = {n: -1.0 if column(n).maximise else 1.0 for n in paid(objectives) if n in costs}
    cheaper = [
        c
        for c in whole
        if all(
            n in c.figures and s * c.figures[n].value <= s * costs[n].value
            for n, s in signs.items()
        )
    ]
    if len(whole) < _ENOUGH or not cheaper:
        return None
    of = max if column(metric).maximise else min
    best = of(cheaper, key=lambda c: c.figures[metric].value)
    latest = whole[-_KEPT:]
    return Incumbent(
        best.per_image,
        tuple(c.per_image for c in latest),
        best.figures[metric].value,
        tuple(c.details for c in latest),
    )
