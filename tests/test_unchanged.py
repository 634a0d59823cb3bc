"""Regression tests of searches: same networks in the same order with the same figures.

``unchanged.json`` has the expected results. After an intended change, record them again with
``python -m tests.test_unchanged`` and give the reason in the commit.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import hwnas
from hwnas.__main__ import run
from hwnas.core import machine
from hwnas.core.run_folder import Row
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent
from tests.conftest import SHARED_WEIGHTS

EXPECTED_FILE = Path(__file__).with_name("unchanged.json")
COSTS = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")

_FOREIGN: Row = {"search_space": "mbconv_small", "table.allow_other_machine": True}
#: Options by backend. Candidates and their costs are the same on all machines.
DRAWN: dict[str, Row] = {
    "vela": {"target": "npu", "search_space": "mbconv_small"},
    "vela_dense": {"target": "npu", "search_space": "dense_small"},
    "tvm": {"target": "cpu", **_FOREIGN},
    "onnxruntime": {"target": "cpu", "target.runtime": "onnxruntime", **_FOREIGN},
    "modelled": {"target": "sketch"},
}
#: Short schedules, which do not affect the results.
SHORT: Row = {
    "trained.fidelities": [1],
    "train.epochs": 1,
    "finish.epochs": 0,
    "finish.min_candidates": 1,
}
#: Proposals of the sampler depend on accuracies, whose last digits depend on the CPU and on the
#: number of threads: one.
PROPOSED = {
    "default": (
        "+target=npu",
        "search_space=dense_small",
        "study.workers=1",
        "train.epochs=4",
        "finish.epochs=1",
    ),
    "supernet": ("+target=npu", "search_space=dense_small", *SHARED_WEIGHTS, "train.epochs=2"),
}


class ConstantEvaluator:
    """Evaluator with a constant accuracy, so that no network is trained."""

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> hwnas.Score:
        return hwnas.Score(hwnas.Quantity(0.5, "modelled"))


def digest(rows: Sequence[Row], columns: tuple[str, ...]) -> str:
    """Return a digest of the candidates of a search in their order."""
    values = [[row["id"], *(f"{row[name]:.6g}" for name in columns if row[name])] for row in rows]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def random_search_digest(folder: Path, backend: str) -> str:
    """Return the digest of a random search for a backend."""
    paths = {"run.dir": folder / "run", "run.supernets": folder / "supernets"}
    options = {**DRAWN[backend], **SHORT, **paths, "sampler": "random", "budget": "none"}
    result = hwnas.search(**options, n_trials=6, evaluator=ConstantEvaluator())
    return digest(result.candidates.to_pylist(), COSTS)


def sampler_digest(folder: Path, name: str) -> str:
    """Return the digest of a search with the default sampler."""
    paths = (f"run.dir={folder / 'run'}", f"run.supernets={folder / 'supernets'}")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert run(["search", *PROPOSED[name], "n_trials=24", "budget=none", *paths]) == 0
    finally:
        torch.set_num_threads(n_threads)
    rows = pq.read_table(folder / "run" / "candidates.parquet").to_pylist()
    return digest(rows, ("accuracy", *COSTS))


@pytest.fixture(autouse=True)
def _patch_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


@pytest.mark.parametrize(
    "backend", [b if b == "vela" else pytest.param(b, marks=pytest.mark.slow) for b in DRAWN]
)
def test_random_search_is_unchanged(backend: str, tmp_path: Path) -> None:
    assert (
        random_search_digest(tmp_path, backend)
        == json.loads(EXPECTED_FILE.read_text())["drawn"][backend]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPOSED)
def test_default_search_is_unchanged(name: str, tmp_path: Path) -> None:
    expected = json.loads(EXPECTED_FILE.read_text())["proposed"]
    if (cpu := machine.describe()["cpu"]) not in expected:
        known_cpus = ", ".join(expected) or "no CPU"
        pytest.skip(f"what is proposed is known of {known_cpus}, not of {cpu}")
    assert sampler_digest(tmp_path, name) == expected[cpu][name]


def _write() -> None:
    content = json.loads(EXPECTED_FILE.read_text()) if EXPECTED_FILE.exists() else {"proposed": {}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        content["drawn"] = {name: random_search_digest(root / name, name) for name in DRAWN}
        digests = {name: sampler_digest(root / name, name) for name in PROPOSED}
    content["proposed"][machine.describe()["cpu"]] = digests
    EXPECTED_FILE.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.argv = ["hwnas"]
    _write()
