"""Time of quantisation-aware training compared with float32 and with torch's fake quantisation.

python -m benchmarks.int8_training
"""

import statistics
import time
import unittest.mock
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.core import processes
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Signature
from hwnas.models.int8 import simulation
from hwnas.models.int8.quantisation import calibrate
from hwnas.models.int8.quantised_network import QuantisationScale

_ROUNDS, _STEPS, _BATCH = 15, 2, 64


def main() -> None:
    """Print the fastest step of the largest network of ``mbconv_small``, and median ratios."""
    processes.tune_process()
    torch.set_num_threads(1)
    where, task = spaces.load_space(spaces.find("mbconv_small")), Signature(1, 10)
    family, genotype = families.get(where.family), where.largest()
    side = family.resolution(where, genotype)
    images = torch.randn(_BATCH, 1, side, side).to(memory_format=torch.channels_last)
    plain = family.build(where, genotype, task)
    lowered = family.lower(where, genotype, task)
    plain.train()(images)
    folded = fold_batch_norm(family.build(where, genotype, task).eval())
    int8 = simulation.SimulatedInt8(folded, lowered, calibrate(folded, lowered, images))
    for network in (plain, int8):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours = simulation.fake_quantise
    networks: dict[str, tuple[nn.Module, Callable[[Tensor, QuantisationScale], Tensor]]] = {
        "float32": (plain, ours),
        "int8": (int8, ours),
        "int8 by torch's rounding": (int8, _by_torch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(_ROUNDS + 1):
        for name, (network, rounded) in networks.items():
            with unittest.mock.patch.object(simulation, "rounded", rounded):
                seconds[name].append(_step_s(network.train(), images))
    for name, found in seconds.items():
        ratios = [s / base for s, base in zip(found, seconds["float32"], strict=True)]
        fastest, ratio = 1e3 * min(found), statistics.median(ratios[1:])
        print(f"{name:25} {fastest:6.0f} ms   {ratio:.2f} of float32")


def _by_torch(x: Tensor, scale: QuantisationScale) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale.scale, scale.zero_point, -128, 127)


def _step_s(network: nn.Module, images: Tensor) -> float:
    labels = torch.arange(len(images)) % 10
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)
    start = time.perf_counter()
    for _ in range(_STEPS):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(network(images), labels))
        optimiser.step()
    return (time.perf_counter() - start) / _STEPS


if __name__ == "__main__":
    main()
