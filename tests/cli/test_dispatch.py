"""Arguments that Hydra composes itself, and interrupted sweeps."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hwnas.__main__ import run
from hwnas.cli import dispatch


@pytest.mark.parametrize(
    ("argument", "by_hydra"),
    [
        ("hydra.verbose=true", True),
        ("hydra/job_logging=disabled", True),
        ("+hydra/job_logging=disabled", True),
        ("run.dir=hydra/run", False),
        ("n_trials=3", False),
    ],
)
def test_hydra_options_use_hydra(
    monkeypatch: pytest.MonkeyPatch, argument: str, *, by_hydra: bool
) -> None:
    def compose(*_: object) -> Any:
        return "ours"

    monkeypatch.setattr(dispatch, "compose", compose)
    monkeypatch.setattr(dispatch, "_prepare", lambda *_: "/")
    monkeypatch.setattr(dispatch, "_run_hydra", lambda _: None)
    assert dispatch._configurations("search", "search", [argument]) == ["ours"] * (not by_hydra)


@pytest.mark.parametrize("is_begun", [True, False])
def test_interrupted_sweep_names_its_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_begun: bool,
) -> None:
    def search(configs: Sequence[Any], arguments: Sequence[str]) -> None:
        (config,) = configs
        if is_begun:
            folder = Path(config.run.dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "manifest.json").touch()
        if config.seed == 1:
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hwnas"])
    monkeypatch.setattr("hwnas.cli.dispatch.dispatch", search)
    table = [
        "accuracy=table",
        "benchmark.path=t.parquet",
        "benchmark.genotype=[e]",
        "benchmark.accuracy=a",
    ]
    assert run(["search", "-m", *table, "benchmark.costs={latency_ms: ms}", "seed=0,1,2"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    if not is_begun:
        assert line.endswith("Resume each search separately: hwnas resume FOLDER")
        return
    folder = r"runs/multirun/[-_\d]+"
    assert re.search(rf"started searches are in {folder}; the last one is {folder}/1\. ", line)
    assert re.search(rf"the last one with: hwnas resume {folder}/1$", line)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("seed=range(0,0)", "seed=range(0,0): the range is empty"),
        ("seed=a,b", "seed must be a whole number"),
    ],
)
def test_invalid_sweep_leaves_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    assert run(["search", "-m", "+target=npu", option]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
