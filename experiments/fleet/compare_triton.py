"""Latencies of a real Triton server compared with those of the simulator.

    pip install --no-deps nvidia-pytriton && python -m experiments.fleet.compare_triton sleep
    python -m experiments.fleet.compare_triton network

The server runs one of two models:

- ``sleep``: a batch of n images takes 40 + 10 n ms (``sleeping_model.py``), independent of the
  speed of this machine. Triton forms the batches.
- ``network``: the medium network of ``mbconv_224`` with onnxruntime on one thread. It needs an idle
  machine, and onnxruntime in the Python environment of ``--python``.

As in ``serve-check``, the server is profiled, and the simulator gets the profile and the scheduled
times of the requests. Rows are written to ``served_<model>.csv``, and with a wait to
``served_<model>_<wait>ms.csv``.
"""

import argparse
import csv
import sys
from pathlib import Path

from rich.console import Console

from hwnas.cli.console import Phases
from hwnas.fleet.deployment import onnx_served, servers, validation
from hwnas.fleet.deployment.pools import DeployedPool, PoolModelSource
from hwnas.fleet.deployment.validation import ServeChecker, ServeCheckOptions, pools_to_serve
from hwnas.fleet.plan import PoolType
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.models import families, spaces
from hwnas.models.graph import Signature, fuse
from hwnas.models.onnx.writer import write_fp32

_HERE = Path(__file__).parent
_LOADS = {"sleep": (0.3, 0.6, 0.8, 0.9), "network": (0.3, 0.6, 0.8)}
_DRIFT = 0.05
_SPACES = {"sleep": "tiny", "network": "mbconv_224"}
_BATCH, _REPEATS = 8, 3


def pool(name: str, wait_ms: float) -> DeployedPool:
    """Return a pool of one replica of a space's medium network, with random weights."""
    space = spaces.load_space(spaces.find(name))
    medium = {choice: options[len(options) // 2] for choice, options in space.choices.items()}
    graph = families.get(space.family).lower(space, space.genotype(medium), Signature(1, 10))
    graph = fuse(graph, "float32")
    model = onnx_served.to_served_model(write_fp32(graph, random_weights(graph, 0)))
    pool_type = PoolType("cpu", name, _BATCH, wait_ms, 1e3, 1.0, 1, None, {}, 0.0, "")
    return DeployedPool(
        name.replace("_", "-"), name, pool_type, PoolModelSource(), model, (1,), (1.0,), 0, 0.0
    )


def main() -> None:
    """Profile the server, send requests, and write measured and simulated latencies."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=[*_LOADS])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of each load and repeat"
    )
    parser.add_argument(
        "--drift", type=float, default=_DRIFT, help="allowed drift of the machine's speed"
    )
    parser.add_argument("--wait", type=float, default=0.0, help="wait for incomplete batches in ms")
    parser.add_argument(
        "--python", default=sys.executable, help="Python interpreter with nvidia-pytriton"
    )
    arguments = parser.parse_args()
    if arguments.model == "sleep":
        servers._MODEL = _HERE / "sleeping_model.py"
        # The speed of the sleeping model is constant.
        validation._constant_work = lambda n: 1e-3 * n
    options = ServeCheckOptions(
        _LOADS[arguments.model], arguments.seconds, _REPEATS, arguments.drift, 3, 0
    )
    deployed_pool = pool(_SPACES[arguments.model], arguments.wait)
    packages = servers.probe(arguments.python)
    if arguments.model == "network":  # raises an error if a package is missing
        servers.choose_server("triton", arguments.python, packages)
    with (
        Phases(Console()) as phases,
        servers.run_server(
            "triton", arguments.python, packages, pools_to_serve([deployed_pool])
        ) as server,
    ):
        profile, rows = ServeChecker(options, phases).checked(deployed_pool, server)
    name = f"served_{arguments.model}" + f"_{arguments.wait:g}ms" * (arguments.wait > 0)
    with (_HERE / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for n, latency_ms in profile.batch_ms.items():
        print(f"batch of {n}: {latency_ms.value:.2f} ms")
    for row in rows:
        interval = " to ".join(f"{row[f'measured_p99_ms_{end}']:.1f}" for end in ("low", "high"))
        print(
            f"load {row['load']:.0%}: p99 {row['measured_p99_ms']:.1f} ms measured ({interval}), "
            f"{row['simulated_p99_ms']:.1f} simulated, {row['error_p99']:+.1%}; "
            f"p50 {row['error_p50']:+.1%}, p95 {row['error_p95']:+.1%}"
        )


if __name__ == "__main__":
    main()
