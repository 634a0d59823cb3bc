"""Time of a sandwich step of ``mbconv_small``, with and without ``processes.tune_process``.

    python -m benchmarks.sandwich_step

The script runs each variant in a separate process, interleaved: twice alone, and once next to a
second process that does the same. It prints the median time of a step in milliseconds.
"""

import os
import statistics
import subprocess
import sys
import time

VARIANTS = {"plain": "0", "tuned": "1"}
_BATCH, _STEPS = 128, 8


def step_times() -> None:
    """Print the median time of a step in this process."""
    from hwnas.core import processes

    if os.environ["HWNAS_BENCHMARK_TUNED"] == "1":
        processes.tune_process()
    import random

    import numpy as np
    import torch

    from hwnas.core.progress import NullProgress
    from hwnas.models import families, spaces
    from hwnas.models.graph import Signature
    from hwnas.training.batches import TrainingBatch
    from hwnas.training.data import DatasetConfig, load_data
    from hwnas.training.options import TrainingConfig
    from hwnas.training.sandwich import Sandwich, sample_sandwich

    space = spaces.load_space(spaces.find("mbconv_small"))
    family = families.get(space.family)
    torch.manual_seed(0)
    supernet = family.supernet(space, Signature(1, 10))
    supernet.module.train()
    optimiser = torch.optim.SGD(supernet.module.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(0, 10, (_BATCH,))
    images = torch.randint(0, 256, (_BATCH, 28, 28, 1), dtype=torch.uint8)
    batch = TrainingBatch(
        images, labels, labels, load_data(DatasetConfig("digits"), 28, NullProgress())
    )
    for size in map(int, space.choices["resolution"]):
        batch.at(size)
    sandwich = Sandwich(
        supernet, space, lambda genotype: family.resolution(space, genotype), TrainingConfig()
    )
    rng, times = random.Random(0), []
    for _ in range(_STEPS + 3):
        start = time.perf_counter()
        optimiser.zero_grad()
        sandwich.accumulate(sample_sandwich(space, 2, rng), batch)
        optimiser.step()
        times.append(time.perf_counter() - start)
    print(np.median(times[3:]) * 1e3)


def main() -> None:
    """Run both variants, and print their times and ratios."""
    results: dict[tuple[int, str], list[float]] = {}
    for n in (1, 1, 2):
        for name, tuned in VARIANTS.items():
            environment = os.environ | {"HWNAS_BENCHMARK_TUNED": tuned}
            command = [sys.executable, "-m", "benchmarks.sandwich_step", "measure"]
            children = [
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                for _ in range(n)
            ]
            milliseconds = [float(child.communicate()[0]) for child in children]
            results.setdefault((n, name), []).extend(milliseconds)
    for n, title in ((1, "1 process"), (2, "2 processes")):
        plain_ms, tuned_ms = (statistics.mean(results[n, name]) for name in VARIANTS)
        ratio = plain_ms / tuned_ms
        print(
            f"{title:<12} plain {plain_ms:6.0f} ms   tuned {tuned_ms:6.0f} ms   ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    step_times() if sys.argv[1:] == ["measure"] else main()
