"""Searches with several seeds at equal time: number of bits, samplers, and search spaces.

    python -m experiments.seeds.run DIR OUT [--images 10000] [--minutes 3] [--only bits sampler cpu]

DIR contains Fashion-MNIST as Parquet files. Searches use the first training images, and are
verified on the complete test split. Completed runs in OUT are not repeated. ``hwnas compare``
compares the runs; its files ``indicators.csv`` and ``tests.csv`` are copied to this folder.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

_HERE = Path(__file__).parent
_NPU = ("+target=npu", "budget.latency_ms=0.25")
_CPU = ("+target=cpu", "budget.latency_ms=0.1")
#: Options and number of seeds, by group of runs.
_GROUPS = {
    "bits": ((*_NPU, "search_space=dense_packed"), 6),
    "eight_bits": ((*_NPU, "search_space=dense_small"), 5),
    "random": ((*_NPU, "search_space=dense_packed", "sampler=random"), 6),
    "cpu_mbconv": ((*_CPU, "search_space=mbconv_small"), 3),
    "cpu_dense": ((*_CPU, "search_space=dense_small"), 3),
    "cpu_mixed": ((*_CPU, "search_space=cpu_small"), 3),
}
#: Groups of a comparison, and the option by which they differ.
_COMPARISONS = {
    "bits": (("bits", "eight_bits"), "search_space"),
    "sampler": (("bits", "random"), "sampler"),
    "cpu": (("cpu_mbconv", "cpu_dense", "cpu_mixed"), "search_space"),
}
_TABLES = ("indicators.csv", "tests.csv")


def main() -> None:
    """Run the missing searches, seed by seed, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", nargs="*", choices=_COMPARISONS, default=list(_COMPARISONS))
    arguments = parser.parse_args()
    groups = {group: _GROUPS[group] for name in arguments.only for group in _COMPARISONS[name][0]}
    data = arguments.out / "data"
    if not data.exists():
        _write_data(arguments.data, data, arguments.images)
    common = [
        "dataset=fashion_mnist", f"dataset.path={data}", "accuracy=trained",
        "budget=none", "objectives=[accuracy,latency_ms]",
        "trained.fidelities=[1,4]", "train.epochs=5", "train.batch_size=64", "train.lr=0.1",
        "train.weight_decay=2e-4", "finish.epochs=0", "n_trials=1000",
    ]  # fmt: skip
    for seed in range(max(n_seeds for _, n_seeds in groups.values())):
        for group, (options, n_seeds) in groups.items():
            run = arguments.out / group / str(seed)
            if seed < n_seeds and not (run / "front.csv").exists():
                # A separate folder of networks, so that runs do not share trained weights.
                networks = arguments.out / "networks" / group / str(seed)
                folders = [f"run.dir={run}", f"run.supernets={networks}"]
                settings = [f"seed={seed}", f"minutes={arguments.minutes}"]
                _run_hwnas("search", *common, *options, *settings, *folders)
    for name in arguments.only:
        compared, option = _COMPARISONS[name]
        out = arguments.out / f"compared_{name}"
        shutil.rmtree(out, ignore_errors=True)
        n_seeds = min(_GROUPS[group][1] for group in compared)
        runs = ",".join(
            f"{arguments.out / group}/{s}" for group in compared for s in range(n_seeds)
        )
        settings = [f"group_by={option}", "allow_mixed=true", f"run.dir={out}"]
        _run_hwnas("compare", f"runs=[{runs}]", *settings)
        for table in _TABLES:
            shutil.copy(out / table, _HERE / f"{name}_{table}")


def _write_data(source: Path, folder: Path, n_images: int) -> None:
    (train,), (test,) = source.glob("train-*.parquet"), source.glob("test-*.parquet")
    folder.mkdir(parents=True)
    pq.write_table(pq.read_table(train).slice(0, n_images), folder / train.name)
    shutil.copy(test, folder / test.name)


def _run_hwnas(*arguments: str) -> None:
    print("hwnas", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "hwnas", *arguments], check=True)


if __name__ == "__main__":
    main()
