"""Error of the simulator compared with queueing theory, and its speed.

    python -m experiments.fleet.simulator

Writes simulator.csv: the mean time in a queue relative to theory, and the millions of requests that
this process simulates per second in a fleet of 48 replicas with cascades and failures.
"""

import csv
import math
import time
from pathlib import Path

import numpy as np

from hwnas.fleet import events

HERE = Path(__file__).parent
N, LOADS, SERVERS = 4_000_000, (0.3, 0.5, 0.7, 0.8, 0.9), (1, 2, 4, 16)


def mean(load: float, servers: int, noise: events.Floats, seed: int) -> float:
    """Return the simulated mean time in a queue, in service times."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / (load * servers), N))
    pools, routes = events.single_pool(np.ones(1), 0.0, servers, noise)
    outcomes = events.simulate(arrivals, np.zeros(N, np.int32), pools, routes, seed=seed)
    return float(outcomes.latency_s[N // 10 :].mean())


def erlang_c(load: float, servers: int) -> float:
    """Return the mean time in an M/M/c queue, in service times."""
    a = load * servers
    last = a**servers / math.factorial(servers) / (1 - load)
    waits = last / (sum(a**k / math.factorial(k) for k in range(servers)) + last)
    return 1 + waits / (servers * (1 - load))


def speed() -> float:
    """Return the number of requests that this process simulates per second of CPU time."""
    n_pools, n = 6, 3_000_000
    service = np.stack([(np.arange(1, 9) * 0.0005 + 0.001) * (p + 1) for p in range(n_pools)])
    eight = np.full(n_pools, 8, np.int32)
    pools = events.PoolArrays(
        service, eight, np.zeros(n_pools), eight, events.lognormal_noise(0.1), np.zeros(n_pools)
    )
    request_class = np.repeat(np.arange(4), 2).astype(np.int32)
    routes = events.RouteArrays(
        request_class, np.full(8, 0.5), np.ones(8), np.array([0, 1, 1, 2, 2, 3, 0, 3], np.int32),
        np.array([4, -1, 5, -1, -1, -1, 5, 4], np.int32), np.full(8, 0.2), np.full(8, 0.002),
        np.full(8, 0.002),
    )  # fmt: skip
    rng = np.random.default_rng(3)
    arrivals, route = np.cumsum(rng.exponential(1 / 6000, n)), rng.integers(0, 8, n)
    failures = events.IncidentArrays(
        np.arange(6.0) + 20, np.arange(0, 48, 8).astype(np.int32), np.zeros(6, np.int32), np.ones(6)
    )
    events.simulate(arrivals[:1000], route[:1000].astype(np.int32), pools, routes)  # compiles
    start = time.process_time()
    events.simulate(arrivals, route.astype(np.int32), pools, routes, failures)
    return n / (time.process_time() - start)


def main() -> None:
    """Compare with theory, measure the speed, and write the table."""
    quantiles = (np.arange(1 << 20) + 0.5) / (1 << 20)
    memoryless = -np.log1p(-quantiles)
    memoryless /= memoryless.mean()
    rows = []
    for load in LOADS:
        ratio = mean(load, 1, np.ones(1), 1) / (1 + load / 2 / (1 - load))
        rows.append({"queue": "M/D/1", "load": load, "simulated_over_theory": round(ratio, 5)})
        for servers in SERVERS:
            ratio = mean(load, servers, memoryless, 1) / erlang_c(load, servers)
            queue = f"M/M/{servers}"
            rows.append({"queue": queue, "load": load, "simulated_over_theory": round(ratio, 5)})
    speed_m = round(speed() / 1e6, 2)
    rows.append({"queue": "48 replicas, million requests/s of CPU time", "load": "",
                 "simulated_over_theory": speed_m})  # fmt: skip
    with (HERE / "simulator.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{speed_m} million requests per second of CPU time")


if __name__ == "__main__":
    main()
