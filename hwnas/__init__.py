"""Hardware-constrained neural architecture search.

``hwnas.search(target="npu")`` returns what ``python -m hwnas search +target=npu`` finds. Nothing is
loaded before it is asked for.
"""

import importlib
from typing import TYPE_CHECKING

from hwnas.version import __version__ as __version__

if TYPE_CHECKING:
    from hwnas.api.exports import verify as verify
    from hwnas.api.verbs import compare as compare
    from hwnas.api.verbs import load as load
    from hwnas.api.verbs import plan as plan
    from hwnas.api.verbs import profile as profile
    from hwnas.api.verbs import replan as replan
    from hwnas.api.verbs import search as search
    from hwnas.api.verbs import serve_check as serve_check
    from hwnas.api.verbs import simulate as simulate
    from hwnas.api.verbs import split as split
    from hwnas.api.verbs import train as train
    from hwnas.cost.base import Cost as Cost
    from hwnas.errors import HwnasError as HwnasError
    from hwnas.figure import Figure as Figure
    from hwnas.tasks.score import Score as Score

_PLACES = {
    "Cost": "cost.base",
    "Figure": "figure",
    "HwnasError": "errors",
    "Score": "tasks.score",
    "verify": "api.exports",
    **dict.fromkeys(
        (
            "compare",
            "load",
            "plan",
            "profile",
            "replan",
            "search",
            "serve_check",
            "simulate",
            "split",
            "train",
        ),
        "api.verbs",
    ),
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'hwnas' has no attribute '{name}'")
    return getattr(importlib.import_module(f"hwnas.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
