"""Several search spaces in one search, as its users start it."""

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


def _spaces(folder: Path, tiny: SearchSpace) -> Path:
    folder.mkdir()
    (folder / "small.yaml").write_text(yaml.safe_dump(space_yaml(tiny)))
    (folder / "residual.yaml").write_text(yaml.safe_dump(RESIDUAL))
    return folder


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, tiny: SearchSpace) -> Path:
    """Return the folder of a search in all spaces of a folder."""
    root = tmp_path_factory.mktemp("spaces")
    own, folder = _spaces(root / "own", tiny), root / "both"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        places = [f"run.dir={folder}", f"run.supernets={root / 'supernets'}"]
        assert run(["search", *QUICK, f"search_space={own}", *places]) == 0
    return folder


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return found


def _refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
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
    own = searched.parent / "own"
    named = [str(own / "residual.yaml"), str(own / "small.yaml")]
    assert manifest["config"]["search_space"] == named
    for name in ("residual", "small"):
        path = searched / manifest["checkpoint"][name]
        assert path.is_file()
        assert manifest["digests"][f"supernet of {name}"] == path.parent.name
    page = (searched / "report.html").read_text()
    assert "small.stages.0.depth" in page
    assert f"{named[0]} + {named[1]}" in page


@pytest.mark.slow
def test_supernets_and_ids_are_those_of_searches_alone(searched: Path) -> None:
    own, supernets = searched.parent / "own", searched.parent / "supernets"
    before = {path: path.stat().st_mtime_ns for path in supernets.rglob("*.safetensors")}
    for name in ("residual", "small"):
        alone = [f"search_space={own / f'{name}.yaml'}", f"run.supernets={supernets}"]
        assert run(["search", *QUICK, *alone, f"run.dir={name}"]) == 0
        # Together, the first trials are those of the search alone, so that there are some of both.
        places = [f"search_space={own}", f"run.supernets={supernets}", f"run.dir=with_{name}"]
        assert run(["search", *QUICK, *places, f"start_from={name}"]) == 0
        known = {row["id"]: row for row in _rows(Path(f"with_{name}")) if row["space"] == name}
        again = _rows(Path(name))
        assert {row["id"] for row in again} <= known.keys()
        for row in again:
            assert row["latency_ms"] == known[row["id"]]["latency_ms"]
            if row["state"] == known[row["id"]]["state"] == "complete":
                assert row["accuracy_read"] == known[row["id"]]["accuracy_read"]
        manifest = json.loads(Path(name, "manifest.json").read_text())
        assert manifest["config"]["search_space"] == str(own / f"{name}.yaml")
        assert isinstance(manifest["checkpoint"], str)
    assert {path: path.stat().st_mtime_ns for path in supernets.rglob("*.safetensors")} == before


def test_search_is_resumed(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(searched, folder)
    assert run(["search", f"run.resume={folder}", "n_trials=10"]) == 0
    assert [row["id"] for row in _rows(folder)][:8] == [row["id"] for row in _rows(searched)]
    capsys.readouterr()
    own = searched.parent / "own"
    line = _refused(capsys, ["search", f"run.resume={folder}", f"search_space={own}/small.yaml"])
    assert "search_space differs from that of the run" in line


def test_members_of_each_space_are_exported_and_explained(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("small", "residual"):
        row = next(row for row in _rows(searched) if row["space"] == name)
        place = tmp_path / name
        words = [f"run={searched}", f"id={row['id']}", f"dir={place}", "epochs=0"]
        # What one epoch teaches may change by more than allowed in int8: that is no failure here.
        assert run(["export", *words, "max_int8_drop=100"]) == 0
        model = json.loads((place / row["id"] / "proof.json").read_text())["model"]
        assert model["search_space"] == name
        prefix = f"{name}."
        own = {n.removeprefix(prefix): v for n, v in row.items() if n.startswith(prefix)}
        assert model["genotype"] == {n: v for n, v in own.items() if v is not None}
        capsys.readouterr()
        assert run(["why", f"run={searched}", f"id={row['id']}"]) == 0
        assert f"search space {name}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_both_supernets_are_audited(searched: Path, tmp_path: Path) -> None:
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
def test_spaces_of_which_one_has_a_supernet_are_audited(tmp_path: Path, tiny: SearchSpace) -> None:
    own, places = _spaces(tmp_path / "own", tiny), ["run.dir=r", "run.supernets=s"]
    options = [*QUICK, "n_trials=8", "budget.latency_ms=0.015"]
    assert run(["search", *options, f"search_space={own}", *places]) == 0
    assert len([*Path("s").glob("*/supernet.safetensors")]) == 1
    assert run(["audit", "run=r", "n_networks=6", "n_repeated=0", "epochs=1"]) == 0
    with Path("r/audit/networks.csv").open(newline="") as file:
        assert {row["space"] for row in csv.DictReader(file)} == {"small"}


@pytest.mark.slow
def test_runs_of_several_spaces_are_compared(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [*QUICK, "search_space=tiny", "run.dir=other"]
    assert run(["search", *other]) == 0
    assert run(["compare", f"runs=[{searched},other]", "n_bootstrap=0", "run.dir=c"]) == 0
    page = Path("c", "report.html").read_text()
    assert "The search spaces differ (residual + small, tiny)" in page


def test_targets_say_which_spaces_suit_them(tmp_path: Path, tiny: SearchSpace) -> None:
    from hwnas.training.data import DatasetConfig
    from hwnas.workflows.config import SearchConfig, agreed
    from tests.conftest import target

    one, two, none = target("npu"), target("sketch"), target("cpu")
    one.spaces, two.spaces, none.spaces = ["tiny", "resnet_small"], ["resnet_small", "x"], []
    one.shared_spaces = []
    configs = [SearchConfig(target=t, dataset=DatasetConfig("digits")) for t in (one, two)]
    both = agreed(configs)
    assert [c.search_space for c in both] == [["tiny", "resnet_small", "x"]] * 2
    assert agreed(both[:1])[0].search_space == ["tiny", "resnet_small", "x"]
    assert agreed(configs[1:])[0].searched == "resnet_small + x"
    (only,) = agreed([SearchConfig(target=none, dataset=DatasetConfig("digits"))])
    assert only.search_space == "mbconv_small"
    assert spaces.find(only.search_space).is_file()


def test_spaces_that_other_runtimes_refuse_are_not_taken_beside_them() -> None:
    from hwnas.training.data import DatasetConfig
    from hwnas.workflows.config import SearchConfig, agreed
    from tests.conftest import target

    def searched(*names: str) -> str:
        targets = [target(name) for name in names]
        configs = [SearchConfig(target=t, dataset=DatasetConfig("digits")) for t in targets]
        return agreed(configs)[0].searched

    assert searched("npu") == searched("npu", "ethos_u85_256") == "dense_packed"
    assert searched("npu", "cpu") == "dense_small + cpu_small"


@pytest.mark.slow
def test_run_keeps_what_it_took_by_a_default_that_is_another_by_now(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "target" / "own.yaml"
    file.parent.mkdir(parents=True)
    text = (package.ROOT / "conf" / "target" / "npu.yaml").read_text()
    file.write_text(text.replace("spaces: [dense_packed]", "spaces: [tiny]"))
    options = ["+target=own", "--config-dir", str(tmp_path / "mine"), *QUICK[1:]]
    earlier = ["train.dtype=float32", "train.batch_size=48", "train.lr=0.2"]  # were the defaults
    assert run(["search", *options, *earlier, "run.dir=run"]) == 0
    arguments = json.loads(Path("run", "manifest.json").read_text())["arguments"]
    edit(Path("run"), "arguments", [a for a in arguments if a not in earlier])
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
def test_what_cannot_be_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in _refused(capsys, arguments)
