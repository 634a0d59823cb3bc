"""Checks of class labels: several labels for an image, missing labels, wrong types."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hwnas.core.errors import DataError


def check_labels(where: str, labels: Sequence[Any], names: Sequence[str] | None) -> None:
    """Raise ``DataError`` for labels that are missing, of a wrong type or out of range."""
    first, joined = dict[Any, int](), _joined_labels(labels)
    for i, value in enumerate(labels):
        is_joined = isinstance(value, str) and value in joined
        if is_joined or isinstance(value, list | tuple | np.ndarray):
            raise DataError(
                f"{where}, row {i} has several labels ({str(value)[:60]}). Multi-label data are "
                "not supported: give one whole number or text per image."
            )
        if not isinstance(value, int | str | None):
            raise DataError(
                f"{where}, row {i} has the label {str(value)[:60]}: must be a whole number or "
                "text. For other numbers set task=regression."
            )
        first.setdefault(value, i)
    for value, i in first.items():
        row = f"{where}, row {i}"
        if value is None:
            raise DataError(f"{row} has no label. Every image needs one.")
        if not isinstance(value, str) and value < 0:
            raise DataError(
                f"{row} has the label {value}: must not be negative. Label or remove these images."
            )
        if names and (isinstance(value, str) or value >= len(names)):
            raise DataError(
                f"{row} has the label {value!r}: must be 0 to {len(names) - 1}, as there are "
                f"{len(names)} names of classes. Correct the label."
            )


def _joined_labels(labels: Iterable[object]) -> set[str]:
    """Return the texts that list several labels.

    Texts with ``|`` or ``;`` that share a part with another text, such as ``cat|dog`` besides
    ``cat``; and texts with commas, whose parts are all labels. Names of classes may have commas.
    """
    texts = {label for label in labels if isinstance(label, str)}
    parts = {label: {part.strip() for part in re.split(r"[|;]", label)} for label in texts}
    counts = Counter(part for label_parts in parts.values() for part in label_parts)
    with_commas = {
        text for text in texts if "," in text and {p.strip() for p in text.split(",")} <= texts
    }
    return with_commas | {
        name
        for name, labels_of_name in parts.items()
        if len(labels_of_name) > 1 and any(counts[part] > 1 for part in labels_of_name)
    }
