"""The simulator compared with a real Triton server, with a sleeping device and a real network.

    pip install --no-deps nvidia-pytriton && python -m experiments.fleet.served sleep
    python -m experiments.fleet.served network  # and onnxruntime, where another --python has Triton

``sleep``: batches of n take 40 + 10 n ms (``sleeping_model.py``), independent of the speed of this
machine; Triton forms the batches. ``network``: the medium network of ``mbconv_224`` with
onnxruntime on one thread; it needs an idle machine. Both work like ``serve-check``: the server is
profiled, and the simulator gets the profile and the scheduled times of the requests. Each writes
its rows to ``served_<what>.csv``, with a wait to ``served_<what>_<wait>ms.csv``.
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
    found = spaces.load_space(spaces.find(name))
    middle = {choice: options[len(options) // 2] for choice, options in found.choices.items()}
    lowered = families.get(found.family).lower(found, found.genotype(middle), Signature(1, 10))
    lowered = fuse(lowered, "float32")
    model = onnx_served.to_served_model(write_fp32(lowered, random_weights(lowered, 0)))
    kind = PoolType("cpu", name, _BATCH, wait_ms, 1e3, 1.0, 1, None, {}, 0.0, "")
    return DeployedPool(
        name.replace("_", "-"), name, kind, PoolModelSource(), model, (1,), (1.0,), 0, 0.0
    )


def main() -> None:
    """Profile, send requests, and write the measurements and simulations."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=[*_LOADS])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds of each load and repeat"
    )
    parser.add_argument(
        "--drift", type=float, default=_DRIFT, help="allowed drift of the machine's speed"
    )
    parser.add_argument("--wait", type=float, default=0.0, help="wait for incomplete batches in ms")
    parser.add_argument(
        "--python", default=sys.executable, help="Python interpreter with nvidia-pytriton"
    )
    asked = parser.parse_args()
    if asked.what == "sleep":
        servers._MODEL = _HERE / "sleeping_model.py"
        validation._constant_work = lambda n: (
            1e-3 * n
        )  # the speed of the sleeping device is constant
    options = ServeCheckOptions(_LOADS[asked.what], asked.seconds, _REPEATS, asked.drift, 3, 0)
    one, found = pool(_SPACES[asked.what], asked.wait), servers.probe(asked.python)
    if asked.what == "network":  # which onnxruntime runs there
        servers.choose_server("triton", asked.python, found)
    with (
        Phases(Console()) as phases,
        servers.run_server("triton", asked.python, found, pools_to_serve([one])) as server,
    ):
        profile, rows = ServeChecker(options, phases).checked(one, server)
    name = f"served_{asked.what}" + f"_{asked.wait:g}ms" * (asked.wait > 0)
    with (_HERE / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for n, figure in profile.batch_ms.items():
        print(f"batch of {n}: {figure.value:.2f} ms")
    for row in rows:
        ends = " to ".join(f"{row[f'measured_p99_ms_{end}']:.1f}" for end in ("low", "high"))
        print(
            f"load {row['load']:.0%}: p99 {row['measured_p99_ms']:.1f} ms measured ({ends}), "
            f"{row['simulated_p99_ms']:.1f} simulated, {row['error_p99']:+.1%}; "
            f"p50 {row['error_p50']:+.1%}, p95 {row['error_p95']:+.1%}"
        )


if __name__ == "__main__":
    main()
