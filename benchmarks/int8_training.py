"""Times training for int8 against training in float32, and against torch's own simulated rounding.

python -m benchmarks.int8_training
"""

import statistics
import time
import unittest.mock
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas import families, space
from hwnas.families.blocks import fold_batch_norm
from hwnas.int8 import simulated
from hwnas.int8.network import Scale
from hwnas.int8.quantise import calibrate
from hwnas.op import Task

_ROUNDS, _STEPS, _BATCH = 8, 4, 64


def main() -> None:
    """Print milliseconds of a step of the largest network of ``mbconv_small``."""
    where, task = space.load(space.find("mbconv_small")), Task(1, 10)
    family, genotype = families.get(where.family), where.largest()
    side = family.resolution(where, genotype)
    images = torch.randn(_BATCH, 1, side, side).to(memory_format=torch.channels_last)
    plain = family.build(where, genotype, task).to(memory_format=torch.channels_last)
    lowered = family.lower(where, genotype, task)
    plain.train()(images)
    folded = fold_batch_norm(family.build(where, genotype, task).eval())
    int8 = simulated.Simulated(folded, lowered, calibrate(folded, lowered, images))
    int8.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours = simulated.rounded
    networks: dict[str, tuple[nn.Module, Callable[[Tensor, Scale], Tensor]]] = {
        "float32": (plain, ours),
        "int8": (int8, ours),
        "int8 by torch's rounding": (int8, _by_torch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(_ROUNDS + 1):
        for name, (network, rounded) in networks.items():
            with unittest.mock.patch.object(simulated, "rounded", rounded):
                seconds[name].append(_step_s(network.train(), images))
    base = statistics.median(seconds["float32"][1:])
    for name, found in seconds.items():
        median = statistics.median(found[1:])
        print(f"{name:25} {1e3 * median:6.0f} ms   {median / base:.2f} of float32")


def _by_torch(x: Tensor, scale: Scale) -> Tensor:
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
