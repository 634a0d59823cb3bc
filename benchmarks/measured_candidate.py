"""Time of a measured candidate: tuning an operator, timing a network, looking up a table.

    python benchmarks/measured_candidate.py

The script uses the CPU of this machine with TVM on one thread, and random networks of
``mbconv_small``.
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.costs.table_cost import latency_features
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import PowerModel, Remote, Target
from hwnas.hardware.timing import TimingConfig
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, OpSpec, Signature, distinct_ops, fuse

N_NETWORKS, N_PLANS = 10, 6


def main() -> None:
    space, family = spaces.load_space(spaces.find("mbconv_small")), families.get("mbconv")
    signature = Signature(1, 10)
    rng = random.Random(0)
    genotypes = [space.sample(rng) for _ in range(N_NETWORKS)]
    networks = [fuse(family.lower(space, g, signature), "float32") for g in genotypes]
    settings: dict[str, Any] = {"tvm": TvmSettings()}
    target = Target(
        "cpu", "this CPU", "", "", runtime="tvm", dtype="float32", **settings,
        power=PowerModel(1, 1, "not used"),
    )  # fmt: skip
    with Worker(target, TimingConfig(), Remote(), 120) as worker:
        start = time.perf_counter()
        worker.sentinel_ms()
        print(f"start of the worker process: {time.perf_counter() - start:.1f} s")
        plans, seconds = {}, []
        for op in distinct_ops(networks):
            start = time.perf_counter()
            plans[op] = worker.tune(op, N_PLANS)
            seconds.append(time.perf_counter() - start)
        print(_summary(f"tuning an operator ({len(seconds)}, {N_PLANS} plans)", seconds))
        timings = worker.time_operators(list(plans.items()))
        network_seconds = [
            _elapsed_s(partial(worker.time_network, network, plans)) for network in networks
        ]
        print(_summary("a network of compiled operators, linked and timed", network_seconds))
    latencies = {op: t.median_ms for op, t in zip(plans, timings, strict=True)}
    print(f"a look-up of a network's operators: {_lookup_s(networks, latencies) * 1e6:.0f} us")


def _lookup_s(networks: list[Graph], latencies: dict[OpSpec, float]) -> float:
    repeats = []
    for _ in range(20):
        start = time.perf_counter()
        for net in networks:
            latency_features(net, latencies)
        repeats.append((time.perf_counter() - start) / len(networks))
    return statistics.median(repeats)


def _elapsed_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _summary(title: str, seconds: list[float]) -> str:
    return f"{title}: median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s"


if __name__ == "__main__":
    main()
