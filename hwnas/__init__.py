"""Hardware-constrained neural architecture search.

``hwnas.search(target="npu")`` returns what ``hwnas search +target=npu`` finds. Modules are
imported when one of their names is first used.
"""

import importlib
from typing import TYPE_CHECKING

from hwnas.core.package import __version__ as __version__

if TYPE_CHECKING:
    from hwnas.core.errors import ConfigError as ConfigError
    from hwnas.core.errors import HwnasError as HwnasError
    from hwnas.core.quantity import Quantity as Quantity
    from hwnas.hardware.costs.cost_model import Cost as Cost
    from hwnas.nas.pareto.sampler import ParetoSampler as ParetoSampler
    from hwnas.tasks.base import Score as Score
    from hwnas.workflows.python_api import compare as compare
    from hwnas.workflows.python_api import load as load
    from hwnas.workflows.python_api import plan as plan
    from hwnas.workflows.python_api import profile as profile
    from hwnas.workflows.python_api import replan as replan
    from hwnas.workflows.python_api import search as search
    from hwnas.workflows.python_api import serve_check as serve_check
    from hwnas.workflows.python_api import simulate as simulate
    from hwnas.workflows.python_api import split as split
    from hwnas.workflows.python_api import train as train
    from hwnas.workflows.python_api import verify as verify

_PLACES = {
    "Cost": "hardware.costs.cost_model",
    "Quantity": "core.quantity",
    **dict.fromkeys(("ConfigError", "HwnasError"), "core.errors"),
    "ParetoSampler": "nas.pareto.sampler",
    "Score": "tasks.base",
    **dict.fromkeys(
        (
            "compare", "load", "plan", "profile", "replan", "search", "serve_check", "simulate",
            "split", "train", "verify",
        ),
        "workflows.python_api",
    ),
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'hwnas' has no attribute '{name}'")
    return getattr(importlib.import_module(f"hwnas.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
