"""Networks whose answers, once they are trained, cannot be told from guesses.

``watch`` stops a training that learns nothing, but none of fewer steps than its window has.
"""

from collections.abc import Mapping

from hwnas.metrics import column
from hwnas.tasks.base import Task
from hwnas.training.data import ImageData


def guessing(task: Task, found: Mapping[str, float], n: int) -> dict[str, float]:
    """Return which networks do not surely answer better than guesses do.

    Args:
        task: What they are for.
        found: The metric on ``n`` images, by what a network is called.
        n: How many.
    """
    return {name: value for name, value in found.items() if not task.has_learned(value * n, n)}


def told(data: ImageData, found: Mapping[str, float], cure: str) -> list[str]:
    """Return in a sentence which networks may be guessing on validation; none where none is.

    Args:
        data: That networks were trained on.
        found: The metric on the validation split, by what a network is called.
        cure: Options that train longer.
    """
    n, label = len(data.validation), column(data.task.metric).label
    each = [f"{name} ({label} {v:.4g})" for name, v in guessing(data.task, found, n).items()]
    return [
        f"No better than by guessing, as far as {n:,} validation images tell: {', '.join(each)}. "
        f"Train longer: {cure}."
    ] * bool(each)
