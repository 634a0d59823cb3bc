"""Several seeds at equal time: few and eight bits, pareto and random search, and search spaces.

python -m experiments.seeds.run DIR OUT [--images 10000] [--minutes 3] [--only bits sampler cpu]

DIR contains Fashion-MNIST as Parquet files. Searches use its first training images and are verified
on its complete test split. Completed runs in OUT are not repeated. Comparisons are made by
``compare``; ``indicators.csv`` and ``tests.csv`` of each are copied to this folder.
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
#: By group: options, and the number of seeds.
_GROUPS = {
    "bits": ((*_NPU, "search_space=dense_packed"), 6),
    "eight_bits": ((*_NPU, "search_space=dense_small"), 5),
    "random": ((*_NPU, "search_space=dense_packed", "sampler=random"), 6),
    "cpu_mbconv": ((*_CPU, "search_space=mbconv_small"), 3),
    "cpu_dense": ((*_CPU, "search_space=dense_small"), 3),
    "cpu_mixed": ((*_CPU, "search_space=cpu_small"), 3),
}
#: By comparison: its groups, and the option in which they differ.
_COMPARED = {
    "bits": (("bits", "eight_bits"), "search_space"),
    "sampler": (("bits", "random"), "sampler"),
    "cpu": (("cpu_mbconv", "cpu_dense", "cpu_mixed"), "search_space"),
}
_TABLES = ("indicators.csv", "tests.csv")


def main() -> None:
    """Run the missing searches by seed, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", nargs="*", choices=_COMPARED, default=list(_COMPARED))
    asked = parser.parse_args()
    groups = {name: _GROUPS[name] for which in asked.only for name in _COMPARED[which][0]}
    data = asked.out / "data"
    if not data.exists():
        _write(asked.data, data, asked.images)
    common = [
        "dataset=fashion_mnist", f"dataset.path={data}", "accuracy=trained",
        "budget=none", "objectives=[accuracy,latency_ms]",
        "trained.fidelities=[1,4]", "train.epochs=5", "train.batch_size=64", "train.lr=0.1",
        "train.weight_decay=2e-4", "finish.epochs=0", "n_trials=1000",
    ]  # fmt: skip
    for seed in range(max(n for _, n in groups.values())):
        for group, (options, n) in groups.items():
            run = asked.out / group / str(seed)
            if seed < n and not (run / "front.csv").exists():
                # Separate networks for each run: trained weights are not shared between runs.
                places = [
                    f"run.dir={run}",
                    f"run.supernets={asked.out / 'networks' / group / str(seed)}",
                ]
                _hwnas(
                    "search", *common, *options, f"seed={seed}", f"minutes={asked.minutes}", *places
                )
    for name in asked.only:
        compared, by = _COMPARED[name]
        out = asked.out / f"compared_{name}"
        shutil.rmtree(out, ignore_errors=True)
        n = min(_GROUPS[group][1] for group in compared)
        runs = ",".join(
            str(asked.out / group / str(seed)) for group in compared for seed in range(n)
        )
        _hwnas("compare", f"runs=[{runs}]", f"group_by={by}", "allow_mixed=true", f"run.dir={out}")
        for table in _TABLES:
            shutil.copy(out / table, _HERE / f"{name}_{table}")


def _write(source: Path, data: Path, n_images: int) -> None:
    (train,), (test,) = source.glob("train-*.parquet"), source.glob("test-*.parquet")
    data.mkdir(parents=True)
    pq.write_table(pq.read_table(train).slice(0, n_images), data / train.name)
    shutil.copy(test, data / test.name)


def _hwnas(*words: str) -> None:
    print("hwnas", *words, flush=True)
    subprocess.run([sys.executable, "-m", "hwnas", *words], check=True)


if __name__ == "__main__":
    main()
