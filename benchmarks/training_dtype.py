"""Training step in bfloat16 and in float32, by network.

python -m benchmarks.training_dtype samples random networks of the spaces for small images. For each
it prints the multiply-accumulates of dense convolutions per output value, the criterion of
``train.dtype=auto``, and the ratio of processor times of one thread. Nothing is trained.
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
_EACH, _BATCH, _SECONDS, _RUNS = 5, 64, 0.25, 3
_SIGNATURE = Signature(1, 10)


def main() -> None:
    """Time all networks in the order of their density; print the gain of ``train.dtype=auto``."""
    processes.tune_process()
    torch.set_num_threads(1)
    folder = package.ROOT / "search_spaces" / "baselines"
    names = [*_SPACES, *(str(path) for path in sorted(folder.glob("*.yaml")))]
    rows = []
    for name in names:
        found, rng = spaces.load_space(spaces.find(name)), random.Random(name)
        for _ in range(_EACH):
            genotype = found.sample(rng)
            lowered = families.family_of(found).lower(found, genotype, _SIGNATURE)
            rows.append((inference.density(lowered), found.name, *_seconds(found, genotype)))
    for density, name, plain, short in sorted(rows):
        line = f"{name:20} {density:5.0f} {1e3 * plain:8.1f} ms {1e3 * short:8.1f} ms"
        print(f"{line}   ratio {plain / short:.2f}")
    chosen = [min(p, s) if d >= inference.DENSE else p for d, _, p, s in rows]
    print(f"all: {sum(p for _, _, p, _ in rows) / sum(chosen):.2f} times as fast with dtype auto")


def _seconds(found: SearchSpace, genotype: Genotype) -> tuple[float, float]:
    """Return the minimum processor seconds of a step in float32 and in bfloat16."""
    family = families.family_of(found)
    network = family.build(found, genotype, _SIGNATURE).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    size = family.resolution(found, genotype)
    images = torch.randn(_BATCH, 1, size, size).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (_BATCH,))

    def step(dtype: str) -> None:
        network.zero_grad()
        outputs = inference.forward(lambda: network(images), images, dtype)
        torch.autograd.backward(torch.nn.functional.cross_entropy(outputs, targets))

    plain, short = (
        min(_once(lambda d=dtype: step(d)) for _ in range(_RUNS))  # type: ignore[misc]
        for dtype in (inference.FLOAT32, inference.BFLOAT16)
    )
    return plain, short


def _once(step: Callable[[], None]) -> float:
    step()
    began, n = time.process_time(), 0
    while time.process_time() < began + _SECONDS:
        step()
        n += 1
    return (time.process_time() - began) / n


if __name__ == "__main__":
    main()
