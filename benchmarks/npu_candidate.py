"""Time to evaluate the costs of one candidate, from a genotype to Vela's figures.

    python -m benchmarks.npu_candidate [n]

For each Ethos-U target, the script prints the milliseconds per candidate for writing the TFLite
file and for compiling it: the median, and the 5th and 95th percentiles.
"""

import random
import sys
import time

import numpy as np

from hwnas.core import processes
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.models import families, spaces
from hwnas.models.graph import Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from tests.conftest import target

TARGETS = ("npu", "ethos_u55_256", "ethos_u65_256", "ethos_u85_256")


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    processes.tune_process()
    space = spaces.load_space(spaces.find("mbconv_small"))
    family, signature = families.get(space.family), Signature(1, 10)
    rng = random.Random(0)
    genotypes = [space.sample(rng) for _ in range(n)]
    print(f"{n} random genotypes of {space.name}; milliseconds per candidate: median (5 %, 95 %)")
    for name in TARGETS:
        device = target(name)
        times = []
        for genotype in genotypes:
            start = time.perf_counter()
            lowered = family.lower(space, genotype, signature)
            tflite = write_tflite(random_int8_network(lowered))
            compile_start = time.perf_counter()
            compile_tflite(tflite, lowered, device)
            times.append((compile_start - start, time.perf_counter() - compile_start))
        milliseconds = np.array(times) * 1e3
        columns = {"write": milliseconds[:, 0], "compile": milliseconds[:, 1]}
        columns["total"] = milliseconds.sum(axis=1)
        parts = [
            f"{label} {np.median(v):5.1f} ({np.percentile(v, 5):.1f}, {np.percentile(v, 95):.1f})"
            for label, v in columns.items()
        ]
        print(f"{name:<15}{'   '.join(parts)}")


if __name__ == "__main__":
    main()
