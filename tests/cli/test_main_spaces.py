"""Several search spaces in one search on the command line."""

import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from hwnas.__main__ import run
from hwnas.core import package
from hwnas.models import spaces
from hwnas.models.spaces import SearchSpace
from tests.conftest import SHARED_WEIGHTS, space_yaml
from tests.core.unusable import edit

RESIDUAL = {
    "family": "resnet",
    "choices": {"stages.0.width": [16, 24], "stages.0.depth": [1, 2]},
    "fixed": {
        "resolution": 16,
        "block": "basic",
        "stem.kernel": 3,
        "stem.width": 8,
        "stem.stride": 1,
        "stem.pool": 0,
        "stages.0.stride": 2,
        "stages.0.blocks.0.kernel": 3,
        "stages.0.blocks.0.expansion": 1.0,
        "stages.0.blocks.1.kernel": 3,
        "stages.0.blocks.1.expansion": 1.0,
        "activation": "relu",
    },
}
QUICK = (
    "+target=npu",
    "train.epochs=1",
    *SHARED_WEIGHTS,
    "n_trials=8",
    "budget=none",
)


def _write_spaces(folder: Path, tiny: SearchSpace) -> Path:
    folder.mkdir()
    (folder / "small.yaml").write_text(yaml.safe_dump(space_yaml(tiny)))
    (folder / "residual.yaml").write_text(yaml.safe_dump(RESIDUAL))
    return folder


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, tiny: SearchSpace) -> Path:
    """Return the folder of a search in all spaces of a folder."""
    root = tmp_path_factory.mktemp("spaces")
    spaces_folder, folder = _write_spaces(root / "own", tiny), root / "both"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        paths = [f"run.dir={folder}", f"run.supernets={root / 'supernets'}"]
        assert run(["search", *QUICK, f"search_space={spaces_folder}", *paths]) == 0
    return folder


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return rows


def _error_line(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_candidates_and_front_name_their_space(searched: Path, tiny: SearchSpace) -> None:
    rows = _rows(searched)
    assert {row["space"] for row in rows} == {"small", "residual"}
    for row in rows:
        assert (row["residual.stages.0.depth"] is None) == (row["space"] == "small")
        assert (row["small.stages.0.depth"] is None) == (row["space"] == "residual")
    with (searched / "front.csv").open(newline="") as file:
        front = list(csv.DictReader(file))
    assert {"space", "small.resolution", "residual.stages.0.width"} <= front[0].keys()
    manifest = json.loads((searched / "manifest.json").read_text())
    assert manifest["n_genotypes"] == tiny.n_genotypes() + 4
    spaces_folder = searched.parent / "own"
    paths = [str(spaces_folder / "residual.yaml"), str(spaces_folder / "small.yaml")]
    assert manifest["config"]["search_space"] == paths
    for name in ("residual", "small"):
        path = searched / manifest["checkpoint"][name]
        assert path.is_file()
        assert manifest["digests"][f"supernet of {name}"] == path.parent.name
    page = (searched / "report.html").read_text()
    assert "small.stages.0.depth" in page
    assert f"{paths[0]} + {paths[1]}" in page


@pytest.mark.slow
def test_supernets_and_ids_equal_separate_searches(searched: Path) -> None:
    spaces_folder, supernets = searched.parent / "own", searched.parent / "supernets"
    before = {path: path.stat().st_mtime_ns for path in supernets.rglob("*.safetensors")}
    for name in ("residual", "small"):
        options = [f"search_space={spaces_folder / f'{name}.yaml'}", f"run.supernets={supernets}"]
        assert run(["search", *QUICK, *options, f"run.dir={name}"]) == 0
        # The joint search starts from the trials of the separate one, so that both have some.
        paths = [
            f"search_space={spaces_folder}",
            f"run.supernets={supernets}",
            f"run.dir=with_{name}",
        ]
        assert run(["search", *QUICK, *paths, f"start_from={name}"]) == 0
        joint_rows = {row["id"]: row for row in _rows(Path(f"with_{name}")) if row["space"] == name}
        separate_rows = _rows(Path(name))
        assert {row["id"] for row in separate_rows} <= joint_rows.keys()
        for row in separate_rows:
            assert row["latency_ms"] == joint_rows[row["id"]]["latency_ms"]
            if row["state"] == joint_rows[row["id"]]["state"] == "complete":
                assert row["accuracy_read"] == joint_rows[row["id"]]["accuracy_read"]
        manifest = json.loads(Path(name, "manifest.json").read_text())
        assert manifest["config"]["search_space"] == str(spaces_folder / f"{name}.yaml")
        assert isinstance(manifest["checkpoint"], str)
    assert {path: path.stat().st_mtime_ns for path in supernets.rglob("*.safetensors")} == before


def test_search_in_several_spaces_resumes(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(searched, folder)
    assert run(["search", f"run.resume={folder}", "n_trials=10"]) == 0
    assert [row["id"] for row in _rows(folder)][:8] == [row["id"] for row in _rows(searched)]
    capsys.readouterr()
    spaces_folder = searched.parent / "own"
    line = _error_line(
        capsys, ["search", f"run.resume={folder}", f"search_space={spaces_folder}/small.yaml"]
    )
    assert "search_space differs from that of the run" in line


def test_members_of_each_space_are_exported(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("small", "residual"):
        row = next(row for row in _rows(searched) if row["space"] == name)
        directory = tmp_path / name
        arguments = [f"run={searched}", f"id={row['id']}", f"dir={directory}", "epochs=0"]
        # After one epoch, int8 may lose more accuracy than allowed by default.
        assert run(["export", *arguments, "max_int8_drop=100"]) == 0
        model = json.loads((directory / row["id"] / "proof.json").read_text())["model"]
        assert model["search_space"] == name
        prefix = f"{name}."
        options = {n.removeprefix(prefix): v for n, v in row.items() if n.startswith(prefix)}
        assert model["genotype"] == {n: v for n, v in options.items() if v is not None}
        capsys.readouterr()
        assert run(["why", f"run={searched}", f"id={row['id']}"]) == 0
        assert f"search space {name}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_audit_covers_both_supernets(searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(searched, folder)
    assert (
        run(["audit", f"run={folder}", "n_networks=6", "n_repeated=0", "epochs=1", "workers=2"])
        == 0
    )
    with (folder / "audit" / "networks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["space"] for row in rows} == {"small", "residual"}


@pytest.mark.slow
def test_audit_covers_only_trained_supernets(tmp_path: Path, tiny: SearchSpace) -> None:
    spaces_folder, paths = _write_spaces(tmp_path / "own", tiny), ["run.dir=r", "run.supernets=s"]
    options = [*QUICK, "n_trials=8", "budget.latency_ms=0.015"]
    assert run(["search", *options, f"search_space={spaces_folder}", *paths]) == 0
    assert len([*Path("s").glob("*/supernet.safetensors")]) == 1
    assert run(["audit", "run=r", "n_networks=6", "n_repeated=0", "epochs=1"]) == 0
    with Path("r/audit/networks.csv").open(newline="") as file:
        assert {row["space"] for row in csv.DictReader(file)} == {"small"}


@pytest.mark.slow
def test_comparison_notes_different_spaces(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [*QUICK, "search_space=tiny", "run.dir=other"]
    assert run(["search", *other]) == 0
    assert run(["compare", f"runs=[{searched},other]", "n_bootstrap=0", "run.dir=c"]) == 0
    page = Path("c", "report.html").read_text()
    assert "The search spaces differ (residual + small, tiny)" in page


def test_targets_have_default_spaces(tmp_path: Path, tiny: SearchSpace) -> None:
    from hwnas.training.data import DatasetConfig
    from hwnas.workflows.config import SearchConfig, with_common_spaces
    from tests.conftest import target

    npu, sketch, cpu = target("npu"), target("sketch"), target("cpu")
    npu.spaces, sketch.spaces, cpu.spaces = ["tiny", "resnet_small"], ["resnet_small", "x"], []
    npu.shared_spaces = []
    configs = [SearchConfig(target=t, dataset=DatasetConfig("digits")) for t in (npu, sketch)]
    both = with_common_spaces(configs)
    assert [c.search_space for c in both] == [["tiny", "resnet_small", "x"]] * 2
    assert with_common_spaces(both[:1])[0].search_space == ["tiny", "resnet_small", "x"]
    assert with_common_spaces(configs[1:])[0].searched == "resnet_small + x"
    (only,) = with_common_spaces([SearchConfig(target=cpu, dataset=DatasetConfig("digits"))])
    assert only.search_space == "mbconv_small"
    assert spaces.find(only.search_space).is_file()


def test_joint_default_spaces_suit_all_runtimes() -> None:
    from hwnas.training.data import DatasetConfig
    from hwnas.workflows.config import SearchConfig, with_common_spaces
    from tests.conftest import target

    def searched(*names: str) -> str:
        targets = [target(name) for name in names]
        configs = [SearchConfig(target=t, dataset=DatasetConfig("digits")) for t in targets]
        return with_common_spaces(configs)[0].searched

    assert searched("npu") == searched("npu", "ethos_u85_256") == "dense_packed"
    assert searched("npu", "cpu") == "dense_small + cpu_small"


@pytest.mark.slow
def test_resume_keeps_changed_defaults_of_run(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "target" / "own.yaml"
    file.parent.mkdir(parents=True)
    text = (package.ROOT / "conf" / "target" / "npu.yaml").read_text()
    text = text.replace("name: npu\n", "name: own\n")
    file.write_text(text.replace("spaces: [dense_packed]", "spaces: [tiny]"))
    options = ["+target=own", "--config-dir", str(tmp_path / "mine"), *QUICK[1:]]
    former_defaults = [
        "train.dtype=float32",
        "train.batch_size=48",
        "train.lr=0.2",
    ]  # former defaults
    assert run(["search", *options, *former_defaults, "run.dir=run"]) == 0
    arguments = json.loads(Path("run", "manifest.json").read_text())["arguments"]
    edit(Path("run"), "arguments", [a for a in arguments if a not in former_defaults])
    file.write_text(text)
    assert run(["search", "run.resume=run", "n_trials=13"]) == 0
    assert json.loads(Path("run", "manifest.json").read_text())["n_candidates"] == 13
    assert run(["export", "run=run", "pick=fastest", "epochs=0", "dir=out"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", *QUICK, "search_space=[tiny,tiny]"], "two spaces are named 'tiny'"),
        (["search", *QUICK, "search_space=[tiny,tinyy]"], "Did you mean 'tiny'?"),
        (["search", *QUICK, "search_space=[]"], "names no search space"),
        (["train", "search_space=[tiny,resnet_small]"], "train supports one search space"),
        (
            ["profile", "+target=cpu", "search_space=[tiny,resnet_small]", "genotype=largest"],
            "profile genotype=... supports one search space",
        ),
    ],
)
def test_invalid_spaces_are_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in _error_line(capsys, arguments)
