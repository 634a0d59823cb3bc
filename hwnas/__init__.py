"""Hardware-constrained neural architecture search.

``hwnas.search(target="npu")`` returns what ``python -m hwnas search +target=npu`` finds. Nothing is
loaded before it is asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwnas.accuracy.base import Score as Score
    from hwnas.api.verbs import compare as compare
    from hwnas.api.verbs import load as load
    from hwnas.api.verbs import profile as profile
    from hwnas.api.verbs import search as search
    from hwnas.api.verbs import train as train
    from hwnas.api.verbs import verify as verify
    from hwnas.cost.base import Cost as Cost
    from hwnas.errors import HwnasError as HwnasError
    from hwnas.figure import Figure as Figure

__version__ = "0.1.0"

_PLACES = {
    "Cost": "cost.base",
    "Figure": "figure",
    "HwnasError": "errors",
    "Score": "accuracy.base",
    **dict.fromkeys(("compare", "load", "profile", "search", "train", "verify"), "api.verbs"),
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'hwnas' has no attribute '{name}'")
    return getattr(importlib.import_module(f"hwnas.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
