"""What names of columns say: units, and the order of numbered choices."""

import re

from hwnas.tasks.metrics import metric_of, quality_names


def is_share(name: str) -> bool:
    """Return whether a column is a metric of at most 1, such as an accuracy of a dtype."""
    shares = [quality for quality in quality_names() if metric_of(quality).perfect == 1]
    plain = name.rpartition(".")[2].removeprefix("verified_")
    return plain.startswith(tuple(shares))


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts names with numbers: ``blocks.2`` before ``blocks.10``."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
