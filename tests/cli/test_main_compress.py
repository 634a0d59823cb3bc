"""The verb ``compress`` on the command line."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import hwnas
from hwnas.__main__ import run
from hwnas.core.run_folder import RunFolder
from hwnas.fleet.problem import read_problem

OPTIONS = (
    "accuracy=trained", "trained.fidelities=[1,1]", "train.epochs=2", "finish.min_candidates=2",
    "finish.epochs=3", "n_trials=2", "study.workers=1", "budget=none",
)  # fmt: skip
SPACE = """
family: mbconv
choices:
  stages.0.width: [16, 32]
fixed:
  resolution: 16
  stem.width: 16
  stem.kernel: 3
  stem.stride: 2
  stages.0.depth: 1
  stages.0.stride: 1
  stages.1.depth: 2
  stages.1.width: 48
  stages.1.stride: 2
  head.width: 0
  kind: plain
  expansion: 1
  kernel: 3
  activation: relu
"""


@pytest.fixture(autouse=True)
def _patch_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search."""
    folder = tmp_path_factory.mktemp("compressed")
    (folder / "plain.yaml").write_text(SPACE)
    places = [
        f"search_space={folder / 'plain.yaml'}", f"run.dir={folder / 'run'}",
        f"run.supernets={folder / 'networks'}",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        assert run(["search", "+target=npu", *OPTIONS, *places]) == 0
    return folder / "run"


def _largest(run: Path) -> dict[str, float | str]:
    members = json.loads((run / "front.json").read_text())["members"]
    member: dict[str, float | str] = max(members, key=lambda row: row["verified_flash_kib"])
    return member


def _n_values(folder: Path, name: str) -> int:
    """Return the largest number of distinct weights in a channel of an operator."""
    with safe_open(folder / "model.safetensors", "np") as file:
        weight = file.get_tensor(f"{name.replace('.', '_')}.weight")
    rows = weight if weight.ndim == 4 else weight[None]
    return max(len(np.unique(row.round(6))) for row in rows)


@pytest.mark.slow
def test_compressed_network_meets_budget_and_verifies(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = _largest(searched)
    limit = 0.8 * float(member["verified_flash_kib"])
    options = [f"id={member['id']}", f"budget.flash_kib={limit}", f"dir={tmp_path}"]
    assert run(["compress", f"run={searched}", *options]) == 0
    output = capsys.readouterr().out
    assert f"{limit:g}" in output
    assert "bits" in output
    folder = tmp_path / str(member["id"])
    proof = json.loads((folder / "proof.json").read_text())
    assert proof["figures"]["flash_kib"][0] <= limit
    assert proof["budget"]["flash_kib"]["margin"] >= 0
    operators = proof["model"]["operators"]
    bits = {row["name"]: row["weight_bits"] for row in operators if "weight_bits" in row}
    assert bits
    for name, n in bits.items():
        assert _n_values(folder, name) <= 2**n - 1
    steps = [step["step"] for step in proof["finishing"]["steps"]]
    assert steps[:4] == ["inherited", "fine-tuned", "rounded", "bits-trained"]
    assert "trained for 3 epochs" in proof["finishing"]["weights"]
    assert run(["verify", str(folder), "+target=npu"]) == 0
    _check_in_plan(searched, folder, tmp_path)
    # The Python API gives the same file from the stored weights.
    second = hwnas.load(searched).compress(
        str(member["id"]), budget={"flash_kib": limit}, dir=tmp_path / "again"
    )
    assert (second.path / "model.int8.tflite").read_bytes() == (
        folder / "model.int8.tflite"
    ).read_bytes()


def _check_in_plan(searched: Path, export: Path, directory: Path) -> None:
    """Check that a plan separates the compressed network from the original one."""
    (directory / "service.yaml").write_text(f"""
fronts: [{searched}, {export}]
answers: [{searched}]
classes:
  all: {{p99_ms: 5, accuracy_min: 0.01, regions: [here], origin: here, demand: {{rate: 10}}}}
""")
    (directory / "fleet.yaml").write_text("""
devices:
  board: {region: here, buy: bought, price: 1, quota: 2, idle_w: 1, busy_w: 2, target: npu}
""")
    problem = read_problem(directory / "service.yaml", directory / "fleet.yaml")
    catalogue = problem.catalogue
    (compressed,) = [name for name in catalogue.models if name.startswith(f"{export.name}+")]
    latencies = [
        catalogue.latency_ms["npu", n][1].value for n in (compressed, f"{export.name}-int8")
    ]
    assert latencies[0] < latencies[1]
    assert f"{export.name}-int8" in problem.answers.models
    assert {*problem.answers.models} <= catalogue.models.keys()


@pytest.mark.slow
def test_budget_check_uses_trained_weights(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = _largest(searched)
    verified_kib, estimated_kib = (
        float(member[name]) for name in ("verified_flash_kib", "flash_kib")
    )
    # The limits below separate the verified size from the estimate.
    assert verified_kib < estimated_kib or estimated_kib < 0.996 * verified_kib, (
        "verified size and estimate are too close"
    )
    options = [f"run={searched}", f"id={member['id']}", "epochs=1", f"dir={tmp_path}"]
    assert run(["compress", *options, f"budget.flash_kib={verified_kib}"]) == 2
    assert (
        f"meets the budget without compression: flash_kib {verified_kib:.4g} of"
        in capsys.readouterr().err
    )
    assert run(["compress", *options, f"budget.flash_kib={0.996 * verified_kib}"]) == 0
    proof = json.loads((tmp_path / str(member["id"]) / "proof.json").read_text())
    assert proof["figures"]["flash_kib"][0] <= 0.996 * verified_kib


@pytest.mark.slow
def test_small_budget_prunes_channels(searched: Path, tmp_path: Path) -> None:
    member = _largest(searched)
    limit = 0.25 * float(member["verified_flash_kib"])
    options = [f"id={member['id']}", f"budget.flash_kib={limit}", "epochs=1", f"dir={tmp_path}"]
    assert run(["compress", f"run={searched}", *options]) == 0
    proof = json.loads((tmp_path / str(member["id"]) / "proof.json").read_text())
    assert proof["figures"]["flash_kib"][0] <= limit
    steps = {step["step"]: step["epochs"] for step in proof["finishing"]["steps"]}
    assert steps["fine-tuned"] == 3  # from the search
    assert steps["pruned"] == 1
    assert proof["model"]["params_m"] < float(member["params_m"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "budget.latency_ms=NUMBER"),
        (["budget.flash_kib=1e6"], "meets the budget without compression"),
        (["budget.flash_kib=0.01"], "cannot be compressed to the budget"),
        (["budget.throughput_ips=1e9"], "is a lower limit. compress supports upper limits only"),
        (["budget.flash_kib=2", "weight_bits=[2]"], r"each in [3, 7], got 2"),
        (["budget.flash_kib=2", "prune=[1]"], "each in [0, 1), got 1"),
        (["budget.flash_kib=2", "weight_bits=[]", "prune=[]"], "nothing would be compressed"),
        (["budget.flash=2"], "budget.flash"),
        (["budget.cost_usd_per_m=1"], "search again with target.facts.price_usd_per_h=NUMBER"),
        (["budget.flash_kib=2", "epochs=0"], "epochs must be 1 or more"),
        (["budget.flash_kib=2", "id=ffff"], "ffff"),
    ],
)
def test_invalid_compression_is_reported_in_one_line(
    searched: Path,
    tmp_path: Path,
    options: Sequence[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    id_option = (
        [] if any(o.startswith("id=") for o in options) else [f"id={_largest(searched)['id']}"]
    )
    arguments = [f"run={searched}", *id_option, *options, f"dir={tmp_path / 'out'}"]
    assert run(["compress", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not list(tmp_path.glob("out/*/*"))


def test_run_without_finish_epochs_requires_epochs(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((searched / "manifest.json").read_text())
    manifest["finishing"]["epochs"] = 0
    RunFolder(tmp_path).write_json("manifest.json", manifest)
    assert run(["compress", f"run={tmp_path}", "budget.flash_kib=2"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "finish.epochs=0" in line
    assert "Set epochs=NUMBER" in line
