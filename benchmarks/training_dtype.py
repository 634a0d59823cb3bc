"""Training step in bfloat16 and in float32, by network.

    python -m benchmarks.training_dtype

The script samples random networks of the spaces for small images. For each network it prints the
multiply-accumulates of dense convolutions per output value, which is the criterion of
``train.dtype=auto``, and the ratio of the processor times of one thread. Weights are not updated.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import random
import time
from collections.abc import Callable

import torch

from hwnas.core import package, processes
from hwnas.models import families, spaces
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training import inference

_SPACES = ("dense_small", "mbconv_small", "mbconv_mixed", "cpu_small", "resnet_small", "vit_small")
_N_NETWORKS, _BATCH, _SECONDS, _RUNS = 5, 64, 0.25, 3
_SIGNATURE = Signature(1, 10)


def main() -> None:
    """Time all networks, print them by density, and print the speedup of ``train.dtype=auto``."""
    processes.tune_process()
    torch.set_num_threads(1)
    folder = package.ROOT / "search_spaces" / "baselines"
    names = [*_SPACES, *(str(path) for path in sorted(folder.glob("*.yaml")))]
    rows = []
    for name in names:
        space, rng = spaces.load_space(spaces.find(name)), random.Random(name)
        for _ in range(_N_NETWORKS):
            genotype = space.sample(rng)
            lowered = families.family_of(space).lower(space, genotype, _SIGNATURE)
            rows.append((inference.density(lowered), space.name, *_time_network(space, genotype)))
    for density, name, float32_s, bfloat16_s in sorted(rows):
        line = f"{name:20} {density:5.0f} {1e3 * float32_s:8.1f} ms {1e3 * bfloat16_s:8.1f} ms"
        print(f"{line}   ratio {float32_s / bfloat16_s:.2f}")
    auto_s = [min(f, b) if density >= inference.DENSE else f for density, _, f, b in rows]
    print(f"all: {sum(f for _, _, f, _ in rows) / sum(auto_s):.2f} times as fast with dtype auto")


def _time_network(space: SearchSpace, genotype: Genotype) -> tuple[float, float]:
    """Return the lowest processor seconds of a step in float32 and in bfloat16."""
    family = families.family_of(space)
    network = family.build(space, genotype, _SIGNATURE).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    side = family.resolution(space, genotype)
    images = torch.randn(_BATCH, 1, side, side).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (_BATCH,))

    def step(dtype: str) -> None:
        network.zero_grad()
        outputs = inference.forward(lambda: network(images), images, dtype)
        torch.autograd.backward(torch.nn.functional.cross_entropy(outputs, targets))

    float32_s, bfloat16_s = (
        min(_step_seconds(lambda d=dtype: step(d)) for _ in range(_RUNS))  # type: ignore[misc]
        for dtype in (inference.FLOAT32, inference.BFLOAT16)
    )
    return float32_s, bfloat16_s


def _step_seconds(step: Callable[[], None]) -> float:
    step()
    start, n_steps = time.process_time(), 0
    while time.process_time() < start + _SECONDS:
        step()
        n_steps += 1
    return (time.process_time() - start) / n_steps


if __name__ == "__main__":
    main()
