"""Searches find what they found before: the same networks in the same order, the same figures.

What was found is in ``unchanged.json``. After a change that is meant to change it, write it anew:
``python -m tests.test_unchanged``, and say why in the commit.
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

FOUND = Path(__file__).with_name("unchanged.json")
COSTS = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")

_FOREIGN: Row = {"search_space": "mbconv_small", "table.allow_other_machine": True}
#: By backend. What is drawn, and what it costs, is the same on all machines.
DRAWN: dict[str, Row] = {
    "vela": {"target": "npu", "search_space": "mbconv_small"},
    "vela_dense": {"target": "npu", "search_space": "dense_small"},
    "tvm": {"target": "cpu", **_FOREIGN},
    "onnxruntime": {"target": "cpu", "target.runtime": "onnxruntime", **_FOREIGN},
    "modelled": {"target": "sketch"},
}
#: Of what nothing here depends on, as little as may be.
SHORT: Row = {
    "trained.fidelities": [1],
    "train.epochs": 1,
    "finish.epochs": 0,
    "finish.min_candidates": 1,
}
#: What the sampler proposes rests on accuracies, whose last digits depend on the CPU, and on how
#: many threads compute them: one.
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


class Alike:
    """Says that all networks are as accurate: none is trained to draw others, or to cost them."""

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> hwnas.Score:
        return hwnas.Score(hwnas.Quantity(0.5, "modelled"))


def digest(rows: Sequence[Row], columns: tuple[str, ...]) -> str:
    """Return a digest of a search's candidates in their order."""
    read = [[row["id"], *(f"{row[name]:.6g}" for name in columns if row[name])] for row in rows]
    return hashlib.sha256(json.dumps(read).encode()).hexdigest()[:16]


def drawn(folder: Path, backend: str) -> str:
    """Return a digest of what a search at random draws for a backend."""
    places = {"run.dir": folder / "run", "run.supernets": folder / "supernets"}
    options = {**DRAWN[backend], **SHORT, **places, "sampler": "random", "budget": "none"}
    found = hwnas.search(**options, n_trials=6, evaluator=Alike())
    return digest(found.candidates.to_pylist(), COSTS)


def proposed(folder: Path, name: str) -> str:
    """Return a digest of what the default sampler proposes."""
    places = (f"run.dir={folder / 'run'}", f"run.supernets={folder / 'supernets'}")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert run(["search", *PROPOSED[name], "n_trials=24", "budget=none", *places]) == 0
    finally:
        torch.set_num_threads(n_threads)
    rows = pq.read_table(folder / "run" / "candidates.parquet").to_pylist()
    return digest(rows, ("accuracy", *COSTS))


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


@pytest.mark.parametrize(
    "backend", [b if b == "vela" else pytest.param(b, marks=pytest.mark.slow) for b in DRAWN]
)
def test_networks_cost_what_they_did(backend: str, tmp_path: Path) -> None:
    assert drawn(tmp_path, backend) == json.loads(FOUND.read_text())["drawn"][backend]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPOSED)
def test_search_proposes_what_it_did(name: str, tmp_path: Path) -> None:
    found = json.loads(FOUND.read_text())["proposed"]
    if (here := machine.describe()["cpu"]) not in found:
        known = ", ".join(found) or "no CPU"
        pytest.skip(f"what is proposed is known of {known}, not of {here}")
    assert proposed(tmp_path, name) == found[here][name]


def _write() -> None:
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {"proposed": {}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        found["drawn"] = {name: drawn(root / name, name) for name in DRAWN}
        here = {name: proposed(root / name, name) for name in PROPOSED}
    found["proposed"][machine.describe()["cpu"]] = here
    FOUND.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    sys.argv = ["hwnas"]
    _write()
