"""Several seeds at equal time: bits against eight bits, and our sampler against random search.

python -m experiments.seeds.run DIR OUT [--images 10000] [--minutes 3]

DIR holds Fashion-MNIST as Parquet files; the first training images of it are searched on, and its
whole test split is verified on. Runs that are finished in OUT are not run again. Both comparisons
are made by ``compare``; ``indicators.csv`` and ``tests.csv`` of each come here.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

_HERE = Path(__file__).parent
#: By group: options, and how many seeds.
_GROUPS = {
    "bits": (("search_space=dense_packed",), 6),
    "eight_bits": (("search_space=dense_small",), 5),
    "random": (("search_space=dense_packed", "sampler=random"), 6),
}
_COMPARED = {"bits": ("bits", "eight_bits"), "sampler": ("bits", "random")}
_TABLES = ("indicators.csv", "tests.csv")


def main() -> None:
    """Run what is missing, seed by seed, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=3.0)
    asked = parser.parse_args()
    data = asked.out / "data"
    if not data.exists():
        _write(asked.data, data, asked.images)
    common = [
        "+target=npu", "dataset=fashion_mnist", f"dataset.path={data}", "accuracy=trained",
        "budget=none", "budget.latency_ms=0.25", "objectives=[accuracy,latency_ms]",
        "trained.fidelities=[1,4]", "train.epochs=5", "train.batch_size=64", "train.lr=0.1",
        "train.weight_decay=2e-4", "finish.epochs=0", "n_trials=1000",
    ]  # fmt: skip
    for seed in range(max(n for _, n in _GROUPS.values())):
        for group, (options, n) in _GROUPS.items():
            run = asked.out / group / str(seed)
            if seed < n and not (run / "front.csv").exists():
                # Networks of their own for each run: none is given what another trained.
                places = [
                    f"run.dir={run}",
                    f"run.supernets={asked.out / 'networks' / group / str(seed)}",
                ]
                _hwnas(
                    "search", *common, *options, f"seed={seed}", f"minutes={asked.minutes}", *places
                )
    for name, groups in _COMPARED.items():
        out = asked.out / f"compared_{name}"
        shutil.rmtree(out, ignore_errors=True)
        n = min(_GROUPS[group][1] for group in groups)
        runs = ",".join(str(asked.out / group / str(seed)) for group in groups for seed in range(n))
        by = "search_space" if name == "bits" else "sampler"
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
