"""Training time that is lost if a training is killed.

    python -m benchmarks.training_kills [--kills 20] [--seed 0] [--epochs 60]

The script kills a training of a few minutes at random times and resumes it. It measures the lost
time, and compares the final weights with those of an uninterrupted training.
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

_MAX_LOST_S = 20.0  #: the maximum loss per kill, in seconds


def main() -> None:
    """Train with and without kills; exit with 1 if too much is lost or the weights differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder, lost_s = Path(name), list[float]()
        while len(lost_s) < arguments.kills:
            process = _start_training(folder, "killed", arguments.epochs)
            start = _wait_for_training(process, folder / "killed", time.time())
            time.sleep(rng.uniform(1, 40))
            if process.poll() is not None:
                break  # the training has finished
            process.send_signal(signal.SIGKILL)
            kill_time = time.time()
            process.wait()
            lost_s.append(kill_time - max(start, _checkpoint_time(folder / "killed")))
            print(f"kill {len(lost_s)}: {lost_s[-1]:.1f} s of training lost", flush=True)
        runs = ("killed", "uninterrupted")
        codes = [_start_training(folder, run, arguments.epochs).wait() for run in runs]
        first, second = (load_file(_checkpoint(folder / run)) for run in runs)
        equal = all(torch.equal(first[key], second[key]) for key in second)
    max_lost_s = max(lost_s)
    print(f"{len(lost_s)} kills, at most {max_lost_s:.1f} s lost each")
    print(f"exit codes {codes}; weights are equal: {equal}")
    sys.exit(not (equal and max_lost_s <= _MAX_LOST_S and codes == [0, 0]))


def _start_training(folder: Path, run: str, epochs: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "hwnas", "train", f"train.epochs={epochs}",
        f"run.supernets={folder / run}", f"run.dir={folder / run}-{time.time_ns()}",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _wait_for_training(process: subprocess.Popen[bytes], supernets: Path, start: float) -> float:
    """Wait until training starts, which locks its folder, and return the current time."""
    while process.poll() is None:
        locks = [path for path in supernets.rglob(".lock") if path.stat().st_mtime >= start]
        if locks:
            break
        time.sleep(0.05)
    return time.time()


def _checkpoint(supernets: Path) -> Path:
    (path,) = supernets.rglob("supernet.safetensors")
    return path


def _checkpoint_time(supernets: Path) -> float:
    """Return the time of the newest checkpoint; 0 if there is none."""
    times = [path.stat().st_mtime for path in supernets.rglob("supernet.safetensors")]
    return max(times, default=0.0)


if __name__ == "__main__":
    main()
