"""Networks that choose how many images an inference reads, from the search to what is delivered."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pyarrow.parquet as pq
import pytest
import yaml

from hwnas import space
from hwnas.__main__ import run
from hwnas.cost.host import as_run
from hwnas.errors import SpaceError
from hwnas.families import annotations, batch
from hwnas.families import of as family_of
from hwnas.latency_table import setting
from hwnas.op import Signature
from hwnas.planning.models import Catalogue, _read_run
from hwnas.profiling.networks import digest
from tests.conftest import space_yaml, target

TIMING = ("timing.repeats=3", "timing.min_repeat_ms=0.1")
OPTIONS = (
    "+target=cpu", "target.runtime=onnxruntime", "target.dtype=int8", "target.batches=[1,4]",
    *TIMING, "cost=measured", "budget=none", "objectives=[accuracy,throughput_ips]",
    "search_space=few.yaml", "accuracy=trained", "trained.fidelities=[1]", "train.epochs=1",
    "train.batch_size=256", "finish.epochs=0", "finish.n_least=12", "finish.probability=1e-9",
    "finish.max_int8_drop=100", "n_trials=8", "study.workers=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of networks in batches of one and four images."""
    folder = tmp_path_factory.mktemp("batches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        patch.chdir(folder)
        few = space_yaml(space.load(space.find("tiny")))
        for name in [*few["choices"]][2:]:  # the first two vary
            few["fixed"][name] = few["choices"].pop(name)[0]
        few["fixed"] = {n: v for n, v in few["fixed"].items() if ".blocks.1." not in n}
        (folder / "few.yaml").write_text(yaml.safe_dump(few))
        assert run(["search", *OPTIONS, "run.dir=r"]) == 0
    return folder / "r"


def _members(searched: Path) -> list[dict[str, str]]:
    with (searched / "front.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_members_have_their_batch_and_its_throughput(searched: Path) -> None:
    members = _members(searched)
    assert {row["batch"] for row in members} <= {"1", "4"}
    for row in members:
        for prefix in ("", "verified_"):
            ms, ips = float(row[f"{prefix}latency_ms"]), float(row[f"{prefix}throughput_ips"])
            assert ips == pytest.approx(1e3 * int(row["batch"]) / ms, rel=1e-6)
        model = onnx.load(searched / "models" / f"{row['id']}.onnx")
        read = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
        assert read == int(row["batch"])


def test_batches_of_a_network_have_the_same_weights(searched: Path) -> None:
    rows = pq.read_table(searched / "candidates.parquet").to_pylist()
    choices = [
        name for name in yaml.safe_load(Path(searched.parent, "few.yaml").read_text())["choices"]
    ]
    bare = {tuple(row.get(name) for name in choices) for row in rows}
    assert (len(rows), len(bare)) == (8, 4)  # all of the space: each network in either batch
    trained = {path.parent for path in (searched.parent / "runs").rglob("*.safetensors")}
    assert len(trained) == len(bare)
    one = space.Genotype("s", (("batch", 4), ("depth", 2)))
    other = space.Genotype("s", (("batch", 1), ("depth", 2)))
    assert annotations.bare(one) == annotations.bare(other)


def test_an_export_is_of_the_batch(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(searched.parent)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    member = max(_members(searched), key=lambda row: int(row["batch"]))
    assert member["batch"] == "4"
    assert run(["export", f"run={searched}", f"id={member['id']}", "dir=e"]) == 0
    (path,) = Path("e").rglob("proof.json")
    proof = json.loads(path.read_text())
    assert proof["target"]["batch"] == 4
    assert "target.batch=4" in proof["commands"]["Costs"].split()
    assert run(["verify", str(path.parent)]) == 0


def test_a_plan_reads_latencies_of_the_batch(searched: Path) -> None:
    found, said = Catalogue(), {row["id"]: int(row["batch"]) for row in _members(searched)}
    _read_run(found, searched)
    assert found.latency_ms
    for (_, name), times in found.latency_ms.items():
        assert {*times} == {said[name.partition("-")[0]]}


def test_operators_are_of_the_batch_and_digests_as_before() -> None:
    plain = space.load(space.find("tiny"))
    several, cpu, signature = batch.chosen_of(plain, [1, 4]), target("cpu"), Signature(1, 10)
    assert setting(replace(cpu, batches=[1, 4])) == "tvm-float32-1t-b1+4"
    for n in (1, 4):
        chosen = {**several.smallest().to_dict(), "batch": n}
        lowered = annotations.lower(
            family_of(several), several, several.genotype(chosen), signature
        )
        assert {node.op.batch for node in as_run(lowered, cpu)} == {n}
        alone = annotations.lower(family_of(plain), plain, plain.smallest(), signature)
        if n == 1:
            assert digest(as_run(lowered, cpu)) == digest(as_run(alone, cpu))
    assert batch.chosen_of(plain, []) is plain


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"batch": (1, 0)}, "'batch' is 0; allowed: whole numbers from 1 to 65536"),
        ({"batch": (1, "x")}, "'batch' is x; allowed"),
        ({"stem.batch": (1, 2)}, "'stem.batch': batch is said of networks"),
    ],
)
def test_what_is_no_batch_is_refused(added: dict[str, tuple[object, ...]], words: str) -> None:
    plain = space.load(space.find("tiny"))
    choices: dict[str, tuple[Any, ...]] = {**plain.choices, **added}
    strange = space.SearchSpace(plain.name, plain.family, choices, plain.fixed)
    with pytest.raises(SpaceError, match=words):
        batch.check(strange)
    with pytest.raises(SpaceError, match=r"leave target\.batches"):
        batch.chosen_of(space.SearchSpace("s", plain.family, {"batch": (1, 2)}, {}), [1, 2])


def test_a_target_with_one_batch_for_all_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run(["search", "+target=cpu", "target.batches=[8,8]"]) == 2
    assert "target.batches=[8, 8]: each is named once." in capsys.readouterr().err
    assert run(["search", "+target=npu", "target.batches=[1,2]"]) == 2
    error = capsys.readouterr().err
    assert "has one for all: leave it out (target.batches=[])" in error
    assert "onnxruntime or tvm" in error
