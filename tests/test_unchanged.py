"""Searches find what they found before: the same networks in the same order, the same figures.

What was found is in ``unchanged.json``. After a change that is meant to change it, write it anew:
``python -m tests.test_unchanged``, and say why in the commit.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hwnas import machine
from hwnas.__main__ import run
from tests.conftest import SHARED_WEIGHTS

FOUND = Path(__file__).with_name("unchanged.json")
COSTS = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")

_FOREIGN = ("search_space=mbconv_small", "table.accept_foreign=true")
#: By backend. What is drawn, and what it costs, is the same on all machines.
DRAWN = {
    "vela": ("+target=npu", "search_space=mbconv_small"),
    "vela_dense": ("+target=npu", "search_space=dense_small"),
    "tvm": ("+target=cpu", *_FOREIGN),
    "onnxruntime": ("+target=cpu", "target.runtime=onnxruntime", *_FOREIGN),
    "modelled": ("+target=sketch",),
}
#: What the sampler proposes rests on accuracies, whose last digits depend on the CPU.
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


def digest(folder: Path, options: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Return a digest of a search's candidates in their order."""
    places = (f"run.dir={folder / 'run'}", f"run.supernets={folder / 'supernets'}")
    assert run(["search", *options, "budget=none", *places]) == 0
    rows = pq.read_table(folder / "run" / "candidates.parquet").to_pylist()
    read = [[row["id"], *(f"{row[name]:.6g}" for name in columns if row[name])] for row in rows]
    return hashlib.sha256(json.dumps(read).encode()).hexdigest()[:16]


def drawn(folder: Path, backend: str) -> str:
    """Return a digest of what a search at random draws for a backend."""
    short = ("accuracy=trained", "trained.fidelities=[1]", "train.epochs=1", "finish.epochs=0")
    options = (*DRAWN[backend], "sampler=random", *short, "study.workers=1", "n_trials=6")
    return digest(folder, options, COSTS)


def proposed(folder: Path, name: str) -> str:
    """Return a digest of what the default sampler proposes."""
    return digest(folder, (*PROPOSED[name], "n_trials=24"), ("accuracy", *COSTS))


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
        pytest.skip(f"what is proposed is known of {', '.join(found)}, not of {here}")
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
