"""Time of a sandwich step of ``mbconv_small``, with and without ``processes.tune_process``.

python -m benchmarks.sandwich_step runs each variant in a separate process, interleaved, twice alone
and once with a second process that does the same. Prints the median milliseconds of a step.
"""

import os
import statistics
import subprocess
import sys
import time

VARIANTS = {"plain": "0", "tuned": "1"}
_BATCH, _STEPS = 128, 8


def step_times() -> None:
    from hwnas.core import processes as host

    if os.environ["HWNAS_BENCHMARK_TUNED"] == "1":
        host.tune_process()
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

    small = spaces.load_space(spaces.find("mbconv_small"))
    family = families.get(small.family)
    torch.manual_seed(0)
    supernet = family.supernet(small, Signature(1, 10))
    supernet.module.train()
    optimiser = torch.optim.SGD(supernet.module.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(0, 10, (_BATCH,))
    images = torch.randint(0, 256, (_BATCH, 28, 28, 1), dtype=torch.uint8)
    batch = TrainingBatch(
        images, labels, labels, load_data(DatasetConfig("digits"), 28, NullProgress())
    )
    for size in map(int, small.choices["resolution"]):
        batch.at(size)
    sandwich = Sandwich(
        supernet, small, lambda genotype: family.resolution(small, genotype), TrainingConfig()
    )
    rng, times = random.Random(0), []
    for _ in range(_STEPS + 3):
        start = time.perf_counter()
        optimiser.zero_grad()
        sandwich.accumulate(sample_sandwich(small, 2, rng), batch)
        optimiser.step()
        times.append(time.perf_counter() - start)
    print(np.median(times[3:]) * 1e3)


def main() -> None:
    results: dict[tuple[int, str], list[float]] = {}
    for n in (1, 1, 2):
        for name, tuned in VARIANTS.items():
            environment = os.environ | {"HWNAS_BENCHMARK_TUNED": tuned}
            command = [sys.executable, "-m", "benchmarks.sandwich_step", "measure"]
            processes = [
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                for _ in range(n)
            ]
            milliseconds = [float(process.communicate()[0]) for process in processes]
            results.setdefault((n, name), []).extend(milliseconds)
    for n, load in ((1, "alone"), (2, "two at once")):
        slow, fast = (statistics.mean(results[n, name]) for name in VARIANTS)
        print(f"{load:<12} plain {slow:6.0f} ms   tuned {fast:6.0f} ms   ratio {slow / fast:.2f}")


if __name__ == "__main__":
    step_times() if sys.argv[1:] == ["measure"] else main()
