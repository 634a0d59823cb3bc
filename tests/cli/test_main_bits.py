"""Low-bit and sparse weights, from search to export."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from hwnas.__main__ import run
from hwnas.models import spaces
from tests.conftest import space_yaml

OPTIONS = (
    "+target=npu", "accuracy=trained", "trained.fidelities=[1]", "train.epochs=1",
    "finish.min_candidates=3", "finish.epochs=1", "finish.max_int8_drop=100", "n_trials=4",
    "study.workers=1", "budget=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a search space that varies weight bits."""
    folder = tmp_path_factory.mktemp("bits")
    raw = space_yaml(spaces.load_space(spaces.find("tiny")))
    raw["choices"]["weight_bits"] = [3, 4]
    raw["fixed"]["classifier.weight_bits"] = 8
    raw["fixed"]["stages.0.weight_sparsity"] = "2:4"
    (folder / "packed.yaml").write_text(yaml.safe_dump(raw))
    return folder


@pytest.fixture(scope="module")
def root(packed: Path) -> Path:
    """Return the folder with a search of this space in ``run``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        assert run(["search", *OPTIONS, *_path_options(packed)]) == 0
    return packed


def _path_options(folder: Path) -> list[str]:
    return [
        f"search_space={folder / 'packed.yaml'}", f"run.dir={folder / 'run'}",
        f"run.supernets={folder / 'networks'}",
    ]  # fmt: skip


def _weights(content: bytes) -> list[tuple[NDArray[np.int8], bool]]:
    """Return weights of convolutions, channels first, with whether each is depthwise."""
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    weights = []
    for tensor in interpreter.get_tensor_details():
        if tensor["dtype"] == np.int8 and len(tensor["quantization_parameters"]["scales"]) > 1:
            weight = interpreter.get_tensor(tensor["index"])
            if weight.ndim != 4:
                continue  # the classifier
            depthwise = tensor["quantization_parameters"]["quantized_dimension"] == 3
            weights.append((np.moveaxis(weight, -1, 0) if depthwise else weight, depthwise))
    return weights


def _is_sparse(weight: NDArray[np.int8]) -> bool:
    """Return whether two of every four input channels are zero."""
    n = weight.shape[-1] // 4 * 4
    fours = weight[..., :n].reshape(*weight.shape[:-1], -1, 4)
    return n > 0 and bool(((fours != 0).sum(-1) <= 2).all())


@pytest.mark.slow
def test_front_models_have_chosen_weight_bits(root: Path) -> None:
    with (root / "run" / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tflite"]]
    assert len(rows) >= 3
    for row in rows:
        weights = _weights((root / "run" / row["tflite"]).read_bytes())
        wide = [weight for weight, depthwise in weights if not depthwise]
        assert max(len(np.unique(c)) for w in wide for c in w) <= 2 ** int(row["weight_bits"]) - 1
        n_blocks = len(wide) - 2  # without stem and head
        assert sum(map(_is_sparse, wide)) == n_blocks > 0
        # Costs with random weights match costs with trained weights.
        assert float(row["verified_flash_kib"]) == pytest.approx(float(row["flash_kib"]), rel=0.1)


@pytest.mark.slow
def test_export_lists_weight_bits_and_verifies(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    out = root / "out"
    assert run(["export", f"run={root / 'run'}", f"dir={out}", "pick=fastest"]) == 0
    (proof,) = out.rglob("proof.json")
    content = json.loads(proof.read_text())
    bits = {row["name"]: row.get("weight_bits", 8) for row in content["model"]["operators"]}
    assert bits["stem"] == content["model"]["genotype"]["weight_bits"] < 8
    assert bits["classifier"] == 8
    sparse = {row["name"] for row in content["model"]["operators"] if row.get("is_sparse")}
    block_names = {name for name in bits if name.rpartition(".")[2] in {"expand", "project"}}
    assert sparse == block_names != set()
    assert run(["verify", str(proof.parent)]) == 0


def test_cpu_rejects_weight_bits_and_sparsity(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    paths = [place for place in _path_options(packed) if not place.startswith("run.dir")]
    assert run(["search", "+target=cpu", f"run.dir={packed / 'refused'}", *paths]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'weight_bits', which has no benefit on target 'cpu'" in line
    options = ["+target=npu", "target.weight_sparsity=false"]
    assert run(["search", *options, f"run.dir={packed / 'refused'}", *paths]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "weight_sparsity', but target 'npu' has no benefit from zero weights" in line
    assert not (packed / "refused").exists()
