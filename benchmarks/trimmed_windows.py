"""NPU cost of networks without the weights that read only padding.

python -m benchmarks.trimmed_windows [SPACE ...] compiles random networks of search spaces with Vela
for the target ``npu``, with and without the trimming of ``hwnas/models/int8/tflite.py``. It prints
the number of trimmed networks, and the quartiles and extremes of their reduction in latency and
flash.
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
_DRAWN, _CHEAP = 400, 0.25  # networks; the fraction of them, by MACs, with a separate result


def main() -> None:
    """Compile, and print the results."""
    file = package.ROOT / "conf" / "target" / "npu.yaml"
    target = from_facts(yaml.safe_load(file.read_text("utf-8")))
    for name in sys.argv[1:] or _SPACES:
        found = spaces.load_space(spaces.find(name))
        family, rng = families.family_of(found), random.Random(0)
        genotypes = [found.sample(rng) for _ in range(_DRAWN)]
        networks = [annotations.lower(family, found, g, Signature(1, 10)) for g in genotypes]
        networks.sort(key=lambda lowered: sum(node.op.n_macs for node in lowered))
        for some, which in ((networks, "all"), (networks[: int(_CHEAP * _DRAWN)], "cheapest")):
            _say(f"{name}, {which}", some, target)


def _say(title: str, networks: list[Graph], target: Target) -> None:
    changed = [lowered for lowered in networks if _is_trimmed(lowered)]
    before, after = ([_cost(each, target, how) for each in changed] for how in (_same, trim_kernel))
    print(f"{title}: {len(changed)} of {len(networks)} are trimmed")
    if changed:
        for what, ratios in zip(("ms", "KiB"), (np.array(before) / np.array(after)).T, strict=True):
            quantiles = " ".join(f"{q:.2f}" for q in np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1]))
            print(f"    times less {what}: {quantiles}")


def _same(quantised: QuantisedOp) -> QuantisedOp:
    return quantised


def _is_trimmed(lowered: Graph) -> bool:
    return any(trim_kernel(op) is not op for op in random_int8_network(lowered).ops)


def _cost(
    lowered: Graph, target: Target, trim: Callable[[QuantisedOp], QuantisedOp]
) -> tuple[float, float]:
    """Return milliseconds and KiB of flash of a network with the given trimming."""
    with mock.patch.object(tflite, "trimmed", trim):
        figures = estimate(lowered, target).figures
    return figures["latency_ms"].value, figures["flash_kib"].value


if __name__ == "__main__":
    main()
