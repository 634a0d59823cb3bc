"""``compress`` as its users start it."""

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
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
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
    found: dict[str, float | str] = max(members, key=lambda row: row["verified_flash_kib"])
    return found


def _n_values(folder: Path, name: str) -> int:
    """Return how many values the weights of an operator take: in a channel, or in all."""
    with safe_open(folder / "model.safetensors", "np") as file:
        weight = file.get_tensor(f"{name.replace('.', '_')}.weight")
    rows = weight if weight.ndim == 4 else weight[None]
    return max(len(np.unique(row.round(6))) for row in rows)


@pytest.mark.slow
def test_network_fits_another_budget_and_is_proven(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = _largest(searched)
    limit = 0.8 * float(member["verified_flash_kib"])
    options = [f"id={member['id']}", f"budget.flash_kib={limit}", f"dir={tmp_path}"]
    assert run(["compress", f"run={searched}", *options]) == 0
    shown = capsys.readouterr().out
    assert f"{limit:g}" in shown
    assert "bits" in shown
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
    _check_in_a_plan(searched, folder, tmp_path)
    # The library does the same, from what was trained.
    again = hwnas.load(searched).compress(
        str(member["id"]), budget={"flash_kib": limit}, dir=tmp_path / "again"
    )
    assert (again.path / "model.int8.tflite").read_bytes() == (
        folder / "model.int8.tflite"
    ).read_bytes()


def _check_in_a_plan(searched: Path, export: Path, place: Path) -> None:
    """A plan knows the compressed network from what it was, and what the run's networks answer."""
    (place / "service.yaml").write_text(f"""
fronts: [{searched}, {export}]
answers: [{searched}]
classes:
  all: {{p99_ms: 5, accuracy_min: 0.01, regions: [here], origin: here, demand: {{rate: 10}}}}
""")
    (place / "fleet.yaml").write_text("""
devices:
  board: {region: here, buy: bought, price: 1, quota: 2, idle_w: 1, busy_w: 2, target: npu}
""")
    problem = read_problem(place / "service.yaml", place / "fleet.yaml")
    known = problem.catalogue
    (own,) = [name for name in known.models if name.startswith(f"{export.name}+")]
    latencies = [known.latency_ms["npu", n][1].value for n in (own, f"{export.name}-int8")]
    assert latencies[0] < latencies[1]
    assert f"{export.name}-int8" in problem.answers.models
    assert {*problem.answers.models} <= known.models.keys()


@pytest.mark.slow
def test_what_fits_as_it_is_is_up_to_its_own_weights(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = _largest(searched)
    own, estimate = (float(member[name]) for name in ("verified_flash_kib", "flash_kib"))
    # Within the one limit only its own weights fit, or beyond the other only they do not.
    assert own < estimate or estimate < 0.996 * own, "else it is not seen which of them counts"
    options = [f"run={searched}", f"id={member['id']}", "epochs=1", f"dir={tmp_path}"]
    assert run(["compress", *options, f"budget.flash_kib={own}"]) == 2
    assert (
        f"meets the budget without compression: flash_kib {own:.4g} of" in capsys.readouterr().err
    )
    assert run(["compress", *options, f"budget.flash_kib={0.996 * own}"]) == 0
    proof = json.loads((tmp_path / str(member["id"]) / "proof.json").read_text())
    assert proof["figures"]["flash_kib"][0] <= 0.996 * own


@pytest.mark.slow
def test_channels_go_where_bits_do_not_suffice(searched: Path, tmp_path: Path) -> None:
    member = _largest(searched)
    limit = 0.25 * float(member["verified_flash_kib"])
    options = [f"id={member['id']}", f"budget.flash_kib={limit}", "epochs=1", f"dir={tmp_path}"]
    assert run(["compress", f"run={searched}", *options]) == 0
    proof = json.loads((tmp_path / str(member["id"]) / "proof.json").read_text())
    assert proof["figures"]["flash_kib"][0] <= limit
    steps = {step["step"]: step["epochs"] for step in proof["finishing"]["steps"]}
    assert steps["fine-tuned"] == 3  # as the search left it
    assert steps["pruned"] == 1
    assert proof["model"]["params_m"] < float(member["params_m"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
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
def test_what_cannot_be_done_is_one_line(
    searched: Path,
    tmp_path: Path,
    options: Sequence[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [] if any(o.startswith("id=") for o in options) else [f"id={_largest(searched)['id']}"]
    arguments = [f"run={searched}", *given, *options, f"dir={tmp_path / 'out'}"]
    assert run(["compress", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    assert not list(tmp_path.glob("out/*/*"))


def test_search_that_trained_nothing_in_the_end_leaves_epochs_to_be_said(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((searched / "manifest.json").read_text())
    manifest["finishing"]["epochs"] = 0
    RunFolder(tmp_path).write_json("manifest.json", manifest)
    assert run(["compress", f"run={tmp_path}", "budget.flash_kib=2"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "finish.epochs=0" in line
    assert "Set epochs=NUMBER" in line
