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
    """Time the largest network of ``mbconv_small``; print the fastest steps and median ratios."""
    processes.tune_process()
    torch.set_num_threads(1)
    space, signature = spaces.load_space(spaces.find("mbconv_small")), Signature(1, 10)
    family, genotype = families.get(space.family), space.largest()
    side = family.resolution(space, genotype)
    images = torch.randn(_BATCH, 1, side, side).to(memory_format=torch.channels_last)
    plain = family.build(space, genotype, signature)
    lowered = family.lower(space, genotype, signature)
    plain.train()(images)
    folded = fold_batch_norm(family.build(space, genotype, signature).eval())
    int8 = simulation.SimulatedInt8(folded, lowered, calibrate(folded, lowered, images))
    for network in (plain, int8):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    hwnas_fake_quantise = simulation.fake_quantise
    networks: dict[str, tuple[nn.Module, Callable[[Tensor, QuantisationScale], Tensor]]] = {
        "float32": (plain, hwnas_fake_quantise),
        "int8": (int8, hwnas_fake_quantise),
        "int8, torch's rounding": (int8, _torch_fake_quantise),
    }
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(_ROUNDS + 1):
        for name, (network, fake_quantise) in networks.items():
            name_in_module = hwnas_fake_quantise.__name__
            with unittest.mock.patch.object(simulation, name_in_module, fake_quantise):
                seconds[name].append(_step_s(network.train(), images))
    for name, times in seconds.items():
        ratios = [s / base for s, base in zip(times, seconds["float32"], strict=True)]
        fastest, ratio = 1e3 * min(times), statistics.median(ratios[1:])
        print(f"{name:25} {fastest:6.0f} ms   {ratio:.2f} of float32")


def _torch_fake_quantise(x: Tensor, scale: QuantisationScale) -> Tensor:
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
