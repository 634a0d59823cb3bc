"""Reduction of NPU costs by removing weights that are multiplied only by padding.

    python -m benchmarks.trimmed_windows [SPACE ...]

The script compiles random networks of search spaces with Vela for the target ``npu``, with and
without the trimming of ``hwnas/models/int8/tflite.py``. It prints the number of trimmed networks,
and the minimum, quartiles and maximum of their reduction in latency and flash.
"""

import random
import sys
from collections.abc import Callable
from unittest import mock

import numpy as np
import yaml

from hwnas.core import package
from hwnas.hardware.backends.vela.compiler import estimate
from hwnas.hardware.target import Target, from_facts
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Graph, Signature
from hwnas.models.int8 import tflite
from hwnas.models.int8.quantised_network import QuantisedOp, random_int8_network
from hwnas.models.int8.tflite import trim_kernel

_SPACES = ("dense_packed", "dense_small", "mbconv_small")
_N_NETWORKS = 400
_N_CHEAPEST = 100  # those with the fewest MACs, which are also reported separately


def main() -> None:
    """Compile random networks of each space, and print the reductions."""
    file = package.ROOT / "conf" / "target" / "npu.yaml"
    target = from_facts(yaml.safe_load(file.read_text("utf-8")))
    for name in sys.argv[1:] or _SPACES:
        space = spaces.load_space(spaces.find(name))
        family, rng = families.family_of(space), random.Random(0)
        genotypes = [space.sample(rng) for _ in range(_N_NETWORKS)]
        networks = [annotations.lower(family, space, g, Signature(1, 10)) for g in genotypes]
        networks.sort(key=lambda lowered: sum(node.op.n_macs for node in lowered))
        _print_reductions(f"{name}, all", networks, target)
        _print_reductions(f"{name}, cheapest", networks[:_N_CHEAPEST], target)


def _print_reductions(title: str, networks: list[Graph], target: Target) -> None:
    trimmed = [lowered for lowered in networks if _is_trimmed(lowered)]
    before = [_cost(network, target, _keep) for network in trimmed]
    after = [_cost(network, target, trim_kernel) for network in trimmed]
    print(f"{title}: {len(trimmed)} of {len(networks)} are trimmed")
    if trimmed:
        reductions = (np.array(before) / np.array(after)).T
        for cost, ratios in zip(("latency", "flash"), reductions, strict=True):
            quantiles = " ".join(f"{q:.2f}" for q in np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1]))
            print(f"    {cost} reduction, times: {quantiles}")


def _keep(quantised: QuantisedOp) -> QuantisedOp:
    return quantised


def _is_trimmed(lowered: Graph) -> bool:
    return any(trim_kernel(op) is not op for op in random_int8_network(lowered).ops)


def _cost(
    lowered: Graph, target: Target, trim: Callable[[QuantisedOp], QuantisedOp]
) -> tuple[float, float]:
    """Return milliseconds and KiB of flash of a network with the given trimming."""
    with mock.patch.object(tflite, trim_kernel.__name__, trim):
        figures = estimate(lowered, target).figures
    return figures["latency_ms"].value, figures["flash_kib"].value


if __name__ == "__main__":
    main()
