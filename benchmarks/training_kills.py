"""Kills a training of a few minutes at random times; measures the lost time and compares weights.

python -m benchmarks.training_kills [--kills 20] [--seed 0] [--epochs 60]
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

_LOST_S = 20.0  #: seconds that a kill may lose


def main() -> None:
    """Train with and without kills; exit with 1 if a kill loses too much or weights differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        folder, lost = Path(name), list[float]()
        while len(lost) < asked.kills:
            process = _started(folder, "killed", asked.epochs)
            begun = _wait(process, folder / "killed", time.time())
            time.sleep(rng.uniform(1, 40))
            if process.poll() is not None:
                break  # it has finished
            process.send_signal(signal.SIGKILL)
            at = time.time()
            process.wait()
            lost.append(at - max(begun, _saved(folder / "killed")))
            print(f"kill {len(lost)}: {lost[-1]:.1f} s of training lost", flush=True)
        codes = [_started(folder, run, asked.epochs).wait() for run in ("killed", "whole")]
        first, second = (load_file(_checkpoint(folder / run)) for run in ("killed", "whole"))
        same = all(torch.equal(first[key], second[key]) for key in second)
    most = max(lost)
    print(f"{len(lost)} kills, at most {most:.1f} s lost each; {codes}; weights are equal: {same}")
    sys.exit(not (same and most <= _LOST_S and codes == [0, 0]))


def _started(folder: Path, run: str, epochs: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "hwnas", "train", f"train.epochs={epochs}",
        f"run.supernets={folder / run}", f"run.dir={folder / run}-{time.time_ns()}",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _wait(process: subprocess.Popen[bytes], nets: Path, since: float) -> float:
    """Wait until training continues, and return the time. From then on its folder is locked."""
    while process.poll() is None:
        locks = [path for path in nets.rglob(".lock") if path.stat().st_mtime >= since]
        if locks:
            break
        time.sleep(0.05)
    return time.time()


def _checkpoint(nets: Path) -> Path:
    (found,) = nets.rglob("supernet.safetensors")
    return found


def _saved(nets: Path) -> float:
    """Return the time of the newest checkpoint; 0 if there is none."""
    found = [path.stat().st_mtime for path in nets.rglob("supernet.safetensors")]
    return max(found, default=0.0)


if __name__ == "__main__":
    main()
